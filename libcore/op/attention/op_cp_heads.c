/* op_cp_heads.c - all-to-all of context parallelism.  See op/attention/op_cp_heads.h.
 *
 *     scatter   heads packed for each rank [n, B, s, m D], all-to-all, then zigzag chunks into
 *               sequence order
 *     gather    chunks into rank order, all-to-all, then heads into x [B, s, A, D]
 */
#include "op/attention/op_cp_heads.h"

#include <stdlib.h>

#include "d9d/device/trace.h"

enum { ARRAYS = 3 }; /* the most of one transfer: q, k and v */

typedef enum heads_direction { SCATTER, GATHER } heads_direction;

/* One array of a transfer.  x is of positions, y of heads: op_cp_heads.h. */
typedef struct heads_array {
    d9d_dtype t;
    int64_t b, s;         /* sequences, and a rank's positions of each */
    int64_t heads, d;     /* of x */
    int64_t parts, share; /* different parts of the heads; ranks that have the same one */
    int64_t part;         /* elements of a part, at one position */
    d9d_tensor packed, received;
} heads_array;

static heads_array heads_array_make(const d9di_op_cp *p, d9d_dtype t, int64_t b, int64_t s,
                                    int64_t heads, int64_t d)
{
    const int64_t n = d9d_comm_size(p->comm), parts = heads < n ? heads : n;

    return (heads_array){.t = t,
                         .b = b,
                         .s = s,
                         .heads = heads,
                         .d = d,
                         .parts = parts,
                         .share = n / parts,
                         .part = heads / parts * d};
}

static heads_array array_of_positions(const d9di_op_cp *p, const d9d_tensor *x)
{
    const int64_t *dim = x->shape.dim;

    return heads_array_make(p, x->dtype, dim[0], dim[1], dim[2], dim[3]);
}

static heads_array array_of_heads(const d9di_op_cp *p, const d9d_tensor *y, int64_t heads)
{
    const int64_t *dim = y->shape.dim;

    return heads_array_make(p, y->dtype, dim[0], dim[1] / d9d_comm_size(p->comm), heads, dim[3]);
}

static d9d_shape positions_shape(const heads_array *a)
{
    return D9D_SHAPE(a->b, a->s, a->heads, a->d);
}

static d9d_shape heads_shape(const heads_array *a)
{
    return D9D_SHAPE(a->b, a->s * a->parts * a->share, a->heads / a->parts, a->d);
}

/* Elements that go to, or come from, one rank. */
static int64_t rank_elements(const heads_array *a)
{
    return a->b * a->s * a->part;
}

static void *part_at(const heads_array *a, void *parts, int64_t i)
{
    return (char *)parts + (uint64_t)(i * rank_elements(a)) * d9d_dtype_size(a->t);
}

/* A part for each of the ranks that have the same one, or the sum of theirs. */
static d9d_copy_strided_dims share_dims(const heads_array *a)
{
    const int64_t n = rank_elements(a);

    return (d9d_copy_strided_dims){a->t, a->parts, a->share, n, n, 0, n, 0};
}

/* Parts [parts, B, s, part] from x [B, s, parts, part], or back. */
static d9d_status heads_permute(d9d_tape *t, const heads_array *a, void *parts, void *x,
                                heads_direction way)
{
    for (int64_t i = 0; i < a->parts; i++) {
        d9d_copy_strided_dims n = {.t = a->t, .m = a->b * a->s, .heads = 1, .n = a->part};
        void *const part = part_at(a, parts, i);

        *(way == SCATTER ? &n.x_cols : &n.y_cols) = a->parts * a->part;
        *(way == SCATTER ? &n.x_first : &n.y_first) = i * a->part;
        *(way == SCATTER ? &n.y_cols : &n.x_cols) = a->part;
        D9D_TRY(D9DI_KERNEL(t, elementwise->copy_strided, &n, way == SCATTER ? part : x,
                            way == SCATTER ? x : part));
    }
    return D9D_OK;
}

/* `all` [n, B, s, part] are the parts of all ranks. */
static d9d_status heads_pack(d9d_tape *t, const heads_array *a, void *all, void *x,
                             heads_direction way)
{
    const d9d_copy_strided_dims share = share_dims(a);
    d9d_tensor parts;
    d9d_status st;

    if (a->share == 1)
        return heads_permute(t, a, all, x, way);
    D9D_TRY(
        d9d_tensor_alloc(d9d_tape_device(t), a->t, D9D_SHAPE(a->parts, rank_elements(a)), &parts));
    if (way == SCATTER) {
        D9D_TRY_OR(st, heads_permute(t, a, d9d_tensor_data(&parts), x, way), out);
        st = D9DI_KERNEL(t, elementwise->copy_strided, &share, all, d9d_tensor_data(&parts));
    } else {
        D9D_TRY_OR(
            st, D9DI_KERNEL(t, elementwise->copy_strided_bwd, &share, d9d_tensor_data(&parts), all),
            out);
        st = heads_permute(t, a, d9d_tensor_data(&parts), x, way);
    }
out:
    d9d_tensor_release(&parts);
    return st;
}

static d9d_status zigzag(d9d_tape *t, const heads_array *a, void *to, const void *from,
                         bool in_order)
{
    return D9DI_KERNEL(t, attention->cp_zigzag, a->t, to, from, a->parts * a->share, a->b, a->s / 2,
                       a->part, in_order);
}

static void arrays_release(heads_array *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        d9d_tensor_release(&a[i].packed);
        d9d_tensor_release(&a[i].received);
    }
}

static d9d_status array_pack(d9d_tape *t, heads_array *a, const d9d_tensor *from,
                             heads_direction way)
{
    const d9d_shape all = D9D_SHAPE(a->parts * a->share, rank_elements(a));

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), a->t, all, &a->packed));
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), a->t, all, &a->received));
    return way == SCATTER
               ? heads_pack(t, a, d9d_tensor_data(&a->packed), d9d_tensor_data(from), way)
               : zigzag(t, a, d9d_tensor_data(&a->packed), d9d_tensor_data(from), false);
}

static d9d_status array_unpack(d9d_tape *t, const heads_array *a, heads_direction way,
                               const d9d_tensor *to)
{
    return way == SCATTER
               ? zigzag(t, a, d9d_tensor_data(to), d9d_tensor_data(&a->received), true)
               : heads_pack(t, a, d9d_tensor_data(&a->received), d9d_tensor_data(to), way);
}

/* Enqueues one message to each rank for each array, on the group's stream. */
static d9d_status arrays_send(d9d_tape *t, const d9di_op_cp *p, heads_array *a, size_t n)
{
    d9d_stream queue = d9d_comm_stream(p->comm);
    const int ranks = d9d_comm_size(p->comm);
    int64_t *counts = calloc((size_t)ranks, sizeof(*counts));
    d9d_status st, ended;

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the counts of %d ranks", p->label, ranks);
    st = d9d_comm_group_start(p->comm);
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        for (int r = 0; r < ranks; r++)
            counts[r] = rank_elements(&a[i]);
        st = d9d_comm_all_to_all(p->comm, queue != NULL ? queue : d9d_tape_device(t)->stream,
                                 p->label, a[i].t, d9d_tensor_data(&a[i].received), counts,
                                 d9d_tensor_data(&a[i].packed), counts);
    }
    ended = d9d_comm_group_end(p->comm);
    free(counts);
    return st != D9D_OK ? st : ended;
}

/* Deferred wgrads overlap with the messages; the first of a layer's two transfers leaves one to the
 * second. */
static d9d_status arrays_exchange(d9d_tape *t, const d9di_op_cp *p, heads_array *a, size_t n,
                                  heads_direction way)
{
    d9d_device *dev = d9d_tape_device(t);
    d9d_stream queue = d9d_comm_stream(p->comm);

    D9D_TRY(d9d_comm_wait_stream(p->comm, dev->stream));
    if (queue != NULL)
        d9d_trace_stream_range_begin(dev, queue, "all_to_all", p->label);
    D9D_TRY(arrays_send(t, p, a, n));
    if (queue != NULL)
        d9d_trace_stream_range_end(dev, queue);
    D9D_TRY(way == SCATTER ? d9d_tape_run_deferred_keep_one(t) : d9d_tape_run_deferred(t));
    D9D_TRY(d9d_stream_wait_comm(p->comm, dev->stream));
    d9d_trace_mark(dev, "heads", "all_to_all");
    return D9D_OK;
}

/* to[i], which is allocated here, from from[i]. */
static d9d_status heads_transfer(d9d_tape *t, const d9di_op_cp *p, heads_array *a, size_t n,
                                 heads_direction way, const d9d_tensor *const *from, d9d_tensor *to)
{
    d9d_tensor made[ARRAYS] = {{0}};
    d9d_status st;

    for (size_t i = 0; i < n; i++)
        D9D_TRY_OR(st, array_pack(t, &a[i], from[i], way), out);
    D9D_TRY_OR(st, arrays_exchange(t, p, a, n, way), out);
    for (size_t i = 0; i < n; i++) {
        D9D_TRY_OR(st,
                   d9d_tensor_alloc(d9d_tape_device(t), a[i].t,
                                    way == SCATTER ? heads_shape(&a[i]) : positions_shape(&a[i]),
                                    &made[i]),
                   out);
        D9D_TRY_OR(st, array_unpack(t, &a[i], way, &made[i]), out);
        d9d_tensor_release(&a[i].packed);
        d9d_tensor_release(&a[i].received);
    }
    for (size_t i = 0; i < n; i++) {
        to[i] = made[i];
        made[i] = (d9d_tensor){0};
    }
out:
    arrays_release(a, n);
    for (size_t i = 0; i < n; i++)
        d9d_tensor_release(&made[i]);
    return st;
}

/* --- the ops ------------------------------------------------------------------------------- */

/* Gradients of the inputs: a transfer of the other direction.  Outputs without a gradient have none
 * on any rank. */
static d9d_status heads_dgrad(d9d_node *n, heads_direction way)
{
    const d9di_op_cp *p = n->attr;
    const d9d_tensor *from[ARRAYS] = {NULL};
    heads_array a[ARRAYS];
    d9d_tensor dx[ARRAYS];
    int of[ARRAYS];
    size_t count = 0;
    d9d_status st = D9D_OK;

    for (int i = 0; i < n->n_out; i++) {
        if (n->dout[i].storage == NULL)
            continue;
        a[count] = way == GATHER ? array_of_heads(p, &n->dout[i], d9di_op_input(n, i)->shape.dim[2])
                                 : array_of_positions(p, &n->dout[i]);
        from[count] = &n->dout[i];
        of[count++] = i;
    }
    D9D_TRY(heads_transfer(n->tape, p, a, count, way, from, dx));
    for (size_t i = 0; i < count; i++) {
        if (st == D9D_OK)
            st = d9d_node_accumulate_grad(n, of[i], &dx[i]);
        else
            d9d_tensor_release(&dx[i]);
    }
    return st;
}

static d9d_status scatter_dgrad(d9d_node *n)
{
    return heads_dgrad(n, GATHER);
}
static d9d_status gather_dgrad(d9d_node *n)
{
    return heads_dgrad(n, SCATTER);
}

static const d9d_node_ops scatter_node_ops = {.name = "cp_heads_scatter", .dgrad = scatter_dgrad};
static const d9d_node_ops gather_node_ops = {.name = "cp_heads_gather", .dgrad = gather_dgrad};

static d9d_status heads_op(d9d_tape *t, const d9d_node_ops *ops, const d9di_op_cp *p,
                           d9d_var *const *x, heads_array *a, size_t n, heads_direction way,
                           d9d_var **y)
{
    const d9d_tensor *from[ARRAYS] = {NULL};
    d9d_tensor to[ARRAYS];
    d9d_var *out[ARRAYS];
    d9d_status st = D9D_OK;
    d9d_node *node;

    for (size_t i = 0; i < n; i++)
        from[i] = d9d_var_tensor(x[i]);
    D9D_TRY(heads_transfer(t, p, a, n, way, from, to));
    for (size_t i = 0; i < n; i++) {
        if (st == D9D_OK)
            st = d9d_tape_output_take(t, &to[i], &out[i]);
        else
            d9d_tensor_release(&to[i]);
    }
    D9D_TRY(st);
    if (d9d_tape_should_record(t, x, n, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, ops, x, n, out, n, NULL, 0, sizeof(*p), &node));
        *(d9di_op_cp *)node->attr = *p;
        d9d_tape_defer_wgrad(t);
    }
    for (size_t i = 0; i < n; i++)
        y[i] = out[i];
    return D9D_OK;
}

d9d_status d9di_op_cp_heads_check(const char *op, const char *name, const d9di_op_cp *p,
                                  const d9d_tensor *x, bool shared)
{
    const int64_t n = d9d_comm_size(p->comm), heads = x->shape.dim[2];
    char text[128];

    D9D_TRY(d9di_op_cp_check(op, name, p, x));
    if (x->shape.ndim == 4 && heads > 0 &&
        (heads % n == 0 || (shared && heads < n && n % heads == 0)))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL,
                    "%s: %s %s has %lld heads, which %lld ranks of context parallelism cannot "
                    "exchange: they must divide them%s",
                    op, name, d9d_shape_text(&x->shape, text, sizeof(text)), (long long)heads,
                    (long long)n, shared ? " or be a multiple of them" : "");
}

d9d_status d9di_op_cp_heads_scatter(d9d_tape *t, const d9di_op_cp *p, d9d_var *const *x, size_t n,
                                    d9d_var **y)
{
    heads_array a[ARRAYS];

    for (size_t i = 0; i < n; i++)
        a[i] = array_of_positions(p, d9d_var_tensor(x[i]));
    return heads_op(t, &scatter_node_ops, p, x, a, n, SCATTER, y);
}

d9d_status d9di_op_cp_heads_gather(d9d_tape *t, const d9di_op_cp *p, d9d_var *x, int64_t heads,
                                   d9d_var **y)
{
    heads_array a = array_of_heads(p, d9d_var_tensor(x), heads);

    return heads_op(t, &gather_node_ops, p, &x, &a, 1, GATHER, y);
}
