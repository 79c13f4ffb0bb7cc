/* pointwise.c - y = f(a, b, c) with broadcasting, and g df of each input: the formulas of
 * common/pointwise.h over blocks of a row.
 */
#include "cpu/common.h"
#include "cpu/math.h"

#define D9DI_POINTWISE_INLINE        static inline
#define D9DI_POINTWISE_EXP(x)        d9di_cpu_expf(x)
#define D9DI_POINTWISE_LOG(x)        logf(x)
#define D9DI_POINTWISE_LOG1P(x)      log1pf(x)
#define D9DI_POINTWISE_TANH(x)       d9di_cpu_tanhf(x)
#define D9DI_POINTWISE_SIGMOID(x)    d9di_cpu_sigmoid(x)
#define D9DI_POINTWISE_NORMAL_CDF(x) (0.5f * erfcf(-(x)*0.707106781f)) /* accurate in the tail */
#include "common/pointwise.h"

/* clang has no vectors for libm's functions, and says so of each loop that calls one. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

typedef void (*block_fn)(int of, float *y, const float *const *x, const float *k, int64_t n);

#define BLOCK_LOOP(f, factor)                                                                      \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = f(a[i], b[i], c[i], k0, k1) factor; \
    break

/* name_block(): n elements of a function, or of g times its derivative by input `of`. */
#define X(NAME, name, inputs, value, r0, d0, r1, d1, r2, d2)                                       \
    D9DI_CLONES static void name##_block(int of, float *y, const float *const *x, const float *k,  \
                                         int64_t n)                                                \
    {                                                                                              \
        const float *a = x[0], *b = x[1], *c = x[2], *g = x[D9D_POINTWISE_GRAD];                   \
        const float k0 = k[0], k1 = k[1];                                                          \
                                                                                                   \
        switch (of) {                                                                              \
        case 0: BLOCK_LOOP(d9di_pointwise_##name##_d0, *g[i]);                                     \
        case 1: BLOCK_LOOP(d9di_pointwise_##name##_d1, *g[i]);                                     \
        case 2: BLOCK_LOOP(d9di_pointwise_##name##_d2, *g[i]);                                     \
        default: BLOCK_LOOP(d9di_pointwise_##name, );                                              \
        }                                                                                          \
    }
D9DI_POINTWISE_TABLE(X)
#undef X

static const block_fn blocks[D9D_N_POINTWISE] = {
#define X(NAME, name, inputs, value, r0, d0, r1, d1, r2, d2) [D9D_POINTWISE_##NAME] = name##_block,
    D9DI_POINTWISE_TABLE(X)
#undef X
};

static const float zeros[D9DI_BLOCK];

/* n elements from i on, in the array or in buf. */
static const float *read_any(d9d_dtype t, const void *x, int64_t i, int64_t n, float *buf)
{
    if (t != D9D_I32)
        return d9di_cpu_read(t, x, i, n, buf);
    for (int64_t j = 0; j < n; j++)
        buf[j] = (float)((const int32_t *)x)[i + j];
    return buf;
}

/* A block of an input: columns [j, j + n) of the row at `first`. */
static const float *read_input(const d9d_pointwise_input *p, int last, const void *x, int64_t first,
                               int64_t j, int64_t n, float *buf)
{
    float v;

    if (x == NULL)
        return zeros;
    if (p->stride[last] != 0)
        return read_any(p->t, x, first + j, n, buf);
    v = *read_any(p->t, x, first, 1, buf);
    for (int64_t i = 0; i < n; i++)
        buf[i] = v;
    return buf;
}

/* Element of input p where row r of y begins. */
static int64_t row_begin(const d9d_pointwise_dims *d, const d9d_pointwise_input *p, int64_t r)
{
    int64_t at = 0;

    for (int i = d->ndim - 2; i >= 0; i--) {
        at += r % d->dim[i] * p->stride[i];
        r /= d->dim[i];
    }
    return at;
}

/* Columns [j, j + n) of row r. */
static void run_block(const d9d_pointwise_dims *d, void *y, const void *const *x, int64_t r,
                      int64_t j, int64_t n)
{
    float buf[D9D_POINTWISE_INPUTS][D9DI_BLOCK], out[D9DI_BLOCK];
    const float *in[D9D_POINTWISE_INPUTS];
    const int64_t at = r * d->dim[d->ndim - 1] + j;
    float *to = d9di_cpu_write_ptr(d->yt, y, at, out);

    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        in[i] = read_input(&d->x[i], d->ndim - 1, x[i], row_begin(d, &d->x[i], r), j, n, buf[i]);
    blocks[d->f](d->of, to, in, d->k, n);
    d9di_cpu_write(d->yt, y, at, n, to);
}

d9d_status d9d_ref_pointwise(d9d_stream s, const d9d_pointwise_dims *d, void *y,
                             const void *const x[D9D_POINTWISE_INPUTS])
{
    int64_t rows = 1, n, per_row;

    (void)s;
    D9D_TRY(d9di_args_check_pointwise(d));
    n = d->dim[d->ndim - 1];
    per_row = d9di_i64_ceil_div(n, D9DI_BLOCK);
    for (int i = 0; i + 1 < d->ndim; i++)
        rows *= d->dim[i];
#pragma omp parallel for if (rows * n > D9DI_MIN_PARALLEL)
    for (int64_t b = 0; b < rows * per_row; b++) {
        const int64_t j = b % per_row * D9DI_BLOCK;

        run_block(d, y, x, b / per_row, j, d9di_i64_min(n - j, D9DI_BLOCK));
    }
    return D9D_OK;
}
