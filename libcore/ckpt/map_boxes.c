/* map_boxes.c - what each operation does to views.  See map_graph.h. */
#include <inttypes.h>

#include "ckpt/map_graph.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "mapper: out of memory");
}

static const d9di_map_view *in_view(const d9di_map_infer *x, size_t k)
{
    return &x->views[x->step->in[k]];
}

static const char *in_name(const d9di_map_infer *x, size_t k)
{
    return x->m->values.data[x->step->in[k]].name;
}

static const char *describe(const d9di_map_view *v, char text[D9D_ST_DESCRIBE])
{
    d9d_st_tensor t = {.dtype = v->dtype, .ndim = v->ndim};

    for (int d = 0; d < v->ndim; d++)
        t.shape[d] = v->shape[d];
    return d9d_st_describe(&t, text);
}

/* A dimension of [0, ndim), counted from the end when negative. */
static d9d_status pick_dim(const d9di_map_infer *x, int dim, int ndim, int *out)
{
    char text[D9D_ST_DESCRIBE];

    if (dim < -ndim || dim >= ndim)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot %s dimension %d of %s", in_name(x, 0),
                        x->step->op->name, dim, describe(in_view(x, 0), text));
    *out = dim < 0 ? dim + ndim : dim;
    return D9D_OK;
}

/* --- views, boxes and dimensions --------------------------------------------------- */

/* `out` as `in` with room for n boxes. */
static d9d_status begin_view(d9di_map_view *out, const d9di_map_view *in, size_t n, d9d_arena *a)
{
    *out = *in;
    out->n = 0;
    out->boxes = d9d_arena_alloc(a, (n + 1) * sizeof(*out->boxes));
    return out->boxes == NULL ? no_memory() : D9D_OK;
}

static d9di_map_box *add_box(d9di_map_view *v, const d9di_map_box *from)
{
    v->boxes[v->n] = *from;
    return &v->boxes[v->n++];
}

static void insert_at(int64_t *array, int ndim, int dim, int64_t value)
{
    for (int d = ndim; d > dim; d--)
        array[d] = array[d - 1];
    array[dim] = value;
}

static void remove_at(int64_t *array, int ndim, int dim)
{
    for (int d = dim; d + 1 < ndim; d++)
        array[d] = array[d + 1];
    array[ndim - 1] = 0;
}

static void insert_dim(d9di_map_box *b, int ndim, int dim, int64_t start)
{
    insert_at(b->start, ndim, dim, start);
    insert_at(b->size, ndim, dim, 1);
    insert_at(b->stride, ndim, dim, 0);
}

static void remove_dim(d9di_map_box *b, int ndim, int dim)
{
    remove_at(b->start, ndim, dim);
    remove_at(b->size, ndim, dim);
    remove_at(b->stride, ndim, dim);
}

static void swap(int64_t *array, int i, int j)
{
    int64_t t = array[i];

    array[i] = array[j];
    array[j] = t;
}

d9d_status d9di_map_view_of(const d9d_st_tensor *t, uint32_t source, d9d_arena *a,
                            d9di_map_view *out)
{
    d9di_map_view whole = {.dtype = t->dtype, .ndim = t->ndim, .known = true};
    d9di_map_box box = {.source = source};
    int64_t stride = 1;

    for (int d = t->ndim - 1; d >= 0; d--) {
        whole.shape[d] = box.size[d] = t->shape[d];
        box.stride[d] = stride;
        stride *= t->shape[d];
    }
    D9D_TRY(begin_view(out, &whole, 1, a));
    (void)add_box(out, &box);
    return D9D_OK;
}

/* --- operations ---------------------------------------------------------------------- */

static d9d_status same(const d9di_map_infer *x)
{
    for (size_t k = 0; k < x->step->n_out; k++)
        x->out[k] = *in_view(x, 0);
    return D9D_OK;
}

static d9d_status transpose(const d9di_map_infer *x)
{
    const d9di_map_view *in = in_view(x, 0);
    int i = 0, j = 0;

    D9D_TRY(pick_dim(x, x->step->a, in->ndim, &i));
    D9D_TRY(pick_dim(x, x->step->b, in->ndim, &j));
    D9D_TRY(begin_view(x->out, in, in->n, x->arena));
    swap(x->out->shape, i, j);
    for (size_t k = 0; k < in->n; k++) {
        d9di_map_box *b = add_box(x->out, &in->boxes[k]);

        swap(b->start, i, j);
        swap(b->size, i, j);
        swap(b->stride, i, j);
    }
    return D9D_OK;
}

/* Parts must have one dtype and, but for dimension `except`, one shape. */
static d9d_status check_parts(const d9di_map_infer *x, int except, size_t *n_boxes)
{
    const d9di_map_view *first = in_view(x, 0);
    char a[D9D_ST_DESCRIBE], b[D9D_ST_DESCRIBE];

    *n_boxes = first->n;
    for (size_t k = 1; k < x->step->n_in; k++) {
        const d9di_map_view *v = in_view(x, k);
        bool fits = v->ndim == first->ndim && v->dtype == first->dtype;

        for (int d = 0; fits && d < v->ndim; d++)
            fits = d == except || v->shape[d] == first->shape[d];
        if (!fits)
            return D9D_FAIL(D9D_EMISMATCH, "%s: cannot %s %s with %s, which is %s", in_name(x, k),
                            x->step->op->name, describe(v, a), in_name(x, 0), describe(first, b));
        *n_boxes += v->n;
    }
    return D9D_OK;
}

static d9d_status stack(const d9di_map_infer *x)
{
    const d9di_map_view *first = in_view(x, 0);
    size_t n;
    int dim = 0;

    if (first->ndim == D9D_MAX_DIMS)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot stack a tensor of %d dimensions", in_name(x, 0),
                        first->ndim);
    D9D_TRY(pick_dim(x, x->step->a, first->ndim + 1, &dim));
    D9D_TRY(check_parts(x, -1, &n));
    D9D_TRY(begin_view(x->out, first, n, x->arena));
    insert_at(x->out->shape, x->out->ndim++, dim, x->step->n_in);
    for (size_t k = 0; k < x->step->n_in; k++)
        for (size_t i = 0; i < in_view(x, k)->n; i++)
            insert_dim(add_box(x->out, &in_view(x, k)->boxes[i]), first->ndim, dim, (int64_t)k);
    return D9D_OK;
}

static d9d_status unstack(const d9di_map_infer *x)
{
    const d9di_map_view *in = in_view(x, 0);
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->a, in->ndim, &dim));
    if (in->shape[dim] != (int64_t)x->step->n_out)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot unstack %" PRId64 " parts into %" PRIu32,
                        in_name(x, 0), in->shape[dim], x->step->n_out);
    for (uint32_t k = 0; k < x->step->n_out; k++) {
        d9di_map_view *out = &x->out[k];

        D9D_TRY(begin_view(out, in, in->n, x->arena));
        remove_at(out->shape, out->ndim--, dim);
        for (size_t i = 0; i < in->n; i++) {
            const d9di_map_box *from = &in->boxes[i];
            int64_t at = (int64_t)k - from->start[dim];
            d9di_map_box *b;

            if (at < 0 || at >= from->size[dim])
                continue;
            b = add_box(out, from);
            b->base += at * from->stride[dim];
            remove_dim(b, in->ndim, dim);
        }
    }
    return D9D_OK;
}

static d9d_status concat(const d9di_map_infer *x)
{
    const d9di_map_view *first = in_view(x, 0);
    int64_t at = 0;
    size_t n;
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->a, first->ndim, &dim));
    D9D_TRY(check_parts(x, dim, &n));
    D9D_TRY(begin_view(x->out, first, n, x->arena));
    for (size_t k = 0; k < x->step->n_in; k++) {
        const d9di_map_view *v = in_view(x, k);

        for (size_t i = 0; i < v->n; i++)
            add_box(x->out, &v->boxes[i])->start[dim] += at;
        if (__builtin_add_overflow(at, v->shape[dim], &at))
            return D9D_FAIL(D9D_EMISMATCH, "%s: the size of the whole overflows", in_name(x, k));
    }
    x->out->shape[dim] = at;
    return D9D_OK;
}

static d9d_status chunk(const d9di_map_infer *x)
{
    const d9di_map_view *in = in_view(x, 0);
    int64_t n = x->step->n_out, each;
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->a, in->ndim, &dim));
    each = in->shape[dim] / n + (in->shape[dim] % n != 0);
    if (each == 0 || each * (n - 1) >= in->shape[dim])
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: cannot chunk a dimension of %" PRId64 " into %" PRId64 " parts",
                        in_name(x, 0), in->shape[dim], n);
    for (int64_t k = 0; k < n; k++) {
        int64_t lo = k * each, hi = k == n - 1 ? in->shape[dim] : lo + each;
        d9di_map_view *out = &x->out[k];

        D9D_TRY(begin_view(out, in, in->n, x->arena));
        out->shape[dim] = hi - lo;
        for (size_t i = 0; i < in->n; i++) {
            const d9di_map_box *from = &in->boxes[i];
            int64_t first = from->start[dim] > lo ? from->start[dim] : lo;
            int64_t last = from->start[dim] + from->size[dim];
            d9di_map_box *b;

            last = last < hi ? last : hi;
            if (first >= last)
                continue;
            b = add_box(out, from);
            b->base += (first - from->start[dim]) * from->stride[dim];
            b->start[dim] = first - lo;
            b->size[dim] = last - first;
        }
    }
    return D9D_OK;
}

static d9d_status squeeze(const d9di_map_infer *x)
{
    const d9di_map_view *in = in_view(x, 0);
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->a, in->ndim, &dim));
    if (in->shape[dim] != 1)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot squeeze dimension %d of size %" PRId64,
                        in_name(x, 0), dim, in->shape[dim]);
    D9D_TRY(begin_view(x->out, in, in->n, x->arena));
    remove_at(x->out->shape, x->out->ndim--, dim);
    for (size_t i = 0; i < in->n; i++)
        remove_dim(add_box(x->out, &in->boxes[i]), in->ndim, dim);
    return D9D_OK;
}

d9d_status d9di_map_view_cast(const d9di_map_view *in, d9d_dtype to, d9d_arena *a,
                              d9di_map_view *out)
{
    if (in->dtype == to) {
        *out = *in;
        return D9D_OK;
    }
    D9D_TRY(begin_view(out, in, in->n, a));
    out->dtype = to;
    for (size_t i = 0; i < in->n; i++) {
        d9di_map_box *b = add_box(out, &in->boxes[i]);

        if (b->n_casts == D9DI_MAX_CASTS)
            return D9D_FAIL(D9D_ENOTSUP, "mapper: more than %d casts of one tensor",
                            D9DI_MAX_CASTS);
        b->casts[b->n_casts++] = to;
    }
    return D9D_OK;
}

static d9d_status cast(const d9di_map_infer *x)
{
    d9d_dtype from = in_view(x, 0)->dtype, to = (d9d_dtype)x->step->a;

    if (from != to && !d9di_can_cast(from, to))
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot cast %s to %s", in_name(x, 0),
                        d9d_dtype_word(from), d9d_dtype_word(to));
    return d9di_map_view_cast(in_view(x, 0), to, x->arena, x->out);
}

/* unsqueeze is a stack of one. */
const d9di_map_op d9di_map_ops[D9DI_N_OPS] = {
    [D9DI_IDENTITY] = {"identity", D9DI_ARGS_NONE, same},
    [D9DI_RENAME] = {"rename", D9DI_ARGS_NONE, same},
    [D9DI_TRANSPOSE] = {"transpose", D9DI_ARGS_DIMS, transpose},
    [D9DI_STACK] = {"stack", D9DI_ARGS_DIM, stack},
    [D9DI_UNSTACK] = {"unstack", D9DI_ARGS_DIM, unstack},
    [D9DI_CONCAT] = {"concat", D9DI_ARGS_DIM, concat},
    [D9DI_CHUNK] = {"chunk", D9DI_ARGS_DIM, chunk},
    [D9DI_SQUEEZE] = {"squeeze", D9DI_ARGS_DIM, squeeze},
    [D9DI_UNSQUEEZE] = {"unsqueeze", D9DI_ARGS_DIM, stack},
    [D9DI_CAST] = {"cast", D9DI_ARGS_DTYPE, cast},
    [D9DI_DROP] = {"drop", D9DI_ARGS_NONE, same},
    [D9DI_DUPLICATE] = {"duplicate", D9DI_ARGS_NONE, same},
};

d9d_status d9di_map_step_print(const d9di_map_step *s, d9d_buf *b)
{
    switch (s->op->args) {
    case D9DI_ARGS_DIM: return d9d_buf_printf(b, "%s(%d)", s->op->name, s->a);
    case D9DI_ARGS_DIMS: return d9d_buf_printf(b, "%s(%d, %d)", s->op->name, s->a, s->b);
    case D9DI_ARGS_DTYPE:
        return d9d_buf_printf(b, "%s(%s)", s->op->name, d9d_dtype_word((d9d_dtype)s->a));
    case D9DI_ARGS_NONE: break;
    }
    return d9d_buf_printf(b, "%s", s->op->name);
}
