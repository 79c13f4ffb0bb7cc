/* attention_sink.c - attention sink: a learned logit per head in the softmax's denominator, without
 * a value.
 *
 * With z = exp(lse), and s = exp(sink): lse' = log(z + s), o' = o z / (z + s). In the gradient the
 * sink is a key whose value is 0: dsink = - sum over queries of P_sink delta, where P_sink =
 * exp(sink - lse') and delta = dout . o'.
 */
#include "cpu/attention.h"
#include "cpu/math.h"

/* Index in lse [B, A, S] of row r of o [B, S, A, D]. */
static int64_t row_lse_index(const d9d_attention_dims *n, int64_t r)
{
    return d9di_attention_lse_index(n, r % n->a, r / n->a);
}

static float sink_load(const d9d_attention_dims *n, const void *sink, int64_t h)
{
    float buf;

    return *d9di_cpu_read(n->t, sink, h, 1, &buf);
}

d9d_status d9d_ref_attention_sink(d9d_stream s, const d9d_attention_dims *dims, void *o, float *lse,
                                  const void *sink)
{
    const d9d_attention_dims resolved = d9d_attention_dims_resolve(dims), *n = &resolved;
    const int64_t rows = n->b * n->s * n->a;

    (void)s;
    D9D_TRY(d9di_args_check_float("attention_sink", n->t));
#pragma omp parallel for if (rows * n->dv > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        float *at = lse + row_lse_index(n, r), buf[D9DI_BLOCK];
        const float above = sink_load(n, sink, r % n->a) - *at;
        const float keep = 1.0f / (1.0f + expf(above));

        for (int64_t i = 0; i < n->dv; i += D9DI_BLOCK) {
            const int64_t c = d9di_i64_min(n->dv - i, D9DI_BLOCK);
            float *x = d9di_cpu_modify(n->t, o, r * n->dv + i, c, buf);

            d9di_cpu_row_scale(x, keep, x, c);
            d9di_cpu_write(n->t, o, r * n->dv + i, c, x);
        }
        *at += above > 0.0f ? above + log1pf(expf(-above)) : log1pf(expf(above));
    }
    return D9D_OK;
}

/* Sum over the queries of one head and one row of the batch. */
static double sink_dgrad_row(const d9d_attention_dims *n, int64_t b, int64_t h, const void *dout,
                             const void *o, const float *lse, float sink)
{
    double sum = 0.0;

    for (int64_t i = b * n->s; i < (b + 1) * n->s; i++) {
        const float p = expf(sink - lse[d9di_attention_lse_index(n, h, i)]);
        float bd[D9DI_BLOCK], bo[D9DI_BLOCK];

        for (int64_t f = 0; f < n->dv; f += D9DI_BLOCK) {
            const int64_t c = d9di_i64_min(n->dv - f, D9DI_BLOCK), at = (i * n->a + h) * n->dv + f;

            sum -= (double)(p * d9di_cpu_row_dot(d9di_cpu_read(n->t, dout, at, c, bd),
                                                 d9di_cpu_read(n->t, o, at, c, bo), c));
        }
    }
    return sum;
}

d9d_status d9d_ref_attention_sink_wgrad(d9d_stream s, const d9d_attention_dims *dims, d9d_dtype gt,
                                        void *dsink, float beta, const void *dout, const void *o,
                                        const float *lse, const void *sink)
{
    const d9d_attention_dims resolved = d9d_attention_dims_resolve(dims), *n = &resolved;

    (void)s;
    D9D_TRY(d9di_args_check_float("attention_sink_wgrad", n->t));
    D9D_TRY(d9di_args_check_float("attention_sink_wgrad", gt));
#pragma omp parallel for if (n->b * n->s * n->a * n->dv > D9DI_MIN_PARALLEL)
    for (int64_t h = 0; h < n->a; h++) {
        double sum = 0.0;
        float all;

        for (int64_t b = 0; b < n->b; b++)
            sum += sink_dgrad_row(n, b, h, dout, o, lse, sink_load(n, sink, h));
        all = (float)sum;
        d9di_cpu_store_add(gt, dsink, h, 1, beta, &all);
    }
    return D9D_OK;
}
