/* map_view.c - views and boxes: what operations do to their dimensions.  See map_graph.h. */
#include "ckpt/mapper/map_graph.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "mapper: out of memory");
}

/* --- views, boxes and dimensions ------------------------------------------------------------- */

d9d_status d9di_mapper_view_begin(d9di_mapper_view *out, const d9di_mapper_view *in, size_t n,
                                  d9d_arena *a)
{
    if (n > D9DI_MAX_BOXES)
        return D9D_FAIL(D9D_ENOTSUP, "mapper: a tensor of %zu boxes, %d are possible", n,
                        (int)D9DI_MAX_BOXES);
    *out = *in;
    out->n = 0;
    out->boxes = d9d_arena_alloc(a, (n + 1) * sizeof(*out->boxes));
    return out->boxes == NULL ? no_memory() : D9D_OK;
}

d9di_mapper_box *d9di_mapper_view_add_box(d9di_mapper_view *v, const d9di_mapper_box *from)
{
    v->boxes[v->n] = *from;
    return &v->boxes[v->n++];
}

void d9di_mapper_dims_insert(int64_t *array, int ndim, int dim, int64_t value)
{
    for (int d = ndim; d > dim; d--)
        array[d] = array[d - 1];
    array[dim] = value;
}

void d9di_mapper_dims_remove(int64_t *array, int ndim, int dim)
{
    for (int d = dim; d + 1 < ndim; d++)
        array[d] = array[d + 1];
    array[ndim - 1] = 0;
}

void d9di_mapper_box_insert_dim(d9di_mapper_box *b, int ndim, int dim, int64_t start)
{
    d9di_mapper_dims_insert(b->start, ndim, dim, start);
    d9di_mapper_dims_insert(b->size, ndim, dim, 1);
    d9di_mapper_dims_insert(b->step, ndim, dim, 1);
    d9di_mapper_dims_insert(b->stride, ndim, dim, 0);
}

void d9di_mapper_box_remove_dim(d9di_mapper_box *b, int ndim, int dim)
{
    d9di_mapper_dims_remove(b->start, ndim, dim);
    d9di_mapper_dims_remove(b->size, ndim, dim);
    d9di_mapper_dims_remove(b->step, ndim, dim);
    d9di_mapper_dims_remove(b->stride, ndim, dim);
}

/* How many indices of a box are before x. */
static int64_t count_before(const d9di_mapper_box *b, int d, int64_t x)
{
    int64_t n = x - b->start[d];

    if (n <= 0)
        return 0;
    if (b->step[d] > 1)
        n = (n - 1) / b->step[d] + 1;
    return n < b->size[d] ? n : b->size[d];
}

bool d9di_mapper_box_clip(d9di_mapper_box *b, int d, int64_t lo, int64_t hi)
{
    const int64_t first = count_before(b, d, lo), end = count_before(b, d, hi);

    if (first >= end)
        return false;
    b->base += first * b->stride[d];
    b->start[d] += first * b->step[d];
    b->size[d] = end - first;
    b->step[d] = b->size[d] > 1 ? b->step[d] : 1;
    return true;
}

d9d_status d9di_mapper_view_tensor(const d9d_safetensors_tensor *t, uint32_t source, d9d_arena *a,
                                   d9di_mapper_view *out)
{
    d9di_mapper_view whole = {.dtype = t->dtype, .ndim = t->ndim, .known = true};
    d9di_mapper_box box = {.source = source};
    int64_t stride = 1;

    for (int d = t->ndim - 1; d >= 0; d--) {
        whole.shape[d] = box.size[d] = t->shape[d];
        box.step[d] = 1;
        box.stride[d] = stride;
        stride *= t->bytes > 0 ? t->shape[d] : 1;
    }
    D9D_TRY(d9di_mapper_view_begin(out, &whole, 1, a));
    if (t->bytes > 0)
        (void)d9di_mapper_view_add_box(out, &box);
    return D9D_OK;
}

d9d_status d9di_mapper_view_cast(const d9di_mapper_view *in, d9d_dtype to, d9d_arena *a,
                                 d9di_mapper_view *out)
{
    if (in->dtype == to) {
        *out = *in;
        return D9D_OK;
    }
    D9D_TRY(d9di_mapper_view_begin(out, in, in->n, a));
    out->dtype = to;
    for (size_t i = 0; i < in->n; i++) {
        d9di_mapper_box *b = d9di_mapper_view_add_box(out, &in->boxes[i]);

        if (b->n_casts == D9DI_MAX_CASTS)
            return D9D_FAIL(D9D_ENOTSUP, "mapper: more than %d casts of one tensor",
                            D9DI_MAX_CASTS);
        b->casts[b->n_casts++] = to;
    }
    return D9D_OK;
}

/* --- one dimension as several, several as one ----------------------------------------------- */

/* The part of a box from its index `at` of dimension dim on, which lies in one row or consists of
 * rows alike: `rows` times `cols` indices.  Dimension dim becomes the rows and the columns of
 * `inner`. */
static void add_rows(const d9di_mapper_box *from, int ndim, int dim, int64_t inner, int64_t at,
                     int64_t rows, int64_t cols, d9di_mapper_view *out)
{
    const int64_t step = from->step[dim], stride = from->stride[dim];
    const int64_t first = from->start[dim] + at * step;
    d9di_mapper_box *b = d9di_mapper_view_add_box(out, from);

    d9di_mapper_box_insert_dim(b, ndim, dim, first / inner);
    b->base += at * stride;
    b->size[dim] = rows;
    b->step[dim] = rows > 1 ? cols * step / inner : 1;
    b->stride[dim] = rows > 1 ? cols * stride : 0;
    b->start[dim + 1] = first % inner;
    b->size[dim + 1] = cols;
    b->step[dim + 1] = cols > 1 ? step : 1;
}

/* Divides dimension dim of a box into rows of `inner`: counts the boxes that result, or adds them.
 * Rows are alike if the columns of one are followed by the same ones of a later row.  So a box
 * becomes three at most if its steps are 1: a partial row, whole rows, a partial row. */
static void unflatten_box(const d9di_mapper_box *b, int ndim, int dim, int64_t inner, bool add,
                          d9di_mapper_view *out)
{
    const int64_t step = b->step[dim];
    int64_t rows, cols;

    for (int64_t at = 0; at < b->size[dim]; at += rows * cols) {
        const int64_t left = b->size[dim] - at;

        cols = (inner - 1 - (b->start[dim] + at * step) % inner) / step + 1;
        cols = cols < left ? cols : left;
        rows = cols * step % inner == 0 ? left / cols : 1;
        if (add)
            add_rows(b, ndim, dim, inner, at, rows, cols, out);
        else if (++out->n > D9DI_MAX_BOXES)
            return;
    }
}

/* Merging dimension dim + 1, of size `inner`, into dim: is the result one box? */
static bool is_mergeable(const d9di_mapper_box *b, int dim, int64_t inner)
{
    if (b->size[dim] == 1 || b->size[dim + 1] == 1)
        return true;
    return b->step[dim] * inner == b->size[dim + 1] * b->step[dim + 1] &&
           b->stride[dim] == b->size[dim + 1] * b->stride[dim + 1];
}

static void merge_dims(d9di_mapper_box *b, int ndim, int dim, int64_t inner)
{
    const bool is_column = b->size[dim + 1] == 1;

    b->start[dim] = b->start[dim] * inner + b->start[dim + 1];
    b->step[dim] = is_column ? b->step[dim] * inner : b->step[dim + 1];
    b->stride[dim] = is_column ? b->stride[dim] : b->stride[dim + 1];
    b->size[dim] *= b->size[dim + 1];
    b->step[dim] = b->size[dim] > 1 ? b->step[dim] : 1;
    d9di_mapper_box_remove_dim(b, ndim, dim + 1);
}

/* Merges dimension dim + 1, of size `inner`, into dim: counts the boxes that result, or adds them.
 * What is not one box is divided along the shorter of the two dimensions. */
static void flatten_box(const d9di_mapper_box *from, int ndim, int dim, int64_t inner, bool add,
                        d9di_mapper_view *out)
{
    const int cut = from->size[dim] <= from->size[dim + 1] ? dim : dim + 1;
    const int64_t n = is_mergeable(from, dim, inner) ? 1 : from->size[cut];

    if (!add) {
        out->n += (size_t)n;
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        d9di_mapper_box *b = d9di_mapper_view_add_box(out, from);

        if (n > 1) {
            b->base += k * b->stride[cut];
            b->start[cut] += k * b->step[cut];
            b->size[cut] = b->step[cut] = 1;
        }
        merge_dims(b, ndim, dim, inner);
    }
}

typedef void (*reshape_fn)(const d9di_mapper_box *b, int ndim, int dim, int64_t inner, bool add,
                           d9di_mapper_view *out);

/* Calls `reshape` for every box of the view. */
static d9d_status reshape_view(const d9di_mapper_view *in, int dim, int64_t inner,
                               reshape_fn reshape, d9d_arena *a, d9di_mapper_view *out)
{
    d9di_mapper_view count = {.n = 0};

    for (size_t i = 0; i < in->n && count.n <= D9DI_MAX_BOXES; i++)
        reshape(&in->boxes[i], in->ndim, dim, inner, false, &count);
    D9D_TRY(d9di_mapper_view_begin(out, in, count.n, a));
    for (size_t i = 0; i < in->n; i++)
        reshape(&in->boxes[i], in->ndim, dim, inner, true, out);
    return D9D_OK;
}

d9d_status d9di_mapper_view_unflatten(const d9di_mapper_view *in, int dim, int64_t outer,
                                      int64_t inner, d9d_arena *a, d9di_mapper_view *out)
{
    D9D_TRY(reshape_view(in, dim, inner, unflatten_box, a, out));
    d9di_mapper_dims_insert(out->shape, out->ndim++, dim, outer);
    out->shape[dim + 1] = inner;
    return D9D_OK;
}

d9d_status d9di_mapper_view_flatten(const d9di_mapper_view *in, int dim, d9d_arena *a,
                                    d9di_mapper_view *out)
{
    const int64_t inner = in->shape[dim + 1];

    D9D_TRY(reshape_view(in, dim, inner, flatten_box, a, out));
    d9di_mapper_dims_remove(out->shape, out->ndim--, dim + 1);
    out->shape[dim] *= inner;
    return D9D_OK;
}
