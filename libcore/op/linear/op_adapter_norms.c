/* op_adapter_norms.c - |V_i| for rows i of V = W + s B A.  W [n, K], A [r, K], B [n, r].
 *
 *     |V_i|^2 = |W_i|^2 + sum over k of B_ik (2 s P_ik + s^2 Q_ik)      P = W A^T, Q = B (A A^T)
 *
 * So V is not computed.  Each term is a sum over the K columns that this rank has; the sum over
 * ranks that have others follows.  Float32 throughout; W is read in blocks of rows.
 */
#include "op/linear/op_adapter.h"

enum { BLOCK = 1 << 22 }; /* elements of W that are squared at a time */

/* Of one call: arrays of float32. */
typedef struct norms {
    d9d_tape *t;
    const d9d_param *w, *a, *b;
    int64_t first, n, k, r;
    float scale;
    d9d_tensor square; /* [n] */
    d9d_tensor up;     /* B [n, r] */
    d9d_tensor p, q;   /* [n, r] */
    d9d_tensor gram;   /* A A^T [r, r] */
} norms;

static d9d_status f32_alloc(const norms *m, d9d_shape shape, d9d_tensor *out)
{
    return d9d_tensor_alloc(d9d_tape_device(m->t), D9D_F32, shape, out);
}

static d9d_status f32_cast(const norms *m, const d9d_tensor *x, int64_t first, int64_t rows,
                           const d9d_tensor *y)
{
    return D9DI_KERNEL(m->t, elementwise->cast, D9D_F32, d9d_tensor_data(y), x->dtype,
                       d9di_op_row_ptr(x, first), rows * d9di_op_last_dim(&x->shape));
}

/* y = f(x, ...) of n numbers each. */
static d9d_status f32_map(const norms *m, d9d_pointwise f, const float *x, const float *with,
                          int64_t n, float *y)
{
    const d9d_pointwise_input dense = {.t = D9D_F32, .stride = {1}};
    const d9d_pointwise_dims d = {.f = f,
                                  .of = D9D_POINTWISE_VALUE,
                                  .ndim = 1,
                                  .dim = {n},
                                  .yt = D9D_F32,
                                  .x = {dense, dense}};
    const void *const in[D9D_POINTWISE_INPUTS] = {x, with};

    return D9DI_KERNEL(m->t, math->pointwise, &d, y, in);
}

static d9d_status f32_row_sums(const norms *m, const float *x, int64_t rows, int64_t columns,
                               float *y)
{
    const d9d_reduce_axis_dims d = {
        .kind = D9D_REDUCE_SUM, .t = D9D_F32, .m = rows, .r = columns, .n = 1};

    return D9DI_KERNEL(m->t, math->reduce_axis, &d, y, x);
}

/* square = |W_i|^2 */
static d9d_status matrix_squares(norms *m)
{
    const int64_t block = m->k < BLOCK ? BLOCK / (m->k > 0 ? m->k : 1) : 1;
    d9d_tensor rows;
    d9d_status st = D9D_OK;

    D9D_TRY(f32_alloc(m, D9D_SHAPE(block < m->n ? block : m->n, m->k), &rows));
    for (int64_t i = 0; i < m->n && st == D9D_OK; i += block) {
        const int64_t some = m->n - i < block ? m->n - i : block;
        float *x = d9d_tensor_data(&rows);

        D9D_TRY_OR(st, f32_cast(m, &m->w->local.data, m->first + i, some, &rows), out);
        D9D_TRY_OR(st, f32_map(m, D9D_POINTWISE_SQUARE, x, NULL, some * m->k, x), out);
        st = f32_row_sums(m, x, some, m->k, (float *)d9d_tensor_data(&m->square) + i);
    }
out:
    d9d_tensor_release(&rows);
    return st;
}

/* c [M, N] = a [M, K] b [N, K]^T in float32 */
static d9d_status product(const norms *m, d9d_dtype t, const void *a, const void *b, int64_t rows,
                          int64_t columns, int64_t k, bool trans_b, const d9d_tensor *c)
{
    const d9d_gemm g = {.t = t, .ct = D9D_F32, .trans_b = trans_b, .m = rows, .n = columns, .k = k};

    return D9DI_KERNEL(m->t, gemm->dense, &g, a, b, d9d_tensor_data(c));
}

/* square += sum over k of B (2 s P + s^2 Q) */
static d9d_status change_squares(norms *m)
{
    const d9d_tensor *a = &m->a->local.data, *w = &m->w->local.data;
    const int64_t all = m->n * m->r;
    float *p, *q, *square = d9d_tensor_data(&m->square);

    D9D_TRY(f32_alloc(m, D9D_SHAPE(m->n, m->r), &m->up));
    D9D_TRY(f32_alloc(m, D9D_SHAPE(m->n, m->r), &m->p));
    D9D_TRY(f32_alloc(m, D9D_SHAPE(m->n, m->r), &m->q));
    D9D_TRY(f32_alloc(m, D9D_SHAPE(m->r, m->r), &m->gram));
    p = d9d_tensor_data(&m->p);
    q = d9d_tensor_data(&m->q);
    D9D_TRY(f32_cast(m, &m->b->local.data, m->first, m->n, &m->up));
    D9D_TRY(product(m, w->dtype, d9di_op_row_ptr(w, m->first), d9d_tensor_data(a), m->n, m->r, m->k,
                    true, &m->p));
    D9D_TRY(product(m, a->dtype, d9d_tensor_data(a), d9d_tensor_data(a), m->r, m->r, m->k, true,
                    &m->gram));
    D9D_TRY(product(m, D9D_F32, d9d_tensor_data(&m->up), d9d_tensor_data(&m->gram), m->n, m->r,
                    m->r, false, &m->q));
    D9D_TRY(D9DI_KERNEL(m->t, elementwise->axpy, D9D_F32, p, 2 * m->scale, p, NULL, all));
    D9D_TRY(D9DI_KERNEL(m->t, elementwise->axpy, D9D_F32, q, m->scale * m->scale, q, p, all));
    D9D_TRY(f32_map(m, D9D_POINTWISE_MUL, q, d9d_tensor_data(&m->up), all, q));
    D9D_TRY(f32_row_sums(m, q, m->n, m->r, p));
    return f32_map(m, D9D_POINTWISE_ADD, square, p, m->n, square);
}

static d9d_status squares_sum(const norms *m)
{
    d9d_comm *others = m->w->placement.slice_group;
    d9d_device *dev = d9d_tape_device(m->t);

    if (others == NULL || m->w->local.shape.dim[1] == m->w->spec.shape.dim[1])
        return D9D_OK;
    return d9d_comm_all_reduce(others, dev->stream, d9di_op_param_name(m->w), D9D_F32,
                               d9d_tensor_data(&m->square), m->n, D9D_COMM_SUM);
}

d9d_status d9di_op_adapter_norms(d9d_tape *t, const d9d_param *w, const d9di_op_rows_of *a,
                                 d9d_tensor *out)
{
    const d9d_param_adapter *ad = d9d_tape_adapter(t, w);
    norms m = {.t = t,
               .w = w,
               .a = ad->param[D9D_ADAPTER_A],
               .b = ad->param[D9D_ADAPTER_B],
               .first = a->first,
               .n = a->n,
               .k = w->local.shape.dim[1],
               .r = ad->r,
               .scale = ad->scale};
    float *square;
    d9d_status st;

    if (w->spec.stored != D9D_QUANT_NONE)
        return D9D_FAIL(D9D_ENOTSUP, "linear: %s is quantised, and its adapter reads its numbers",
                        d9di_op_param_name(w));
    D9D_TRY(f32_alloc(&m, D9D_SHAPE(m.n), &m.square));
    square = d9d_tensor_data(&m.square);
    D9D_TRY_OR(st, matrix_squares(&m), out);
    if (m.a != NULL)
        D9D_TRY_OR(st, change_squares(&m), out);
    D9D_TRY_OR(st, squares_sum(&m), out);
    D9D_TRY_OR(st, f32_map(&m, D9D_POINTWISE_SQRT, square, NULL, m.n, square), out);
    *out = d9d_tensor_ref(&m.square);
out:
    d9d_tensor_release(&m.square);
    d9d_tensor_release(&m.up);
    d9d_tensor_release(&m.p);
    d9d_tensor_release(&m.q);
    d9d_tensor_release(&m.gram);
    return st;
}
