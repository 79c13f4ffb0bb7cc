/* op_cp_ring.c - ring attention.  See op/attention/op_cp_ring.h.
 *
 *     forward     step i    messages: block i + 1                          compute: block i
 *     backward    step i    messages: block i + 1, gradients of block i - 1    compute: block i
 *
 * Blocks are numbered by steps; block 0 is the own.  A block is [2, B, P, K, D]: chunk by chunk, so
 * that a kernel gets a chunk as keys of its own (d9d_attention_key_part), and a message sends it.
 * With one row a kernel gets both chunks, where the mask allows it (block_call).
 */
#include "op/attention/op_cp_ring.h"

#include "d9d/device/trace.h"

enum { CHUNKS = 2, KV = 2, MAX_MESSAGES = 4 * CHUNKS * KV };

/* Keys and values of a rank, or their gradients, [2, B, P, K, D] and [2, B, P, K, DV]. */
typedef struct ring_block {
    d9d_tensor x[KV];
} ring_block;

typedef struct ring {
    d9d_tape *t;
    const d9di_op_cp *cp;
    const d9di_op_ring_in *in;
    int rank, size;
    int64_t chunk; /* positions P of a chunk */
    ring_block own, coming[2];
    d9d_message *posted[MAX_MESSAGES];
    int n_posted;
} ring;

/* --- which chunks --------------------------------------------------------------------------- */

static int ring_rank(const ring *r, int i)
{
    return (r->rank + i % r->size + r->size) % r->size;
}

static int64_t chunk_number(const ring *r, int rank, int c)
{
    return c == 0 ? rank : 2 * r->size - 1 - rank;
}

/* Whether a query of chunk q may see a key of chunk k.  A prefix reaches keys of later chunks, a
 * window those less than W away. */
static bool chunk_sees(const ring *r, int64_t q, int64_t k)
{
    const d9d_attention_dims *n = r->in->dims;
    const int64_t between = (q > k ? q - k : k - q) - 1;

    if (q == k)
        return true;
    return (k < q || n->prefix != NULL) && (n->window == 0 || between * r->chunk + 1 < n->window);
}

/* Whether rank `by` needs chunk c of rank `of`. */
static bool rank_sees(const ring *r, int by, int of, int c)
{
    const int64_t k = chunk_number(r, of, c);

    return chunk_sees(r, chunk_number(r, by, 0), k) || chunk_sees(r, chunk_number(r, by, 1), k);
}

/* --- blocks --------------------------------------------------------------------------------- */

static int64_t chunk_elements(const d9d_tensor *x)
{
    return d9d_tensor_numel(x) / CHUNKS;
}

static void *chunk_at(const ring_block *b, int i, int c)
{
    return d9di_op_element_ptr(&b->x[i], c * chunk_elements(&b->x[i]));
}

static void block_release(ring_block *b)
{
    for (int i = 0; i < KV; i++)
        d9d_tensor_release(&b->x[i]);
}

/* As the own keys and values, in type t. */
static d9d_status block_alloc(const ring *r, d9d_dtype t, ring_block *b)
{
    const d9d_tensor *of[KV] = {r->in->k, r->in->v};

    for (int i = 0; i < KV; i++)
        D9D_TRY(d9d_tensor_alloc(d9d_tape_device(r->t), t, of[i]->shape, &b->x[i]));
    return D9D_OK;
}

/* Rows [B, 2, ...] to chunks [2, B, ...], or back; one row is both. */
static d9d_status chunks_permute(const ring *r, const d9d_tensor *rows, const d9d_tensor *chunks,
                                 bool back)
{
    const int64_t b = rows->shape.dim[0], n = chunk_elements(rows) / b;

    for (int c = 0; c < CHUNKS; c++) {
        d9d_copy_strided_dims dims = {.t = rows->dtype, .m = b, .heads = 1, .n = n};
        void *const chunk = d9di_op_element_ptr(chunks, c * chunk_elements(chunks));

        *(back ? &dims.y_cols : &dims.x_cols) = CHUNKS * n;
        *(back ? &dims.y_first : &dims.x_first) = c * n;
        *(back ? &dims.x_cols : &dims.y_cols) = n;
        D9D_TRY(D9DI_KERNEL(r->t, elementwise->copy_strided, &dims,
                            back ? d9d_tensor_data(rows) : chunk,
                            back ? chunk : d9d_tensor_data(rows)));
    }
    return D9D_OK;
}

static bool rows_are_chunks(const ring *r)
{
    return r->in->dims->b <= 1;
}

static d9d_status own_block_make(ring *r)
{
    const d9d_tensor *of[KV] = {r->in->k, r->in->v};

    if (!rows_are_chunks(r))
        D9D_TRY(block_alloc(r, r->in->dims->t, &r->own));
    for (int i = 0; i < KV; i++) {
        if (rows_are_chunks(r))
            r->own.x[i] = d9d_tensor_ref(of[i]);
        else
            D9D_TRY(chunks_permute(r, of[i], &r->own.x[i], false));
    }
    return D9D_OK;
}

static d9d_status ring_open(d9d_tape *t, const d9di_op_cp *p, const d9di_op_ring_in *in, ring *r)
{
    *r = (ring){.t = t,
                .cp = p,
                .in = in,
                .rank = d9d_comm_rank(p->comm),
                .size = d9d_comm_size(p->comm),
                .chunk = in->dims->s / CHUNKS};
    D9D_TRY(own_block_make(r));
    for (int i = 0; i < 2; i++)
        D9D_TRY(block_alloc(r, in->dims->t, &r->coming[i]));
    return D9D_OK;
}

/* After a failure messages may be in flight; their buffers then stay allocated. */
static void ring_close(ring *r)
{
    if (r->n_posted > 0) {
        for (int i = 0; i < r->n_posted; i++)
            d9d_message_cancel(r->posted[i]);
        return;
    }
    block_release(&r->own);
    for (int i = 0; i < 2; i++)
        block_release(&r->coming[i]);
}

/* The block of step i. */
static const ring_block *block_of_step(const ring *r, int i)
{
    return i == 0 ? &r->own : &r->coming[i % 2];
}

/* --- messages ------------------------------------------------------------------------------- */

/* Sends or receives the chunks of a block of rank `of` that rank `by` needs. */
static d9d_status block_message(ring *r, const ring_block *b, int by, int of, int peer,
                                bool receive)
{
    d9d_comm *comm = r->cp->comm;
    d9d_stream queue = d9d_comm_stream(comm);
    const char *label = r->cp->label;

    for (int c = 0; c < CHUNKS; c++)
        for (int i = 0; i < KV && rank_sees(r, by, of, c); i++) {
            const int64_t n = chunk_elements(&b->x[i]);
            const d9d_dtype t = b->x[i].dtype;
            void *x = chunk_at(b, i, c);

            if (queue != NULL) {
                D9D_TRY(receive ? d9d_comm_recv(comm, queue, label, t, x, n, peer)
                                : d9d_comm_send(comm, queue, label, t, x, n, peer));
                continue;
            }
            D9D_TRY(receive
                        ? d9d_comm_post_recv(comm, label, t, x, n, peer, &r->posted[r->n_posted])
                        : d9d_comm_post_send(comm, label, t, x, n, peer, &r->posted[r->n_posted]));
            r->n_posted++;
        }
    return D9D_OK;
}

/* Gradients of blocks: those for their owners, of two steps, and those of the own block. */
typedef struct ring_grads {
    ring_block leaving[2], arriving;
    ring_block sum; /* float32, of the own block */
    d9d_tensor dq, dq_sum;
} ring_grads;

/* Both ranks of a pair list their messages in one order. */
static d9d_status step_messages(ring *r, const ring_grads *g, int step)
{
    const int to = ring_rank(r, step + 1), from = ring_rank(r, -(step + 1));
    const int owner = ring_rank(r, -(step - 1)), user = ring_rank(r, step - 1);

    if (step + 1 < r->size) {
        D9D_TRY(block_message(r, &r->own, to, r->rank, to, false));
        D9D_TRY(block_message(r, block_of_step(r, step + 1), r->rank, from, from, true));
    }
    if (g == NULL || step < 2)
        return D9D_OK;
    D9D_TRY(block_message(r, &g->leaving[(step - 1) % 2], r->rank, owner, owner, false));
    return block_message(r, &g->arriving, user, r->rank, user, true);
}

/* On a GPU the messages of a step are one group on the group's own stream, on the CPU they are
 * posted. */
static d9d_status step_start(ring *r, const ring_grads *g, int step)
{
    d9d_device *dev = d9d_tape_device(r->t);
    d9d_stream queue = d9d_comm_stream(r->cp->comm);
    d9d_status st, ended;

    if (queue == NULL)
        return step_messages(r, g, step);
    D9D_TRY(d9d_comm_wait_stream(r->cp->comm, dev->stream));
    d9d_trace_stream_range_begin(dev, queue, "ring", r->cp->label);
    st = d9d_comm_group_start(r->cp->comm);
    if (st == D9D_OK)
        st = step_messages(r, g, step);
    ended = d9d_comm_group_end(r->cp->comm);
    d9d_trace_stream_range_end(dev, queue);
    return st != D9D_OK ? st : ended;
}

static d9d_status step_wait(ring *r)
{
    d9d_device *dev = d9d_tape_device(r->t);
    d9d_status st = d9d_stream_wait_comm(r->cp->comm, dev->stream);

    while (st == D9D_OK && r->n_posted > 0)
        st = d9d_message_wait(r->posted[--r->n_posted], dev->stream);
    d9d_trace_mark(dev, "attention", "ring wait");
    return st;
}

/* --- forward -------------------------------------------------------------------------------- */

/* A call of the kernels: the keys of chunk c of a block or, with n 2, of both. */
typedef struct ring_call {
    int c, n;
    d9d_attention_dims dims;
} ring_call;

/* True if nothing but the order of positions says which keys a query sees. */
static bool order_decides(const ring *r)
{
    const d9d_attention_dims *n = r->in->dims;

    return n->segment == NULL && n->prefix == NULL && n->window == 0 && n->dropout.p == 0.0f;
}

/* Both chunks in one call, if they lie beside each other and the order of positions decides.  The
 * own two see each other as one row does.  Those of a later rank lie between the own two, so the
 * kernel gets them as any such keys. */
static bool block_call(const ring *r, int of, ring_call *out)
{
    if (!rows_are_chunks(r) || !order_decides(r) || of < r->rank)
        return false;
    *out = (ring_call){.n = CHUNKS, .dims = *r->in->dims};
    if (of == r->rank) {
        out->dims.z = out->dims.s;
        out->dims.chunks = 0;
    } else {
        out->dims.part = (d9d_attention_key_part){(r->rank + 1) * r->chunk, CHUNKS * r->chunk};
    }
    return true;
}

/* The calls for the block of rank `of`. */
static int block_calls(const ring *r, int of, ring_call out[CHUNKS])
{
    int n = 0;

    if (block_call(r, of, out))
        return 1;
    for (int c = 0; c < CHUNKS; c++)
        if (rank_sees(r, r->rank, of, c)) {
            out[n] = (ring_call){.c = c, .n = 1, .dims = *r->in->dims};
            out[n++].dims.part =
                (d9d_attention_key_part){chunk_number(r, of, c) * r->chunk, r->chunk};
        }
    return n;
}

/* Output of a block, and of all blocks so far in float32. */
typedef struct ring_out {
    d9d_tensor o, lse, sum;
} ring_out;

static d9d_status step_forward(const ring *r, int step, const ring_out *out,
                               const d9d_tensor *lse_sum)
{
    const ring_block *b = block_of_step(r, step);
    ring_call call[CHUNKS];
    const int n = block_calls(r, ring_rank(r, -step), call);

    for (int i = 0; i < n; i++) {
        D9D_TRY(D9DI_KERNEL(r->t, attention->fwd, &call[i].dims, d9d_tensor_data(&out->o),
                            d9d_tensor_data(&out->lse), d9d_tensor_data(r->in->q),
                            chunk_at(b, 0, call[i].c), chunk_at(b, 1, call[i].c)));
        D9D_TRY(D9DI_KERNEL(r->t, attention->merge, r->in->dims, step == 0 && i == 0,
                            d9d_tensor_data(&out->sum), d9d_tensor_data(lse_sum),
                            d9d_tensor_data(&out->o), d9d_tensor_data(&out->lse)));
    }
    d9d_trace_mark(d9d_tape_device(r->t), "attention", "ring block");
    return D9D_OK;
}

d9d_status d9di_op_ring_attention(d9d_tape *t, const d9di_op_cp *p, const d9di_op_ring_in *in,
                                  const d9d_tensor *o, const d9d_tensor *lse)
{
    d9d_device *dev = d9d_tape_device(t);
    ring_out out = {{0}, {0}, {0}};
    d9d_status st;
    ring r;

    D9D_TRY_OR(st, ring_open(t, p, in, &r), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, o->dtype, o->shape, &out.o), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F32, lse->shape, &out.lse), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(dev, D9D_F32, o->shape, &out.sum), out);
    for (int step = 0; step < r.size; step++) {
        D9D_TRY_OR(st, step_start(&r, NULL, step), out);
        D9D_TRY_OR(st, step_forward(&r, step, &out, lse), out);
        D9D_TRY_OR(st, step_wait(&r), out);
    }
    st = D9DI_KERNEL(t, elementwise->cast, o->dtype, d9d_tensor_data(o), D9D_F32,
                     d9d_tensor_data(&out.sum), d9d_tensor_numel(o));
out:
    d9d_tensor_release(&out.o);
    d9d_tensor_release(&out.lse);
    d9d_tensor_release(&out.sum);
    ring_close(&r);
    return st;
}

/* --- backward ------------------------------------------------------------------------------- */

static d9d_status grads_alloc(const ring *r, ring_grads *g)
{
    d9d_device *dev = d9d_tape_device(r->t);
    const d9d_dtype t = r->in->dims->t;

    for (int i = 0; i < 2; i++)
        D9D_TRY(block_alloc(r, t, &g->leaving[i]));
    D9D_TRY(block_alloc(r, t, &g->arriving));
    D9D_TRY(block_alloc(r, D9D_F32, &g->sum));
    D9D_TRY(d9d_tensor_alloc(dev, t, r->in->q->shape, &g->dq));
    return d9d_tensor_alloc(dev, D9D_F32, r->in->q->shape, &g->dq_sum);
}

static void grads_release(ring_grads *g)
{
    for (int i = 0; i < 2; i++)
        block_release(&g->leaving[i]);
    block_release(&g->arriving);
    block_release(&g->sum);
    d9d_tensor_release(&g->dq);
    d9d_tensor_release(&g->dq_sum);
}

/* Adds chunk c of `from` to the gradients of the own block. */
static d9d_status own_grads_add(const ring *r, const ring_grads *g, const ring_block *from, int c,
                                bool first)
{
    for (int i = 0; i < KV; i++)
        D9D_TRY(D9DI_KERNEL(r->t, elementwise->accumulate, D9D_F32, chunk_at(&g->sum, i, c),
                            first ? 0.0f : 1.0f, from->x[i].dtype, chunk_at(from, i, c),
                            chunk_elements(&from->x[i])));
    return D9D_OK;
}

/* Adds the queries' gradients from chunk c of rank `of`, or from both if a call has both: of those
 * chunks of queries that see it. */
static d9d_status dq_add(const ring *r, const ring_grads *g, int of, int c, bool first)
{
    const int64_t k = chunk_number(r, of, c), n = chunk_elements(&g->dq) / r->in->dims->b;
    bool seen[CHUNKS];

    for (int q = 0; q < CHUNKS; q++)
        seen[q] = first || chunk_sees(r, chunk_number(r, r->rank, q), k);
    if (seen[0] && seen[1])
        return D9DI_KERNEL(r->t, elementwise->accumulate, D9D_F32, d9d_tensor_data(&g->dq_sum),
                           first ? 0.0f : 1.0f, g->dq.dtype, d9d_tensor_data(&g->dq),
                           d9d_tensor_numel(&g->dq));
    for (int64_t i = seen[0] ? 0 : 1; i < CHUNKS * r->in->dims->b; i += CHUNKS)
        D9D_TRY(D9DI_KERNEL(r->t, elementwise->accumulate, D9D_F32,
                            d9di_op_element_ptr(&g->dq_sum, i * n), 1.0f, g->dq.dtype,
                            d9di_op_element_ptr(&g->dq, i * n), n));
    return D9D_OK;
}

static d9d_status step_backward(const ring *r, const ring_grads *g, int step)
{
    const d9di_op_ring_in *in = r->in;
    const ring_block *b = block_of_step(r, step), *d = &g->leaving[step % 2];
    const int of = ring_rank(r, -step);
    ring_call call[CHUNKS];
    const int n = block_calls(r, of, call);

    for (int i = 0; i < n; i++) {
        const int c = call[i].c;

        D9D_TRY(D9DI_KERNEL(r->t, attention->bwd, &call[i].dims, d9d_tensor_data(&g->dq),
                            chunk_at(d, 0, c), chunk_at(d, 1, c), d9d_tensor_data(in->dout),
                            d9d_tensor_data(in->q), chunk_at(b, 0, c), chunk_at(b, 1, c),
                            d9d_tensor_data(in->o), d9d_tensor_data(in->lse)));
        D9D_TRY(dq_add(r, g, of, c, step == 0 && i == 0));
        for (int own = c; step == 0 && own < c + call[i].n; own++)
            D9D_TRY(own_grads_add(r, g, d, own, true));
    }
    d9d_trace_mark(d9d_tape_device(r->t), "attention", "ring block dgrad");
    return D9D_OK;
}

/* Adds what the user of the own block two steps ago found. */
static d9d_status arrived_grads_add(const ring *r, const ring_grads *g, int step)
{
    for (int c = 0; c < CHUNKS && step >= 2; c++)
        if (rank_sees(r, ring_rank(r, step - 1), r->rank, c))
            D9D_TRY(own_grads_add(r, g, &g->arriving, c, false));
    return D9D_OK;
}

static d9d_status grads_store(const ring *r, const ring_grads *g, const d9d_tensor d[3])
{
    const d9d_dtype t = r->in->dims->t;
    d9d_tensor chunks;
    d9d_status st = D9D_OK;

    D9D_TRY(D9DI_KERNEL(r->t, elementwise->cast, t, d9d_tensor_data(&d[0]), D9D_F32,
                        d9d_tensor_data(&g->dq_sum), d9d_tensor_numel(&d[0])));
    for (int i = 0; i < KV && st == D9D_OK; i++) {
        const d9d_tensor *to = &d[1 + i];

        if (rows_are_chunks(r))
            chunks = d9d_tensor_ref(to);
        else
            D9D_TRY(d9d_tensor_alloc(d9d_tape_device(r->t), t, to->shape, &chunks));
        st = D9DI_KERNEL(r->t, elementwise->cast, t, d9d_tensor_data(&chunks), D9D_F32,
                         d9d_tensor_data(&g->sum.x[i]), d9d_tensor_numel(to));
        if (st == D9D_OK && !rows_are_chunks(r))
            st = chunks_permute(r, to, &chunks, true);
        d9d_tensor_release(&chunks);
    }
    return st;
}

d9d_status d9di_op_ring_attention_bwd(d9d_tape *t, const d9di_op_cp *p, const d9di_op_ring_in *in,
                                      const d9d_tensor d[3])
{
    ring_grads g = {.dq = {0}};
    d9d_status st;
    ring r;

    D9D_TRY_OR(st, ring_open(t, p, in, &r), out);
    D9D_TRY_OR(st, grads_alloc(&r, &g), out);
    for (int step = 0; step <= r.size; step++) {
        D9D_TRY_OR(st, step_start(&r, &g, step), out);
        D9D_TRY_OR(st, step < r.size ? step_backward(&r, &g, step) : d9d_tape_run_deferred(t), out);
        D9D_TRY_OR(st, step_wait(&r), out);
        D9D_TRY_OR(st, arrived_grads_add(&r, &g, step), out);
    }
    st = grads_store(&r, &g, d);
out:
    if (r.n_posted == 0)
        grads_release(&g);
    ring_close(&r);
    return st;
}
