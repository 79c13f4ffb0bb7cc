/* context_driver.c - what tests/multirank/context.bats launches: context parallelism over all
 * ranks.
 *
 *     context_driver REPLICATE     REPLICATE is context_parallel_replicate
 *
 * Each rank also computes alone what all ranks compute together, and compares, by each method
 * (d9d/comm/cp_method.h).
 */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"
#include "d9d/base/rng.h"
#include "d9d/data/loader/cp_slice.h"
#include "d9d/model/model.h"
#include "support/family.h"

/* --- arrays in chunks ------------------------------------------------------------------------- */

/* Copies its bytes to the host. */
static char *bytes_of(const d9d_tensor *x)
{
    const uint64_t n = d9d_tensor_bytes(x);
    char *host = malloc(n + 1);

    assert_non_null(host);
    assert_ok(d9d_device_download(d9d_tensor_device(x), host, d9d_tensor_data(x), n));
    return host;
}

/* This rank's chunks of x [B, S, ...]. */
static d9d_tensor chunks_of(const ranks *w, const d9d_tensor *x)
{
    d9d_shape shape = x->shape;
    const int64_t positions = shape.dim[0] * shape.dim[1], width = d9d_tensor_numel(x) / positions;
    const int64_t size = shape.dim[1] / (2 * w->size);
    const size_t each = (size_t)width * d9d_dtype_size(x->dtype);
    char *all = bytes_of(x), *local = malloc((size_t)(positions / w->size) * each + 1);
    d9d_tensor y;

    assert_non_null(local);
    for (int64_t i = 0; i < shape.dim[0] * 2; i++) {
        const int64_t chunk = i % 2 == 0 ? w->rank : 2 * w->size - 1 - w->rank;

        memcpy(local + (size_t)(i * size) * each,
               all + (size_t)(i / 2 * x->shape.dim[1] + chunk * size) * each, (size_t)size * each);
    }
    shape.dim[1] = 2 * size;
    assert_ok(d9d_tensor_from_host(w->dev, x->dtype, shape, local, &y));
    free(all);
    free(local);
    return y;
}

/* Compares what this rank received with its chunks of the whole. */
static void check_chunks(const ranks *w, const char *what, const d9d_tensor *got,
                         const d9d_tensor *whole, double tolerance)
{
    d9d_tensor want = chunks_of(w, whole);
    float *a = ranks_host(got), *b = ranks_host(&want);

    assert_true(d9d_shape_equal(&got->shape, &want.shape));
    ranks_close_to(what, a, b, d9d_tensor_numel(got), tolerance);
    free(a);
    free(b);
    d9d_tensor_release(&want);
}

static double sum_over(const ranks *w, double x)
{
    d9d_tensor sum;

    assert_ok(d9d_tensor_from_host(w->dev, D9D_F64, D9D_SHAPE(1), &x, &sum));
    assert_ok(d9d_comm_all_reduce(w->comm, w->dev->stream, "sum", D9D_F64, d9d_tensor_data(&sum), 1,
                                  D9D_COMM_SUM));
    assert_ok(d9d_device_download(w->dev, &x, d9d_tensor_data(&sum), sizeof(x)));
    d9d_tensor_release(&sum);
    return x;
}

/* All-gathers the chunks and reduce-scatters them back, n times. */
static void chunks_go_and_come_back(void **state)
{
    const ranks *w = *state;

    for (int i = 0; i < 8; i++) {
        const d9d_dtype type = i & 1 ? D9D_BF16 : D9D_F32;
        const d9d_shape shape = D9D_SHAPE(1 + i % 3, 2 * w->size * (1 + i / 2), 2, 3);
        d9d_tensor all = ranks_numbers(w, type, shape, 1), part = chunks_of(w, &all), dx;
        d9d_var *x, *y;
        d9d_tape *t;
        char *here, *there;
        float *got, *want;

        assert_ok(d9d_tape_create(w->dev, &t));
        assert_ok(d9d_tape_leaf(t, &part, true, &x));
        assert_ok(d9d_op_cp_gather(t, x, w->comm, "x", &y));
        assert_true(d9d_shape_equal(&d9d_var_tensor(y)->shape, &shape));
        here = bytes_of(d9d_var_tensor(y));
        there = bytes_of(&all);
        assert_memory_equal(here, there, d9d_tensor_bytes(&all));
        free(here);
        free(there);
        assert_int_equal(y == x, w->size == 1);
        if (w->size > 1) {
            assert_ok(d9d_tape_backward(t, &y, &all, 1, D9D_BACKWARD_FULL));
            d9d_var_grad(x, &dx);
            got = ranks_host(&dx);
            want = ranks_host(&part);
            for (int64_t j = 0; j < d9d_tensor_numel(&part); j++)
                want[j] *= (float)w->size;
            ranks_close_to("n times its own", got, want, d9d_tensor_numel(&part),
                           type == D9D_F32 ? 1e-6 : 4e-3);
            free(got);
            free(want);
            d9d_tensor_release(&dx);
        }
        d9d_tape_free(t);
        d9d_tensor_release(&part);
        d9d_tensor_release(&all);
    }
}

static void odd_positions_are_refused(void **state)
{
    const ranks *w = *state;
    d9d_tensor x = ranks_numbers(w, D9D_F32, D9D_SHAPE(2, 3, 4), 1);
    d9d_var *v, *y = NULL;
    d9d_tape *t;

    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, true, &v));
    if (w->size > 1)
        assert_fails(d9d_op_cp_gather(t, v, w->comm, "x", &y), D9D_EINVAL,
                     "cp_gather: x [2, 3, 4] is not [B, S, ...] with two chunks in S");
    d9d_tape_free(t);
    d9d_tensor_release(&x);
}

/* --- groups of a method ----------------------------------------------------------------------- */

static const d9d_groups one;

static d9d_groups groups_of(const ranks *w, d9d_cp_method method)
{
    d9d_groups g = {.cp = w->comm,
                    .cp_ring = method == D9D_CP_RING || method == D9D_CP_HYBRID_RING};

    if (method == D9D_CP_ALL_TO_ALL)
        g.cp_heads = w->comm;
    if (method == D9D_CP_HYBRID || method == D9D_CP_HYBRID_RING) {
        assert_ok(d9d_mesh_group(w->mesh, D9D_AXIS(CP_REPLICATE), &g.cp_heads));
        assert_ok(d9d_mesh_group(w->mesh, D9D_AXIS(CP_SHARD), &g.cp_keys));
    }
    return g;
}

/* --- batches ---------------------------------------------------------------------------------- */

enum { IGNORE = -100, VOCAB = 23, MAX_POSITIONS = 4096, MAX_ROWS = 8 };

typedef struct made {
    d9d_batch b;
    int32_t ids[MAX_POSITIONS], labels[MAX_POSITIONS], positions[MAX_POSITIONS],
        bounds[MAX_POSITIONS + 1];
    int64_t lengths[MAX_ROWS];
} made;

/* Documents of about `longest` / 2 tokens; 0: rows are not packed. */
static void make(made *m, int64_t rows, int64_t length, int64_t longest)
{
    int64_t n = 0;

    assert_true(rows * length <= MAX_POSITIONS && rows <= MAX_ROWS);
    for (int64_t i = 0; i < rows; i++)
        m->lengths[i] = length;
    for (int64_t i = 0; i < rows * length; i++) {
        const uint64_t word = d9d_rng_below((d9d_rng){7, 1}, (uint64_t)i, 1 << 20);
        const bool begins = n == 0 || i % length == 0 || i - m->bounds[n - 1] >= longest ||
                            word % (uint64_t)(longest + 1) == 0;

        if (longest > 0 && begins)
            m->bounds[n++] = (int32_t)i;
        m->ids[i] = (int32_t)(word / 7 % VOCAB);
        m->labels[i] = word % 7 == 2 ? IGNORE : (int32_t)(word / 49 % VOCAB);
        m->positions[i] = (int32_t)(longest > 0 ? i - m->bounds[n - 1] : i % length);
    }
    m->bounds[n] = (int32_t)(rows * length);
    m->b = (d9d_batch){.seqs = rows,
                       .length = length,
                       .ids = m->ids,
                       .labels = m->labels,
                       .positions = m->positions,
                       .lengths = m->lengths,
                       .documents = longest > 0 ? n : 0,
                       .cu_seqlens = longest > 0 ? m->bounds : NULL};
}

/* Leaves about one target in `prompts` positions, so that prompts are about as long; 0: all. */
static void make_prompts(made *m, uint64_t prompts)
{
    for (int64_t i = 0; i < m->b.seqs * m->b.length && prompts > 0; i++)
        if (d9d_rng_below((d9d_rng){9, 1}, (uint64_t)i, prompts) != 0)
            m->labels[i] = IGNORE;
}

/* A slice of a batch on the device. */
typedef struct uploaded {
    d9d_cp_slice_buffer buffer;
    d9d_tensor ids, labels, positions, segments, prefix;
} uploaded;

/* What of a mask is in segments and prefixes. */
typedef enum mask { CAUSAL, PREFIX, BIDIRECTIONAL } mask;

/* This rank's positions, and segments and prefixes of those that its attention computes. */
static void upload(const ranks *w, const d9d_batch *b, mask seen, const d9d_groups *g,
                   uploaded *out)
{
    const d9d_comm *keys = d9d_groups_cp_keys(g);
    const int rank = d9d_comm_rank(keys), n = d9d_comm_size(keys);
    d9d_cp_slice p;
    d9d_shape shape;

    *out = (uploaded){0};
    assert_ok(d9d_cp_slice_make(b, d9d_comm_rank(g->cp), d9d_comm_size(g->cp), &out->buffer, &p));
    if (g->cp_heads != NULL)
        assert_ok(d9d_cp_slice_set_segments(b, rank, n, &out->buffer, &p));
    if (seen == PREFIX)
        assert_ok(d9d_cp_slice_add_prefixes(b, rank, n, &out->buffer, &p));
    if (seen == BIDIRECTIONAL)
        assert_ok(d9d_cp_slice_set_bidirectional(b, rank, n, &out->buffer, &p));
    shape = D9D_SHAPE(p.seqs, p.length);
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, shape, p.ids, &out->ids));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, shape, p.labels, &out->labels));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, shape, p.positions, &out->positions));
    if (p.segment != NULL)
        assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(p.segments, 4), p.segment,
                                       &out->segments));
    if (p.prefix != NULL)
        assert_ok(
            d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(p.segments), p.prefix, &out->prefix));
}

static void upload_release(uploaded *u)
{
    d9d_tensor_release(&u->ids);
    d9d_tensor_release(&u->labels);
    d9d_tensor_release(&u->positions);
    d9d_tensor_release(&u->segments);
    d9d_tensor_release(&u->prefix);
    d9d_cp_slice_buffer_release(&u->buffer);
}

static const d9d_tensor *segments_of(const uploaded *u)
{
    return u->segments.storage != NULL ? &u->segments : NULL;
}

static const d9d_tensor *prefix_of(const uploaded *u)
{
    return u->prefix.storage != NULL ? &u->prefix : NULL;
}

/* --- attention -------------------------------------------------------------------------------- */

typedef struct attention_case {
    const char *name;
    d9d_dtype t;
    int64_t b, chunk, a, kv, d, longest, window;
    bool sinks;
    uint64_t prompts; /* under a prefix mask: length of prompts; 0: causal */
    d9d_cp_method method;
    bool bidirectional;
    int64_t dv; /* features of a value; 0: d */
    float softcap;
} attention_case;

static const attention_case attentions[] = {
    {"rows", D9D_F32, 2, 3, 4, 2, 5, 0, 0, false, 0, 0, false, 0, 0},
    {"one position a chunk", D9D_F32, 3, 1, 2, 2, 8, 0, 0, false, 0, 0, false, 0, 0},
    {"longer than blocks", D9D_F32, 1, 75, 2, 1, 16, 0, 0, false, 0, 0, false, 0, 0},
    {"documents", D9D_F32, 2, 9, 4, 2, 5, 11, 0, false, 0, 0, false, 0, 0},
    {"long documents", D9D_F32, 2, 40, 2, 1, 16, 200, 0, false, 0, 0, false, 0, 0},
    {"short documents", D9D_F32, 3, 20, 3, 3, 6, 3, 0, false, 0, 0, false, 0, 0},
    {"bfloat16", D9D_BF16, 2, 33, 4, 1, 32, 90, 0, false, 0, 0, false, 0, 0},
    {"bfloat16, heads of 64", D9D_BF16, 2, 75, 4, 2, 64, 200, 0, false, 0, 0, false, 0, 0},
    {"bfloat16, heads of 128", D9D_BF16, 1, 140, 2, 2, 128, 0, 0, false, 0, 0, false, 0, 0},
    {"bfloat16, a window, sinks", D9D_BF16, 1, 130, 4, 1, 64, 90, 70, true, 0, 0, false, 0, 0},
    {"a window", D9D_F32, 2, 9, 4, 2, 5, 0, 4, false, 0, 0, false, 0, 0},
    {"a window over chunks, sinks", D9D_F32, 1, 40, 4, 2, 8, 0, 90, true, 0, 0, false, 0, 0},
    {"a window of documents, sinks", D9D_F32, 2, 30, 4, 1, 6, 70, 33, true, 0, 0, false, 0, 0},
    {"sinks", D9D_F32, 2, 5, 3, 3, 6, 11, 0, true, 0, 0, false, 0, 0},
    {"a prefix of rows", D9D_F32, 2, 9, 4, 2, 5, 0, 0, false, 25, 0, false, 0, 0},
    {"a prefix of documents", D9D_F32, 2, 20, 4, 2, 6, 70, 0, false, 30, 0, false, 0, 0},
    {"a prefix under a window, sinks", D9D_F32, 2, 30, 4, 1, 6, 100, 33, true, 50, 0, false, 0, 0},
    {"bfloat16, a prefix of rows", D9D_BF16, 1, 75, 4, 2, 64, 0, 0, false, 200, 0, false, 0, 0},
    {"values narrower than keys", D9D_F32, 2, 9, 4, 4, 12, 20, 0, false, 0, 0, false, 7, 0},
    {"wide values, softcap", D9D_F32, 1, 70, 2, 1, 5, 0, 70, true, 0, 0, false, 9, 1.5f},
    {"a window of one key", D9D_F32, 2, 9, 2, 2, 5, 13, 1, false, 0, 0, false, 0, 0},
};

enum { Q, K, V, IN };

static mask mask_of(const attention_case *c)
{
    return c->bidirectional ? BIDIRECTIONAL : c->prompts > 0 ? PREFIX : CAUSAL;
}

/* Attention of all ranks' rows, or of this rank's slice: y, and gradients for the seed dy. */
typedef struct attended {
    d9d_tape *t;
    d9d_var *in[IN], *y;
    d9d_tensor grad[IN];
    d9d_param sinks; /* its gradient, summed over the ranks */
} attended;

static void sinks_make(const ranks *w, const attention_case *c, d9d_param *p)
{
    const d9d_shape heads = D9D_SHAPE(c->a);

    *p = (d9d_param){
        .name = "sinks", .spec.trainable = true, .spec.shape = heads, .shard.shape = heads};
    p->local.shape = heads;
    p->local.data = ranks_numbers(w, c->t, heads, 5);
    assert_ok(d9d_tensor_alloc(w->dev, D9D_F32, heads, &p->local.grad));
}

static void attend(const ranks *w, const attention_case *c, const d9d_groups *g,
                   const d9d_tensor in[IN], const d9d_tensor *dy, const uploaded *slice,
                   attended *out)
{
    const d9d_op_attention_opts opts = {.scale = 0.4f,
                                        .causal = !c->bidirectional,
                                        .segments = segments_of(slice),
                                        .prefix = prefix_of(slice),
                                        .softcap = c->softcap,
                                        .cp = d9d_groups_cp_keys(g),
                                        .cp_ring = d9d_groups_cp_ring(g),
                                        .cp_heads = d9d_groups_cp_heads(g),
                                        .label = "k and v",
                                        .window = c->window,
                                        .sinks = c->sinks ? &out->sinks : NULL};

    out->sinks = (d9d_param){0};
    if (c->sinks)
        sinks_make(w, c, &out->sinks);
    assert_ok(d9d_tape_create(w->dev, &out->t));
    for (int i = 0; i < IN; i++)
        assert_ok(d9d_tape_leaf(out->t, &in[i], true, &out->in[i]));
    assert_ok(d9d_op_attention(out->t, out->in[Q], out->in[K], out->in[V], &opts, &out->y));
    assert_ok(d9d_tape_backward(out->t, &out->y, dy, 1, D9D_BACKWARD_FULL));
    for (int i = 0; i < IN; i++)
        d9d_var_grad(out->in[i], &out->grad[i]);
    if (c->sinks)
        assert_ok(d9d_comm_all_reduce(g->cp, w->dev->stream, "sinks", D9D_F32,
                                      d9d_tensor_data(&out->sinks.local.grad), c->a, D9D_COMM_SUM));
}

static void attended_release(attended *x)
{
    d9d_tensor_release(&x->sinks.local.data);
    d9d_tensor_release(&x->sinks.local.grad);
    for (int i = 0; i < IN; i++)
        d9d_tensor_release(&x->grad[i]);
    d9d_tape_free(x->t);
}

/* q, k, v and dy of all ranks */
static void attention_numbers(const ranks *w, const attention_case *c, d9d_tensor out[IN + 1])
{
    const int64_t s = 2 * w->size * c->chunk, dv = c->dv > 0 ? c->dv : c->d;

    out[Q] = ranks_numbers(w, c->t, D9D_SHAPE(c->b, s, c->a, c->d), 1);
    out[K] = ranks_numbers(w, c->t, D9D_SHAPE(c->b, s, c->kv, c->d), 2);
    out[V] = ranks_numbers(w, c->t, D9D_SHAPE(c->b, s, c->kv, dv), 3);
    out[IN] = ranks_numbers(w, c->t, D9D_SHAPE(c->b, s, c->a, dv), 4);
}

/* This rank's part by the case's method, against the whole on one rank. */
static void attention_part_check(const ranks *w, const attention_case *c, const d9d_batch *batch,
                                 const d9d_tensor all[IN + 1], const attended *whole)
{
    static const char *const names[] = {"dq", "dk", "dv", "y"};
    const double tolerance = c->t == D9D_F32 ? 2e-6 : 1e-2;
    const d9d_groups g = groups_of(w, c->method);
    d9d_tensor local[IN + 1];
    uploaded slice;
    attended part;

    upload(w, batch, mask_of(c), &g, &slice);
    for (int i = 0; i <= IN; i++)
        local[i] = chunks_of(w, &all[i]);
    attend(w, c, &g, local, &local[IN], &slice, &part);
    if (c->sinks) {
        float *got = ranks_host(&part.sinks.local.grad);
        float *want = ranks_host(&whole->sinks.local.grad);

        /* A ring rounds the output of each block. */
        ranks_close_to("dsinks", got, want, c->a, c->t == D9D_F32 ? 1e-5 : 1e-2);
        free(got);
        free(want);
    }
    for (int i = 0; i <= IN; i++) {
        char text[100];

        (void)snprintf(text, sizeof(text), "%s of %s", names[i], c->name);
        check_chunks(w, text, i < IN ? &part.grad[i] : d9d_var_tensor(part.y),
                     i < IN ? &whole->grad[i] : d9d_var_tensor(whole->y), tolerance);
        d9d_tensor_release(&local[i]);
    }
    attended_release(&part);
    upload_release(&slice);
}

/* The case by each of n methods. */
static void attention_check(const ranks *w, attention_case c, const d9d_cp_method *methods, int n)
{
    static made m;
    d9d_tensor all[IN + 1];
    uploaded slice;
    attended whole;

    make(&m, c.b, 2 * w->size * c.chunk, c.longest);
    make_prompts(&m, c.prompts);
    upload(w, &m.b, mask_of(&c), &one, &slice);
    attention_numbers(w, &c, all);
    attend(w, &c, &one, all, &all[IN], &slice, &whole);
    for (int i = 0; i < n; i++) {
        c.method = methods[i];
        attention_part_check(w, &c, &m.b, all, &whole);
    }
    for (int i = 0; i <= IN; i++)
        d9d_tensor_release(&all[i]);
    attended_release(&whole);
    upload_release(&slice);
}

/* Every mask by all-gather, and by a ring, which has bidirectional attention too. */
static void attention_in_chunks_is_attention(void **state)
{
    static const d9d_cp_method methods[] = {D9D_CP_ALL_GATHER, D9D_CP_RING};

    for (size_t i = 0; i < sizeof(attentions) / sizeof(attentions[0]); i++) {
        attention_case c = attentions[i];

        attention_check(*state, c, methods, 2);
        if (c.prompts > 0)
            continue;
        c.bidirectional = true;
        attention_check(*state, c, methods + 1, 1);
    }
}

/* Query heads that the ranks divide; key-value heads of each rank, one for all of them, or each for
 * two.  The methods divide heads by the same ranks. */
static void attention_of_heads_check(const ranks *w, const d9d_cp_method *methods, int n_methods)
{
    const d9d_groups g = groups_of(w, methods[0]);
    const int64_t n = d9d_comm_size(g.cp_heads), some = n % 2 == 0 ? n / 2 : n;

    for (size_t i = 0; i < sizeof(attentions) / sizeof(attentions[0]); i++) {
        attention_case c = attentions[i];
        const int64_t kv[] = {c.kv * n, 1, some};

        c.a *= n;
        c.kv = kv[i % 3];
        attention_check(w, c, methods, n_methods);
        if (c.prompts > 0)
            continue;
        c.bidirectional = true;
        attention_check(w, c, methods, n_methods);
    }
}

static void attention_of_heads_is_attention(void **state)
{
    static const d9d_cp_method methods[] = {D9D_CP_ALL_TO_ALL, D9D_CP_HYBRID, D9D_CP_HYBRID_RING};

    attention_of_heads_check(*state, methods, 1);
    attention_of_heads_check(*state, methods + 1, 2);
}

/* The same bits as one rank: each head is computed as a whole by one of them. */
static void heads_have_the_bits_of_one_rank(void **state)
{
    const ranks *w = *state;
    const d9d_groups g = groups_of(w, D9D_CP_ALL_TO_ALL);
    attention_case c = {.name = "bits",
                        .t = D9D_F32,
                        .b = 2,
                        .chunk = 9,
                        .a = 4,
                        .kv = 2,
                        .d = 5,
                        .longest = 11,
                        .method = D9D_CP_ALL_TO_ALL};
    static made m;
    d9d_tensor all[IN + 1], local[IN + 1];
    uploaded whole, part;
    attended a, b;

    c.a *= w->size;
    c.kv *= w->size;
    make(&m, c.b, 2 * w->size * c.chunk, c.longest);
    upload(w, &m.b, CAUSAL, &one, &whole);
    upload(w, &m.b, CAUSAL, &g, &part);
    attention_numbers(w, &c, all);
    for (int i = 0; i <= IN; i++)
        local[i] = chunks_of(w, &all[i]);
    attend(w, &c, &one, all, &all[IN], &whole, &a);
    attend(w, &c, &g, local, &local[IN], &part, &b);
    for (int i = 0; i <= IN; i++) {
        const d9d_tensor *got = i < IN ? &b.grad[i] : d9d_var_tensor(b.y);
        d9d_tensor want = chunks_of(w, i < IN ? &a.grad[i] : d9d_var_tensor(a.y));
        char *x = bytes_of(got), *y = bytes_of(&want);

        assert_memory_equal(x, y, d9d_tensor_bytes(&want));
        free(x);
        free(y);
        d9d_tensor_release(&want);
    }
    for (int i = 0; i <= IN; i++) {
        d9d_tensor_release(&all[i]);
        d9d_tensor_release(&local[i]);
    }
    attended_release(&a);
    attended_release(&b);
    upload_release(&whole);
    upload_release(&part);
}

/* Bytes of all-to-alls to other ranks so far. */
static uint64_t bytes_to_others(const d9d_comm *c)
{
    uint64_t sum = 0;

    for (int r = 0; r < d9d_comm_size(c); r++)
        sum += r != d9d_comm_rank(c) ? d9di_comm_sent_bytes(c, r) : 0;
    return sum;
}

/* The formula of d9d/comm/cp_method.h, with as many key-value heads as ranks, and fewer. */
static void heads_send_the_bytes_of_the_formula(void **state)
{
    const ranks *w = *state;
    const int64_t n = w->size, kv[] = {2 * n, n, 1};

    for (int i = 0; i < 3; i++) {
        const attention_case c = {.name = "bytes",
                                  .t = D9D_F32,
                                  .b = 2,
                                  .chunk = 3,
                                  .a = 4 * n,
                                  .kv = kv[i],
                                  .d = 6,
                                  .method = D9D_CP_ALL_TO_ALL};
        const int64_t positions = c.b * 2 * c.chunk, keys = c.kv < n ? n : c.kv;
        const uint64_t before = bytes_to_others(w->comm);

        attention_check(w, c, &c.method, 1);
        /* float32; queries and outputs, keys and values; forward and backward */
        assert_int_equal(bytes_to_others(w->comm) - before,
                         positions * (n - 1) * (c.a + keys) / n * 2 * c.d * 2 * 4);
    }
}

/* Chunks of 2 n that rank `by` of n needs from rank `of`: those of keys at most `behind` chunks
 * before one of its queries, or of all if `both`. */
static int64_t chunks_needed(int64_t n, int64_t by, int64_t of, int64_t behind, bool both)
{
    const int64_t queries[] = {by, 2 * n - 1 - by}, keys[] = {of, 2 * n - 1 - of};
    int64_t sum = 0;

    for (int k = 0; k < 2; k++) {
        bool seen = both;

        for (int q = 0; q < 2; q++)
            seen |= queries[q] > keys[k] && queries[q] - keys[k] <= behind;
        sum += seen;
    }
    return sum;
}

/* Chunks of keys in forward and backward, and their gradients: d9d/comm/cp_method.h.  A window of a
 * chunk and one position reaches the chunk before, one more the second before. */
static void ring_sends_the_chunks_that_are_seen(void **state)
{
    const ranks *w = *state;
    const int64_t n = w->size, p = 3;
    const struct {
        int64_t window, behind;
        bool bidirectional;
    } cases[] = {{0, 2 * n, false}, {1, 0, false},         {2, 1, false},   {p + 1, 1, false},
                 {p + 2, 2, false}, {2 * p + 2, 3, false}, {0, 2 * n, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const attention_case c = {.name = "bytes",
                                  .t = D9D_BF16,
                                  .b = 2,
                                  .chunk = p,
                                  .a = 4,
                                  .kv = 2,
                                  .d = 6,
                                  .dv = 4,
                                  .window = cases[i].window,
                                  .bidirectional = cases[i].bidirectional,
                                  .method = D9D_CP_RING};
        const int64_t elements = c.b * p * c.kv * (c.d + c.dv);
        const uint64_t before = bytes_to_others(w->comm);
        int64_t blocks = 0;

        for (int64_t r = 0; r < n; r++) {
            const bool both = c.bidirectional;

            if (r != w->rank)
                blocks += 2 * chunks_needed(n, r, w->rank, cases[i].behind, both) +
                          chunks_needed(n, w->rank, r, cases[i].behind, both);
        }
        attention_check(w, c, &c.method, 1);
        assert_int_equal(bytes_to_others(w->comm) - before, blocks * elements * 2);
    }
}

/* Two runs have the same bits. */
static void ring_has_the_same_bits_again(void **state)
{
    const ranks *w = *state;
    const d9d_groups g = groups_of(w, D9D_CP_RING);
    const attention_case c = {.name = "again",
                              .t = D9D_F32,
                              .b = 2,
                              .chunk = 30,
                              .a = 4,
                              .kv = 2,
                              .d = 5,
                              .longest = 40,
                              .sinks = true};
    static made m;
    d9d_tensor all[IN + 1], local[IN + 1];
    uploaded part;
    attended a, b;

    make(&m, c.b, 2 * w->size * c.chunk, c.longest);
    upload(w, &m.b, CAUSAL, &g, &part);
    attention_numbers(w, &c, all);
    for (int i = 0; i <= IN; i++)
        local[i] = chunks_of(w, &all[i]);
    attend(w, &c, &g, local, &local[IN], &part, &a);
    attend(w, &c, &g, local, &local[IN], &part, &b);
    for (int i = 0; i <= IN; i++) {
        const d9d_tensor *one_run = i < IN ? &a.grad[i] : d9d_var_tensor(a.y);
        char *x = bytes_of(one_run), *y = bytes_of(i < IN ? &b.grad[i] : d9d_var_tensor(b.y));

        assert_memory_equal(x, y, d9d_tensor_bytes(one_run));
        free(x);
        free(y);
    }
    for (int i = 0; i <= IN; i++) {
        d9d_tensor_release(&all[i]);
        d9d_tensor_release(&local[i]);
    }
    attended_release(&a);
    attended_release(&b);
    upload_release(&part);
}

/* What a ring may do wrong: a block that it leaves out of the output or of the gradients, or joins
 * twice. */
typedef enum mistake { LEFT_OUT, JOINED_TWICE, GRADIENT_LEFT_OUT, MISTAKES } mistake;

/* The kernels of a device, of which call number `when` makes the mistake. */
static struct {
    const d9d_kernels *right;
    mistake what;
    int when, merges, backwards;
} faulty;

static d9d_status faulty_merge(d9d_stream s, const d9d_attention_dims *n, bool first, float *acc,
                               float *acc_lse, const void *o, const float *lse)
{
    const bool now = faulty.merges++ == faulty.when;

    if (now && faulty.what == LEFT_OUT)
        return D9D_OK;
    D9D_TRY(faulty.right->attention->merge(s, n, first, acc, acc_lse, o, lse));
    return now && faulty.what == JOINED_TWICE
               ? faulty.right->attention->merge(s, n, false, acc, acc_lse, o, lse)
               : D9D_OK;
}

static d9d_status faulty_bwd(d9d_stream s, const d9d_attention_dims *n, void *dq, void *dk,
                             void *dv, const void *dout, const void *q, const void *k,
                             const void *v, const void *o, const float *lse)
{
    const int64_t queries = n->b * n->s * n->a, keys = n->b * d9d_attention_array_keys(n) * n->kv;
    const d9d_kernels *right = faulty.right;

    if (faulty.backwards++ != faulty.when || faulty.what != GRADIENT_LEFT_OUT)
        return right->attention->bwd(s, n, dq, dk, dv, dout, q, k, v, o, lse);
    D9D_TRY(right->elementwise->fill(s, n->t, dq, queries * n->d, 0.0f));
    D9D_TRY(right->elementwise->fill(s, n->t, dk, keys * n->d, 0.0f));
    return right->elementwise->fill(s, n->t, dv, keys * n->dv, 0.0f);
}

/* |got - want| / |want| in the 2-norm, over all ranks. */
static double difference(const ranks *w, const d9d_tensor *got, const d9d_tensor *want)
{
    float *a = ranks_host(got), *b = ranks_host(want);
    double off = 0, all = 0;

    for (int64_t i = 0; i < d9d_tensor_numel(got); i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    free(a);
    free(b);
    return sqrt(sum_over(w, off) / sum_over(w, all));
}

/* Attention with the mistake, on the given slice; how far its output and gradients are off. */
static void attend_with_mistake(const ranks *w, const attention_case *c, const d9d_groups *g,
                                const d9d_tensor in[IN + 1], const uploaded *slice,
                                const attended *right, double *y, double *grads)
{
    const d9d_kernels *const kernels = w->dev->kernels;
    d9d_attention_kernels some = *kernels->attention;
    d9d_kernels all = *kernels;
    attended a;

    some.merge = faulty_merge;
    some.bwd = faulty_bwd;
    all.attention = &some;
    faulty.right = kernels;
    faulty.merges = faulty.backwards = 0;
    w->dev->kernels = &all;
    attend(w, c, g, in, &in[IN], slice, &a);
    w->dev->kernels = kernels;
    *y = difference(w, d9d_var_tensor(a.y), d9d_var_tensor(right->y));
    *grads = 0;
    for (int i = 0; i < IN; i++)
        *grads += difference(w, &a.grad[i], &right->grad[i]);
    attended_release(&a);
}

/* Rows of one sequence have a call for a rank's block, others one for each chunk, at least. */
static void mistakes_show_in(const ranks *w, int64_t b)
{
    const d9d_groups g = groups_of(w, D9D_CP_RING);
    const int calls = b == 1 ? w->size : w->size + 1;
    const attention_case c = {
        .name = "mistakes", .t = D9D_F32, .b = b, .chunk = 20, .a = 4, .kv = 2, .d = 5};
    static made m;
    d9d_tensor all[IN + 1], local[IN + 1];
    uploaded part;
    attended right;

    make(&m, c.b, 2 * w->size * c.chunk, c.longest);
    upload(w, &m.b, CAUSAL, &g, &part);
    attention_numbers(w, &c, all);
    for (int i = 0; i <= IN; i++)
        local[i] = chunks_of(w, &all[i]);
    attend(w, &c, &g, local, &local[IN], &part, &right);
    for (faulty.what = LEFT_OUT; faulty.what < MISTAKES; faulty.what++)
        for (faulty.when = 1; faulty.when < calls; faulty.when++) {
            double y, grads;

            attend_with_mistake(w, &c, &g, local, &part, &right, &y, &grads);
            if (!(grads > 1e-2) || (y > 1e-2) != (faulty.what != GRADIENT_LEFT_OUT))
                fail_msg("mistake %d with block %d: y is off by %g, gradients by %g",
                         (int)faulty.what, faulty.when, y, grads);
        }
    for (int i = 0; i <= IN; i++) {
        d9d_tensor_release(&all[i]);
        d9d_tensor_release(&local[i]);
    }
    attended_release(&right);
    upload_release(&part);
}

/* The comparisons above see each of them, by far. */
static void mistakes_of_a_ring_show(void **state)
{
    const ranks *w = *state;

    if (w->size == 1)
        skip();
    mistakes_show_in(w, 1);
    mistakes_show_in(w, 2);
}

/* Heads that the ranks do not divide: the sentence has both numbers. */
static void odd_heads_are_refused(void **state)
{
    const ranks *w = *state;
    const d9d_op_attention_opts opts = {
        .scale = 1.0f, .causal = true, .cp_heads = w->comm, .label = "k and v"};
    d9d_tensor x = ranks_numbers(w, D9D_F32, D9D_SHAPE(1, 2, w->size + 1, 4), 1);
    char want[200];
    d9d_var *v, *y = NULL;
    d9d_tape *t;

    (void)snprintf(want, sizeof(want),
                   "attention: q [1, 2, %d, 4] has %d heads, which %d ranks of context parallelism "
                   "cannot exchange: they must divide them",
                   w->size + 1, w->size + 1, w->size);
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, true, &v));
    if (w->size > 1)
        assert_fails(d9d_op_attention(t, v, v, v, &opts, &y), D9D_EINVAL, want);
    d9d_tape_free(t);
    d9d_tensor_release(&x);
}

static void a_ring_with_a_cache_is_refused(void **state)
{
    const ranks *w = *state;
    const d9d_op_attention_opts opts = {.scale = 1.0f,
                                        .causal = true,
                                        .cp = w->comm,
                                        .cp_ring = true,
                                        .cached = true,
                                        .label = "k and v"};
    d9d_tensor x = ranks_numbers(w, D9D_F32, D9D_SHAPE(1, 2, 2, 4), 1);
    char want[100];
    d9d_var *v, *y = NULL;
    d9d_tape *t;

    (void)snprintf(want, sizeof(want), "attention: ring attention over %d ranks with a KV cache",
                   w->size);
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, false, &v));
    if (w->size > 1)
        assert_fails(d9d_op_attention(t, v, v, v, &opts, &y), D9D_EINVAL, want);
    d9d_tape_free(t);
    d9d_tensor_release(&x);
}

/* <x, y>, in double. */
static double product(const d9d_tensor *x, const d9d_tensor *y)
{
    float *a = ranks_host(x), *b = ranks_host(y);
    double sum = 0;

    for (int64_t i = 0; i < d9d_tensor_numel(x); i++)
        sum += (double)a[i] * (double)b[i];
    free(a);
    free(b);
    return sum;
}

/* x + by u, in place. */
static void step(const d9d_tensor *x, double by, const d9d_tensor *u)
{
    float *to = ranks_host(x), *from = ranks_host(u);

    for (int64_t i = 0; i < d9d_tensor_numel(x); i++)
        to[i] += (float)by * from[i];
    assert_ok(d9d_device_upload(d9d_tensor_device(x), d9d_tensor_data(x), to, d9d_tensor_bytes(x)));
    free(to);
    free(from);
}

/* <y, dy> over all ranks, and its directional derivative along `u` from the gradients. */
static double along(const ranks *w, const attention_case *c, const d9d_tensor local[IN + 1],
                    const uploaded *slice, const d9d_tensor u[IN], double *derivative)
{
    const d9d_groups g = groups_of(w, c->method);
    attended x;
    double y, change = 0;

    attend(w, c, &g, local, &local[IN], slice, &x);
    for (int i = 0; i < IN; i++)
        change += product(&x.grad[i], &u[i]);
    y = sum_over(w, product(d9d_var_tensor(x.y), &local[IN]));
    *derivative = sum_over(w, change);
    attended_release(&x);
    return y;
}

/* Moves this rank's q, k and v along a direction; the change of <y, dy> must match the
 * gradients. */
static void gradients_are_those_of_all_ranks(void **state)
{
    const attention_case c = {.name = "differences",
                              .t = D9D_F32,
                              .b = 2,
                              .chunk = 5,
                              .a = 4,
                              .kv = 2,
                              .d = 6,
                              .longest = 9};
    const ranks *w = *state;
    const d9d_groups g = groups_of(w, c.method);
    const double h = 1e-3;
    static made m;
    d9d_tensor all[IN + 1], local[IN + 1], u[IN];
    double derivative, none, up, down;
    uploaded part;

    make(&m, c.b, 2 * w->size * c.chunk, c.longest);
    upload(w, &m.b, CAUSAL, &g, &part);
    attention_numbers(w, &c, all);
    for (int i = 0; i <= IN; i++)
        local[i] = chunks_of(w, &all[i]);
    for (int i = 0; i < IN; i++)
        u[i] = ranks_numbers(w, D9D_F32, local[i].shape, (uint64_t)(100 + 10 * w->rank + i));
    (void)along(w, &c, local, &part, u, &derivative);
    for (int i = 0; i < IN; i++)
        step(&local[i], h, &u[i]);
    up = along(w, &c, local, &part, u, &none);
    for (int i = 0; i < IN; i++)
        step(&local[i], -2 * h, &u[i]);
    down = along(w, &c, local, &part, u, &none);
    if (!(fabs((up - down) / (2 * h) - derivative) <= 2e-3 * (1 + fabs(derivative))))
        fail_msg("the gradients say %g, the differences %g", derivative, (up - down) / (2 * h));
    for (int i = 0; i <= IN; i++) {
        d9d_tensor_release(&all[i]);
        d9d_tensor_release(&local[i]);
    }
    for (int i = 0; i < IN; i++)
        d9d_tensor_release(&u[i]);
    upload_release(&part);
}

/* --- models ----------------------------------------------------------------------------------- */

static const char dense[] = "\"model_type\": \"qwen3\"";
static const char mixture[] = "\"model_type\": \"qwen3_moe\", \"norm_topk_prob\": true, "
                              "\"num_experts\": 4, \"num_experts_per_tok\": 2, "
                              "\"moe_intermediate_size\": 9";

typedef struct variant {
    const char *name;
    bool moe;
    int64_t longest;
    d9d_model_recompute_mode recompute;
    uint64_t prompts;
} variant;

static const variant variants[] = {
    {"dense", false, 0, D9D_RECOMPUTE_OFF, 0},
    {"dense, packed", false, 20, D9D_RECOMPUTE_FULL, 0},
    {"experts", true, 0, D9D_RECOMPUTE_FULL, 0},
    {"experts, packed", true, 7, D9D_RECOMPUTE_SELECTIVE, 0},
    {"dense, prefixes of rows", false, 0, D9D_RECOMPUTE_FULL, 20},
    {"dense, packed, prefixes", false, 30, D9D_RECOMPUTE_OFF, 20},
};

/* A model over `comm`: its losses and gradients, summed over the ranks. */
typedef struct learned {
    d9d_family_config config;
    d9d_model *model;
    d9d_params params;
    d9d_arena arena;
    d9d_tensor loss;
} learned;

/* With `heads` query heads. */
static void learn(const ranks *w, const variant *v, int heads, const d9d_groups *g,
                  const d9d_batch *b, learned *f)
{
    const d9d_model_opts options = {.dtype = D9D_F32, .recompute = v->recompute};
    d9d_model_in in = {0};
    d9d_model_out out;
    d9d_tensor seed;
    uploaded part;
    d9d_tape *t;

    *f = (learned){0};
    assert_ok(family_make(
        &f->arena, &f->config,
        "{%s, \"hidden_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"head_dim\": 6, \"intermediate_size\": 14, "
        "\"max_position_embeddings\": 1024, \"vocab_size\": %d, \"initializer_range\": 0}",
        v->moe ? mixture : dense, heads, heads / 2, VOCAB));
    assert_ok(d9d_family_create(&f->config, D9D_WHOLE_MODEL, &options, &f->model));
    f->model->groups = *g;
    assert_ok(d9d_module_bind(f->model->module));
    assert_ok(d9d_module_params(f->model->module, &f->arena, &f->params));
    assert_ok(d9d_module_materialise(f->model->module, w->dev, true));
    assert_ok(d9d_module_reset(f->model->module, 5));
    upload(w, b, v->prompts > 0 ? PREFIX : CAUSAL, g, &part);
    in.ids = &part.ids;
    in.labels = &part.labels;
    in.positions = &part.positions;
    in.segments = segments_of(&part);
    assert_ok(d9d_tape_create(w->dev, &t));
    if (prefix_of(&part) != NULL)
        d9d_tape_set_prefix(t, prefix_of(&part));
    assert_ok(f->model->ops->forward(f->model, t, &in, &out));
    f->loss = d9d_tensor_reshape(d9d_var_tensor(out.loss), part.ids.shape);
    assert_ok(d9d_tensor_alloc(w->dev, D9D_F32, d9d_var_tensor(out.loss)->shape, &seed));
    assert_ok(w->dev->kernels->elementwise->fill(w->dev->stream, D9D_F32, d9d_tensor_data(&seed),
                                                 d9d_tensor_numel(&seed), 1.0f));
    assert_ok(d9d_tape_backward(t, &out.loss, &seed, 1, D9D_BACKWARD_FULL));
    d9d_tape_free(t);
    for (size_t i = 0; i < f->params.n; i++) {
        d9d_param *p = f->params.p[i];

        assert_ok(d9d_comm_all_reduce(g->cp, w->dev->stream, p->name, D9D_F32,
                                      d9d_tensor_data(&p->local.grad),
                                      d9d_tensor_numel(&p->local.grad), D9D_COMM_SUM));
    }
    d9d_tensor_release(&seed);
    upload_release(&part);
}

static void learned_release(learned *f)
{
    d9d_tensor_release(&f->loss);
    d9d_model_free(f->model);
    d9d_arena_release(&f->arena);
}

static void model_check(const ranks *w, const variant *v, d9d_cp_method method)
{
    const d9d_groups g = groups_of(w, method);
    const int heads = g.cp_heads != NULL ? 2 * d9d_comm_size(g.cp_heads) : 4;
    static made m;
    learned whole, part;

    make(&m, 2, 2 * w->size * 7, v->longest);
    make_prompts(&m, v->prompts);
    learn(w, v, heads, &one, &m.b, &whole);
    learn(w, v, heads, &g, &m.b, &part);
    check_chunks(w, "losses", &part.loss, &whole.loss, 1e-6);
    for (size_t i = 0; i < part.params.n; i++) {
        const d9d_param *p = part.params.p[i], *all = whole.params.p[i];
        float *got = ranks_host(&p->local.grad), *want = ranks_host(&all->local.grad);

        ranks_close_to(p->name, got, want, d9d_tensor_numel(&p->local.grad), 3e-6);
        free(got);
        free(want);
    }
    learned_release(&part);
    learned_release(&whole);
}

static void models_in_chunks_are_the_model(void **state)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        for (int method = 0; method < D9D_N_CP_METHODS; method++)
            model_check(*state, &variants[i], (d9d_cp_method)method);
}

static d9d_status world_open(int64_t replicate, ranks *w)
{
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_bootstrap *bootstrap;

    D9D_TRY(d9d_bootstrap_open(&bootstrap));
    d.context_parallel_replicate = replicate;
    d.context_parallel_shard = d9d_bootstrap_size(bootstrap) / replicate;
    return ranks_open(bootstrap, &d, D9D_AXES_CP, w);
}

int main(int argc, char **argv)
{
    ranks w = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(chunks_go_and_come_back, &w),
        cmocka_unit_test_prestate(odd_positions_are_refused, &w),
        cmocka_unit_test_prestate(attention_in_chunks_is_attention, &w),
        cmocka_unit_test_prestate(attention_of_heads_is_attention, &w),
        cmocka_unit_test_prestate(heads_have_the_bits_of_one_rank, &w),
        cmocka_unit_test_prestate(heads_send_the_bytes_of_the_formula, &w),
        cmocka_unit_test_prestate(ring_sends_the_chunks_that_are_seen, &w),
        cmocka_unit_test_prestate(ring_has_the_same_bits_again, &w),
        cmocka_unit_test_prestate(mistakes_of_a_ring_show, &w),
        cmocka_unit_test_prestate(odd_heads_are_refused, &w),
        cmocka_unit_test_prestate(a_ring_with_a_cache_is_refused, &w),
        cmocka_unit_test_prestate(gradients_are_those_of_all_ranks, &w),
        cmocka_unit_test_prestate(models_in_chunks_are_the_model, &w),
    };
    int failed;

    if (world_open(argc > 1 ? atoll(argv[1]) : 1, &w) != D9D_OK) {
        fprintf(stderr, "%s\n", d9d_err_message());
        return 2;
    }
    failed = cmocka_run_group_tests_name("context parallel", tests, NULL, NULL);
    printf("rank %d of %d: %d failed\n", w.rank, w.size, failed);
    ranks_close(&w);
    return failed > 0;
}
