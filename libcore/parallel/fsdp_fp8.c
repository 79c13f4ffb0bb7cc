/* fsdp_fp8.c - see parallel/fsdp_fp8.h. */
#include "parallel/fsdp_fp8.h"

bool d9di_fsdp_fp8_is_used(const d9d_param *p, bool float8_all_gather)
{
    const d9d_param_adapter *a = p->peft.adapter;

    return float8_all_gather && !p->spec.reads_data && p->placement.shard_group != NULL &&
           p->fp8.recipe != NULL && (a == NULL || !a->reads_matrix);
}

/* A part as a matrix [M, N], and where its rows and columns lie among those of the full parameter.
 */
typedef struct matrix {
    int64_t m, n, row, col;
    int64_t group, skip; /* d9d_fp8_maxima */
} matrix;

static matrix matrix_of(const d9d_shape *s)
{
    const int64_t n = s->dim[s->ndim - 1];

    return (matrix){.m = n > 0 ? d9d_shape_numel(s) / n : 0, .n = n};
}

static matrix full_matrix(const d9d_param *p)
{
    return matrix_of(&p->local.shape);
}

static matrix shard_matrix(const d9d_param *p)
{
    const int dim = p->placement.shard_dim, last = p->local.shape.ndim - 1;
    matrix s = matrix_of(&p->shard.shape);
    int64_t first, count, inner = 1;

    d9d_param_split(&p->local.shape, dim, d9d_comm_size(p->placement.shard_group),
                    d9d_comm_rank(p->placement.shard_group), &first, &count);
    if (dim == last) {
        s.col = first;
        return s;
    }
    for (int d = dim + 1; d < last; d++)
        inner *= p->local.shape.dim[d];
    s.row = first * inner;
    if (dim > 0) {
        s.group = count * inner;
        s.skip = (p->local.shape.dim[dim] - count) * inner;
    }
    return s;
}

static bool by_row(const d9d_param *p)
{
    return p->fp8.recipe->scaling == D9D_SCALE_ROWWISE;
}

int64_t d9di_fsdp_fp8_maxima_count(const d9d_param *p)
{
    const matrix all = full_matrix(p);

    return by_row(p) ? all.m + all.n : 1;
}

/* Those of the shard: [all], or [rows of the full parameter, columns]. */
static d9d_fp8_maxima shard_maxima(const d9d_param *p, int32_t *maxima)
{
    const matrix s = shard_matrix(p);

    return by_row(p) ? (d9d_fp8_maxima){.rows = maxima + s.row,
                                        .cols = maxima + full_matrix(p).m + s.col,
                                        .group = s.group,
                                        .skip = s.skip}
                     : (d9d_fp8_maxima){.all = maxima};
}

/* Fold the shard into the maxima of the full parameter. */
static d9d_status shard_fold(const d9d_param *p, d9d_device *dev, int32_t *maxima)
{
    const matrix s = shard_matrix(p);
    const d9d_fp8_maxima to = shard_maxima(p, maxima);

    return s.m == 0 || s.n == 0
               ? D9D_OK
               : dev->kernels->fp8->amax(d9d_comm_stream(p->placement.shard_group), p->spec.dtype,
                                         d9d_tensor_data(&p->shard.data), s.m, s.n, &to);
}

d9d_status d9di_fsdp_fp8_maxima_find(d9di_fsdp_fp8_maxima *a, d9di_fsdp_param *t,
                                     d9d_param *const *p, size_t n, d9d_device *dev)
{
    d9d_comm *c = p[0]->placement.shard_group;
    int32_t *at;

    if (a->n == 0 || a->is_current)
        return D9D_OK;
    if (a->data.storage == NULL)
        D9D_TRY(d9d_tensor_alloc(dev, D9D_I32, D9D_SHAPE(a->n), &a->data));
    at = d9d_tensor_data(&a->data);
    D9D_TRY(dev->kernels->elementwise->fill(d9d_comm_stream(c), D9D_F32, at, a->n, 0.0f));
    for (size_t i = 0; i < n; i++) {
        if (p[i]->fp8.gather == NULL)
            continue;
        t[i].fp8.maxima = at;
        D9D_TRY(shard_fold(p[i], dev, at));
        at += d9di_fsdp_fp8_maxima_count(p[i]);
    }
    D9D_TRY(d9d_comm_all_reduce(c, d9d_comm_stream(c), p[0]->name, D9D_I32,
                                d9d_tensor_data(&a->data), a->n, D9D_COMM_MAX));
    a->is_current = true;
    return D9D_OK;
}

/* --- which copies ----------------------------------------------------------------------------- */

/* Matrices of experts are stored [in, out], others [out, in]. */
unsigned d9di_fsdp_fp8_wanted(const d9d_param *p, bool forward)
{
    return forward == (p->local.shape.ndim == 2) ? D9DI_FSDP_FP8_ROWS : D9DI_FSDP_FP8_COLS;
}

unsigned d9di_fsdp_fp8_missing(const d9d_param *p, unsigned wanted)
{
    const unsigned have =
        (d9d_quantised_is_empty(&p->fp8.rows) ? 0u : (unsigned)D9DI_FSDP_FP8_ROWS) |
        (d9d_quantised_is_empty(&p->fp8.cols) ? 0u : (unsigned)D9DI_FSDP_FP8_COLS);

    return wanted & ~have;
}

/* --- unshard ---------------------------------------------------------------------------------- */

/* Gather the bytes that are rounded under the scales of one kind; other maxima are ignored. */
static d9d_status bytes_gather(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev,
                               const d9d_fp8_maxima *by, d9d_tensor *out)
{
    d9d_comm *c = p->placement.shard_group;
    d9d_stream stream = d9d_comm_stream(c);
    const matrix s = shard_matrix(p);
    const d9d_dtype f = p->fp8.recipe->format;
    char *bytes, *own;

    D9D_TRY(d9di_fsdp_param_gathered_alloc(t, p, dev, f, out));
    bytes = d9d_tensor_data(out);
    own = bytes + d9di_fsdp_param_own_place(t, p);
    if (s.m > 0 && s.n > 0)
        D9D_TRY(dev->kernels->fp8->encode(stream, p->spec.dtype, d9d_tensor_data(&p->shard.data),
                                          s.m, s.n, by, f, own));
    return d9d_comm_all_gather(c, stream, p->name, f, bytes, own,
                               t->padded_counts != NULL ? t->padded_counts : t->counts);
}

d9d_status d9di_fsdp_fp8_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    const unsigned coming = t->fp8.coming;
    const d9d_fp8_maxima all = shard_maxima(p, t->fp8.maxima);
    d9d_fp8_maxima rows = all, cols = all;

    rows.cols = cols.rows = NULL;
    if (!by_row(p)) /* rows come with cols, and stay */
        return coming != 0 && d9d_quantised_is_empty(&p->fp8.rows)
                   ? bytes_gather(t, p, dev, &all, &t->staging)
                   : D9D_OK;
    if ((coming & D9DI_FSDP_FP8_ROWS) != 0)
        D9D_TRY(bytes_gather(t, p, dev, &rows, &t->staging));
    return (coming & D9DI_FSDP_FP8_COLS) != 0 ? bytes_gather(t, p, dev, &cols, &t->fp8.cols_staging)
                                              : D9D_OK;
}

/* The gathered bytes [M, N] of the full parameter. */
static d9d_status bytes_take(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev, d9d_tensor *from,
                             d9d_tensor *out)
{
    const matrix all = full_matrix(p);

    D9D_TRY(d9di_fsdp_param_gathered_take(t, p, dev, from, out));
    out->shape = D9D_SHAPE(all.m, all.n);
    return D9D_OK;
}

static d9d_status scales_make(const d9d_param *p, d9d_device *dev, const int32_t *maxima, int64_t n,
                              d9d_tensor *out)
{
    D9D_TRY(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(n), out));
    return dev->kernels->fp8->scales(dev->stream, p->fp8.recipe->format, maxima, n,
                                     d9d_tensor_data(out));
}

static d9d_status rows_make(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    d9d_quantised *q = &p->fp8.rows;

    q->scale_by_row = by_row(p);
    D9D_TRY(bytes_take(t, p, dev, &t->staging, &q->data));
    return scales_make(p, dev, t->fp8.maxima, by_row(p) ? full_matrix(p).m : 1, &q->scale);
}

/* Of the bytes x [M, N]. */
static d9d_status cols_make_of(const d9di_fsdp_param *t, d9d_param *p, d9d_device *dev,
                               const d9d_tensor *x)
{
    const matrix all = full_matrix(p);
    d9d_quantised *q = &p->fp8.cols;

    q->scale_by_row = by_row(p);
    D9D_TRY(scales_make(p, dev, t->fp8.maxima + (by_row(p) ? all.m : 0), by_row(p) ? all.n : 1,
                        &q->scale));
    D9D_TRY(d9d_tensor_alloc(dev, p->fp8.recipe->format, D9D_SHAPE(all.n, d9d_fp8_padded(all.m)),
                             &q->data));
    return dev->kernels->fp8->transpose(dev->stream, d9d_tensor_data(x), all.m, all.n,
                                        d9d_tensor_data(&q->data));
}

static d9d_status cols_make(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    d9d_tensor bytes = {0};
    d9d_status st;

    if (!by_row(p))
        return cols_make_of(t, p, dev, &p->fp8.rows.data);
    D9D_TRY_OR(st, bytes_take(t, p, dev, &t->fp8.cols_staging, &bytes), out);
    st = cols_make_of(t, p, dev, &bytes);
out:
    d9d_tensor_release(&bytes);
    return st;
}

d9d_status d9di_fsdp_fp8_finish(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    const unsigned coming = t->fp8.coming;

    t->fp8.coming = 0;
    if (t->staging.storage != NULL)
        D9D_TRY(rows_make(t, p, dev));
    return (coming & D9DI_FSDP_FP8_COLS) != 0 ? cols_make(t, p, dev) : D9D_OK;
}
