/* map_lower.c - lowering: what each operation does to views.  See map_graph.h. */
#include <inttypes.h>

#include "ckpt/mapper/map_graph.h"
#include "d9d/tensor/tensor.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "mapper: out of memory");
}

static const d9di_mapper_view *in_view(const d9di_mapper_infer *x, size_t k)
{
    return &x->views[x->step->in[k]];
}

static const char *in_name(const d9di_mapper_infer *x, size_t k)
{
    return x->m->values.data[x->step->in[k]].name;
}

static const char *view_text(const d9di_mapper_view *v, char text[D9D_SAFETENSORS_DESCRIBE])
{
    d9d_safetensors_tensor t = {.dtype = v->dtype, .ndim = v->ndim};

    for (int d = 0; d < v->ndim; d++)
        t.shape[d] = v->shape[d];
    return d9d_safetensors_describe(&t, text);
}

/* Resolves a dimension to [0, ndim); negative ones count from the end. */
static d9d_status pick_dim(const d9di_mapper_infer *x, int dim, int ndim, int *out)
{
    char text[D9D_SAFETENSORS_DESCRIBE];

    if (dim < -ndim || dim >= ndim)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot %s dimension %d of %s", in_name(x, 0),
                        x->step->op->name, dim, view_text(in_view(x, 0), text));
    *out = dim < 0 ? dim + ndim : dim;
    return D9D_OK;
}

/* --- operations ---------------------------------------------------------------------- */

static d9d_status infer_identity(const d9di_mapper_infer *x)
{
    for (size_t k = 0; k < x->step->n_out; k++)
        x->out[k] = *in_view(x, 0);
    return D9D_OK;
}

static void swap_dims(int64_t *array, int i, int j)
{
    int64_t t = array[i];

    array[i] = array[j];
    array[j] = t;
}

static d9d_status infer_transpose(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *in = in_view(x, 0);
    int i = 0, j = 0;

    D9D_TRY(pick_dim(x, x->step->args.a, in->ndim, &i));
    D9D_TRY(pick_dim(x, x->step->args.b, in->ndim, &j));
    D9D_TRY(d9di_mapper_view_begin(x->out, in, in->n, x->arena));
    swap_dims(x->out->shape, i, j);
    for (size_t k = 0; k < in->n; k++) {
        d9di_mapper_box *b = d9di_mapper_view_add_box(x->out, &in->boxes[k]);

        swap_dims(b->start, i, j);
        swap_dims(b->size, i, j);
        swap_dims(b->step, i, j);
        swap_dims(b->stride, i, j);
    }
    return D9D_OK;
}

/* Inputs must have one dtype and, except in dimension `except`, one shape. */
static d9d_status check_inputs_alike(const d9di_mapper_infer *x, int except, size_t *n_boxes)
{
    const d9di_mapper_view *first = in_view(x, 0);
    char a[D9D_SAFETENSORS_DESCRIBE], b[D9D_SAFETENSORS_DESCRIBE];

    *n_boxes = first->n;
    for (size_t k = 1; k < x->step->n_in; k++) {
        const d9di_mapper_view *v = in_view(x, k);
        bool fits = v->ndim == first->ndim && v->dtype == first->dtype;

        for (int d = 0; fits && d < v->ndim; d++)
            fits = d == except || v->shape[d] == first->shape[d];
        if (!fits)
            return D9D_FAIL(D9D_EMISMATCH, "%s: cannot %s %s with %s, which is %s", in_name(x, k),
                            x->step->op->name, view_text(v, a), in_name(x, 0), view_text(first, b));
        *n_boxes += v->n;
    }
    return D9D_OK;
}

static d9d_status infer_stack(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *first = in_view(x, 0);
    size_t n;
    int dim = 0;

    if (first->ndim == D9D_MAX_DIMS)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot stack a tensor of %d dimensions", in_name(x, 0),
                        first->ndim);
    D9D_TRY(pick_dim(x, x->step->args.a, first->ndim + 1, &dim));
    D9D_TRY(check_inputs_alike(x, -1, &n));
    D9D_TRY(d9di_mapper_view_begin(x->out, first, n, x->arena));
    d9di_mapper_dims_insert(x->out->shape, x->out->ndim++, dim, x->step->n_in);
    for (size_t k = 0; k < x->step->n_in; k++)
        for (size_t i = 0; i < in_view(x, k)->n; i++)
            d9di_mapper_box_insert_dim(d9di_mapper_view_add_box(x->out, &in_view(x, k)->boxes[i]),
                                       first->ndim, dim, (int64_t)k);
    return D9D_OK;
}

/* The first of n parts that ends after x; part k is [bounds[k], bounds[k + 1]). */
static size_t first_bound_after(const int64_t *bounds, size_t n, int64_t x)
{
    size_t lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (bounds[mid + 1] > x)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Splits box `from` at the bounds: counts the boxes of each part, or adds them. */
static void split_box(const d9di_mapper_box *from, int dim, const int64_t *bounds, size_t n,
                      bool add, d9di_mapper_view *out)
{
    const int64_t begin = from->start[dim];
    const int64_t last = begin + (from->size[dim] - 1) * from->step[dim];

    for (size_t k = first_bound_after(bounds, n, begin); k < n && bounds[k] <= last; k++) {
        d9di_mapper_box part = *from;

        if (!d9di_mapper_box_clip(&part, dim, bounds[k], bounds[k + 1]))
            continue;
        part.start[dim] -= bounds[k];
        if (add)
            (void)d9di_mapper_view_add_box(&out[k], &part);
        else
            out[k].n++;
    }
}

/* Splits `in` along `dim` into n parts. */
static d9d_status split_view(const d9di_mapper_view *in, int dim, const int64_t *bounds, size_t n,
                             d9d_arena *a, d9di_mapper_view *out)
{
    for (size_t k = 0; k < n; k++)
        out[k] = (d9di_mapper_view){.n = 0};
    for (size_t i = 0; i < in->n; i++)
        split_box(&in->boxes[i], dim, bounds, n, false, out);
    for (size_t k = 0; k < n; k++) {
        D9D_TRY(d9di_mapper_view_begin(&out[k], in, out[k].n, a));
        out[k].shape[dim] = bounds[k + 1] - bounds[k];
    }
    for (size_t i = 0; i < in->n; i++)
        split_box(&in->boxes[i], dim, bounds, n, true, out);
    return D9D_OK;
}

/* Computes the bounds of n parts of size `each`; the last part ends at `size`. */
static d9d_status equal_bounds(const d9di_mapper_infer *x, int64_t each, int64_t size,
                               int64_t **out)
{
    const uint32_t n = x->step->n_out;

    *out = d9d_arena_alloc(x->arena, ((size_t)n + 1) * sizeof(**out));
    if (*out == NULL)
        return no_memory();
    for (uint32_t k = 0; k < n; k++)
        (*out)[k] = k * each;
    (*out)[n] = size;
    return D9D_OK;
}

static d9d_status infer_unstack(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *in = in_view(x, 0);
    int64_t *bounds;
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->args.a, in->ndim, &dim));
    if (in->shape[dim] != (int64_t)x->step->n_out)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot unstack %" PRId64 " parts into %" PRIu32,
                        in_name(x, 0), in->shape[dim], x->step->n_out);
    D9D_TRY(equal_bounds(x, 1, in->shape[dim], &bounds));
    D9D_TRY(split_view(in, dim, bounds, x->step->n_out, x->arena, x->out));
    for (uint32_t k = 0; k < x->step->n_out; k++) {
        d9di_mapper_view *out = &x->out[k];

        d9di_mapper_dims_remove(out->shape, out->ndim--, dim);
        for (size_t i = 0; i < out->n; i++)
            d9di_mapper_box_remove_dim(&out->boxes[i], in->ndim, dim);
    }
    return D9D_OK;
}

static d9d_status infer_concat(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *first = in_view(x, 0);
    int64_t at = 0;
    size_t n;
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->args.a, first->ndim, &dim));
    D9D_TRY(check_inputs_alike(x, dim, &n));
    D9D_TRY(d9di_mapper_view_begin(x->out, first, n, x->arena));
    for (size_t k = 0; k < x->step->n_in; k++) {
        const d9di_mapper_view *v = in_view(x, k);

        for (size_t i = 0; i < v->n; i++)
            d9di_mapper_view_add_box(x->out, &v->boxes[i])->start[dim] += at;
        if (__builtin_add_overflow(at, v->shape[dim], &at))
            return D9D_FAIL(D9D_EMISMATCH, "%s: the size of the whole overflows", in_name(x, k));
    }
    x->out->shape[dim] = at;
    return D9D_OK;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static d9d_status infer_chunk(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *in = in_view(x, 0);
    int64_t n = x->step->n_out, each, *bounds;
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->args.a, in->ndim, &dim));
    each = ceil_div(in->shape[dim], n);
    if (each == 0 || each * (n - 1) >= in->shape[dim])
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: cannot chunk a dimension of %" PRId64 " into %" PRId64 " parts",
                        in_name(x, 0), in->shape[dim], n);
    D9D_TRY(equal_bounds(x, each, in->shape[dim], &bounds));
    return split_view(in, dim, bounds, x->step->n_out, x->arena, x->out);
}

static d9d_status infer_split(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *in = in_view(x, 0);
    const int64_t *sizes = x->step->args.list;
    int64_t *bounds;
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->args.a, in->ndim, &dim));
    D9D_TRY(equal_bounds(x, 0, 0, &bounds));
    for (uint32_t k = 0; k < x->step->n_out; k++)
        if (__builtin_add_overflow(bounds[k], sizes[k], &bounds[k + 1]))
            return D9D_FAIL(D9D_EMISMATCH, "%s: the sizes of a split overflow", in_name(x, 0));
    if (bounds[x->step->n_out] != in->shape[dim])
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: cannot split a dimension of %" PRId64 " into parts of %" PRId64
                        " in all",
                        in_name(x, 0), in->shape[dim], bounds[x->step->n_out]);
    return split_view(in, dim, bounds, x->step->n_out, x->arena, x->out);
}

/* --- placements ---------------------------------------------------------------------- */

/* Narrows [*start, *start + *size) to the shard of coordinate `at` of `parts`. */
static void shard_bounds(int64_t parts, int64_t at, int64_t *start, int64_t *size)
{
    int64_t each = ceil_div(*size, parts);
    int64_t lo = each == 0 || at > *size / each ? *size : at * each;
    int64_t hi = each < *size - lo ? lo + each : *size;

    *start += lo;
    *size = hi - lo;
}

static d9d_status infer_distribute(const d9di_mapper_infer *x)
{
    const d9di_mapper_args *args = &x->step->args;
    d9di_mapper_view view = *in_view(x, 0), next;

    for (size_t k = 0; k < args->n; k += D9DI_AXIS_LEN) {
        const int64_t *axis = args->list + k;
        int64_t bounds[2] = {0}, size;
        int dim = 0;

        if (axis[D9DI_AXIS_DIM] == D9DI_REPLICATED)
            continue;
        D9D_TRY(pick_dim(x, (int)axis[D9DI_AXIS_DIM], view.ndim, &dim));
        size = view.shape[dim];
        shard_bounds(axis[D9DI_AXIS_SIZE], axis[D9DI_AXIS_COORD], &bounds[0], &size);
        bounds[1] = bounds[0] + size;
        D9D_TRY(split_view(&view, dim, bounds, 1, x->arena, &next));
        view = next;
    }
    x->out[0] = view;
    return D9D_OK;
}

/* One input of a gather: its position in the global tensor. */
struct mesh_shard {
    int64_t start[D9D_MAX_DIMS], size[D9D_MAX_DIMS];
    bool is_read; /* false for replicas, which are not read */
};

/* The mesh as a list: the tensor dimension that each mesh dimension shards, and the coordinates of
 * input i. */
struct mesh_list {
    size_t n;
    int dim[D9D_MAX_MESH]; /* -1: replicated */
    int64_t parts[D9D_MAX_MESH], at[D9D_MAX_MESH];
};

static d9d_status read_mesh(const d9di_mapper_infer *x, struct mesh_list *m)
{
    const d9di_mapper_args *args = &x->step->args;

    m->n = args->n / D9DI_AXIS_LEN;
    for (size_t k = 0; k < m->n; k++) {
        const int64_t *axis = args->list + k * D9DI_AXIS_LEN;

        m->parts[k] = axis[D9DI_AXIS_SIZE];
        m->dim[k] = -1;
        if (axis[D9DI_AXIS_DIM] != D9DI_REPLICATED)
            D9D_TRY(pick_dim(x, (int)axis[D9DI_AXIS_DIM], in_view(x, 0)->ndim, &m->dim[k]));
    }
    return D9D_OK;
}

static void find_shard(struct mesh_list *m, const int64_t *whole, size_t i, struct mesh_shard *out)
{
    *out = (struct mesh_shard){.is_read = true};
    memcpy(out->size, whole, sizeof(out->size));
    for (size_t k = m->n; k-- > 0; i /= (size_t)m->parts[k])
        m->at[k] = (int64_t)(i % (size_t)m->parts[k]);
    for (size_t k = 0; k < m->n; k++)
        if (m->dim[k] >= 0)
            shard_bounds(m->parts[k], m->at[k], &out->start[m->dim[k]], &out->size[m->dim[k]]);
        else
            out->is_read = out->is_read && m->at[k] == 0;
}

/* In each dimension the global size is the sum over the shards that differ only in that
 * dimension. */
static d9d_status find_whole_shape(const d9di_mapper_infer *x, struct mesh_list *m, int64_t *whole)
{
    const d9di_mapper_view *first = in_view(x, 0);

    for (int d = 0; d < first->ndim; d++) {
        whole[d] = 0;
        for (size_t i = 0; i < x->step->n_in; i++) {
            size_t rest = i;
            bool along = in_view(x, i)->ndim == first->ndim;

            for (size_t k = m->n; k-- > 0; rest /= (size_t)m->parts[k])
                along = along && (m->dim[k] == d || rest % (size_t)m->parts[k] == 0);
            if (along && __builtin_add_overflow(whole[d], in_view(x, i)->shape[d], &whole[d]))
                return D9D_FAIL(D9D_EMISMATCH, "%s: the size of the whole overflows",
                                in_name(x, i));
        }
    }
    return D9D_OK;
}

static d9d_status check_shard(const d9di_mapper_infer *x, size_t i,
                              const struct mesh_shard *mesh_shard)
{
    const d9di_mapper_view *v = in_view(x, i), *first = in_view(x, 0);
    char has[D9D_SAFETENSORS_DESCRIBE], needs[D9D_SAFETENSORS_DESCRIBE];
    d9di_mapper_view want = {.dtype = first->dtype, .ndim = first->ndim};

    memcpy(want.shape, mesh_shard->size, sizeof(want.shape));
    if (v->ndim == want.ndim && v->dtype == want.dtype &&
        memcmp(v->shape, want.shape, (size_t)want.ndim * sizeof(*want.shape)) == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH, "%s: cannot gather %s, beside the other parts it must be %s",
                    in_name(x, i), view_text(v, has), view_text(&want, needs));
}

static d9d_status infer_gather(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *first = in_view(x, 0);
    int64_t whole[D9D_MAX_DIMS] = {0};
    struct mesh_list m = {0};
    struct mesh_shard mesh_shard;
    size_t n = 0;

    for (size_t i = 0; i < x->step->n_in; i++)
        n += in_view(x, i)->n;
    D9D_TRY(read_mesh(x, &m));
    D9D_TRY(find_whole_shape(x, &m, whole));
    D9D_TRY(d9di_mapper_view_begin(x->out, first, n, x->arena));
    memcpy(x->out->shape, whole, sizeof(whole));
    for (size_t i = 0; i < x->step->n_in; i++) {
        const d9di_mapper_view *v = in_view(x, i);

        find_shard(&m, whole, i, &mesh_shard);
        D9D_TRY(check_shard(x, i, &mesh_shard));
        for (size_t k = 0; k < v->n && mesh_shard.is_read; k++) {
            d9di_mapper_box *b = d9di_mapper_view_add_box(x->out, &v->boxes[k]);

            for (int d = 0; d < v->ndim; d++)
                b->start[d] += mesh_shard.start[d];
        }
    }
    return D9D_OK;
}

/* --- one dimension as several, several as one ----------------------------------------------- */

/* Finds the sizes of an unflatten, -1 resolved; inner[k] is the product of those after size k. */
static d9d_status find_sizes(const d9di_mapper_infer *x, int64_t whole, int64_t *sizes,
                             int64_t *inner)
{
    const size_t n = x->step->args.n;
    d9d_shape asked = {.ndim = (int)n};
    char has[D9D_SAFETENSORS_DESCRIBE], text[128];
    int64_t known = 1, product = 1;
    bool fits = true;

    for (size_t k = 0; k < n; k++) {
        asked.dim[k] = sizes[k] = x->step->args.list[k];
        fits = fits && (sizes[k] == -1 || !__builtin_mul_overflow(known, sizes[k], &known));
    }
    for (size_t k = 0; k < n && fits; k++)
        if (sizes[k] == -1) {
            fits = known > 0;
            sizes[k] = fits ? whole / known : 0;
        }
    for (size_t k = n; k-- > 0 && fits;) {
        inner[k] = product;
        fits = !__builtin_mul_overflow(product, sizes[k], &product);
    }
    if (!fits || product != whole)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot unflatten dimension %d of %s into %s",
                        in_name(x, 0), x->step->args.a, view_text(in_view(x, 0), has),
                        d9d_shape_text(&asked, text, sizeof(text)));
    return D9D_OK;
}

static d9d_status infer_unflatten(const d9di_mapper_infer *x)
{
    d9di_mapper_view view = *in_view(x, 0), next;
    const size_t n = x->step->args.n;
    int64_t sizes[D9D_MAX_DIMS], inner[D9D_MAX_DIMS];
    int dim = 0;

    D9D_TRY(pick_dim(x, x->step->args.a, view.ndim, &dim));
    if (n > D9D_MAX_DIMS || (size_t)view.ndim - 1 + n > D9D_MAX_DIMS)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: cannot unflatten a dimension of a tensor of %d into %zu, it has at "
                        "most %d dimensions",
                        in_name(x, 0), view.ndim, n, D9D_MAX_DIMS);
    D9D_TRY(find_sizes(x, view.shape[dim], sizes, inner));
    for (size_t k = 0; k + 1 < n; k++, dim++) {
        D9D_TRY(d9di_mapper_view_unflatten(&view, dim, sizes[k], inner[k], x->arena, &next));
        view = next;
    }
    x->out[0] = view;
    return D9D_OK;
}

static d9d_status infer_flatten(const d9di_mapper_infer *x)
{
    const d9di_mapper_args *args = &x->step->args;
    d9di_mapper_view view = *in_view(x, 0), next;
    char text[D9D_SAFETENSORS_DESCRIBE];
    int first = 0, last = 0;

    D9D_TRY(pick_dim(x, args->a, view.ndim, &first));
    D9D_TRY(pick_dim(x, args->b, view.ndim, &last));
    if (first > last)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot flatten dimensions %d to %d of %s",
                        in_name(x, 0), args->a, args->b, view_text(&view, text));
    for (int d = last - 1; d >= first; d--) {
        int64_t size;

        if (__builtin_mul_overflow(view.shape[d], view.shape[d + 1], &size))
            return D9D_FAIL(D9D_EMISMATCH, "%s: the size of the whole overflows", in_name(x, 0));
        D9D_TRY(d9di_mapper_view_flatten(&view, d, x->arena, &next));
        view = next;
    }
    x->out[0] = view;
    return D9D_OK;
}

/* --- dimensions of size 1, types ---------------------------------------------------------- */

static d9d_status infer_squeeze(const d9di_mapper_infer *x)
{
    const d9di_mapper_view *in = in_view(x, 0);
    const bool all = x->step->args.a == D9D_SQUEEZE_ALL;
    int dim = 0;

    if (!all)
        D9D_TRY(pick_dim(x, x->step->args.a, in->ndim, &dim));
    if (!all && in->shape[dim] != 1)
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot squeeze dimension %d of size %" PRId64,
                        in_name(x, 0), dim, in->shape[dim]);
    D9D_TRY(d9di_mapper_view_begin(x->out, in, in->n, x->arena));
    for (size_t i = 0; i < in->n; i++)
        (void)d9di_mapper_view_add_box(x->out, &in->boxes[i]);
    for (int d = in->ndim - 1; d >= 0; d--) {
        if (all ? in->shape[d] != 1 : d != dim)
            continue;
        for (size_t i = 0; i < in->n; i++)
            d9di_mapper_box_remove_dim(&x->out->boxes[i], x->out->ndim, d);
        d9di_mapper_dims_remove(x->out->shape, x->out->ndim--, d);
    }
    return D9D_OK;
}

static d9d_status infer_cast(const d9di_mapper_infer *x)
{
    d9d_dtype from = in_view(x, 0)->dtype, to = (d9d_dtype)x->step->args.a;

    if (from != to && !d9di_cast_is_supported(from, to))
        return D9D_FAIL(D9D_EMISMATCH, "%s: cannot cast %s to %s", in_name(x, 0),
                        d9d_dtype_name(from), d9d_dtype_name(to));
    return d9di_mapper_view_cast(in_view(x, 0), to, x->arena, x->out);
}

/* --- printing ------------------------------------------------------------------ */

static d9d_status print_dim(const d9di_mapper_args *args, d9d_buf *b)
{
    return args->a == D9D_SQUEEZE_ALL ? D9D_OK : d9d_buf_printf(b, "(%d)", args->a);
}

static d9d_status print_dims(const d9di_mapper_args *args, d9d_buf *b)
{
    return d9d_buf_printf(b, "(%d, %d)", args->a, args->b);
}

static d9d_status print_dtype(const d9di_mapper_args *args, d9d_buf *b)
{
    return d9d_buf_printf(b, "(%s)", d9d_dtype_name((d9d_dtype)args->a));
}

static d9d_status print_sizes(const d9di_mapper_args *args, d9d_buf *b)
{
    D9D_TRY(d9d_buf_printf(b, "(%d, [", args->a));
    for (size_t i = 0; i < args->n; i++)
        D9D_TRY(d9d_buf_printf(b, "%s%" PRId64, i > 0 ? ", " : "", args->list[i]));
    return d9d_buf_printf(b, "])");
}

/* "(shard(0) 1/4, replicate 0/2)", "(shard(0) /4, replicate /2)" */
static d9d_status print_axes(const d9di_mapper_args *args, bool at, d9d_buf *b)
{
    for (size_t k = 0; k < args->n; k += D9DI_AXIS_LEN) {
        const int64_t *axis = args->list + k;

        D9D_TRY(d9d_buf_printf(b, "%s", k > 0 ? ", " : "("));
        if (axis[D9DI_AXIS_DIM] == D9DI_REPLICATED)
            D9D_TRY(d9d_buf_printf(b, "replicate "));
        else
            D9D_TRY(d9d_buf_printf(b, "shard(%" PRId64 ") ", axis[D9DI_AXIS_DIM]));
        if (at)
            D9D_TRY(d9d_buf_printf(b, "%" PRId64, axis[D9DI_AXIS_COORD]));
        D9D_TRY(d9d_buf_printf(b, "/%" PRId64, axis[D9DI_AXIS_SIZE]));
    }
    return d9d_buf_printf(b, ")");
}

static d9d_status print_coordinate(const d9di_mapper_args *args, d9d_buf *b)
{
    return print_axes(args, true, b);
}

static d9d_status print_mesh(const d9di_mapper_args *args, d9d_buf *b)
{
    return print_axes(args, false, b);
}

/* unsqueeze is a stack of one tensor. */
const d9di_mapper_op d9di_mapper_ops[D9DI_N_OPS] = {
    [D9DI_IDENTITY] = {"identity", NULL, infer_identity},
    [D9DI_RENAME] = {"rename", NULL, infer_identity},
    [D9DI_TRANSPOSE] = {"transpose", print_dims, infer_transpose},
    [D9DI_STACK] = {"stack", print_dim, infer_stack},
    [D9DI_UNSTACK] = {"unstack", print_dim, infer_unstack},
    [D9DI_CONCAT] = {"concat", print_dim, infer_concat},
    [D9DI_CHUNK] = {"chunk", print_dim, infer_chunk},
    [D9DI_SPLIT] = {"split", print_sizes, infer_split},
    [D9DI_SQUEEZE] = {"squeeze", print_dim, infer_squeeze},
    [D9DI_UNSQUEEZE] = {"unsqueeze", print_dim, infer_stack},
    [D9DI_CAST] = {"cast", print_dtype, infer_cast},
    [D9DI_DROP] = {"drop", NULL, infer_identity},
    [D9DI_DUPLICATE] = {"duplicate", NULL, infer_identity},
    [D9DI_DISTRIBUTE] = {"distribute", print_coordinate, infer_distribute},
    [D9DI_GATHER] = {"gather", print_mesh, infer_gather},
    [D9DI_UNFLATTEN] = {"unflatten", print_sizes, infer_unflatten},
    [D9DI_FLATTEN] = {"flatten", print_dims, infer_flatten},
};

d9d_status d9di_mapper_step_print(const d9di_mapper_step *s, d9d_buf *b)
{
    D9D_TRY(d9d_buf_printf(b, "%s", s->op->name));
    return s->op->print != NULL ? s->op->print(&s->args, b) : D9D_OK;
}
