/* attention_merge.c - joins the attention of parts of the keys, by their log-sum-exp. */
#include "cpu/attention.h"

/* What the two sides of a row are multiplied by, and the log-sum-exp of both. */
typedef struct merge_weights {
    float old, added, lse;
} merge_weights;

/* b is not -inf.  The larger exponent is 0, so nothing overflows; a NaN stays one. */
static merge_weights merge_weights_of(float a, float b)
{
    const float top = a > b ? a : b, x = expf(a - top), y = expf(b - top), by = 1.0f / (x + y);

    return (merge_weights){x * by, y * by, top + logf(x + y)};
}

d9d_status d9d_ref_attention_merge(d9d_stream s, const d9d_attention_dims *dims, bool first,
                                   float *acc, float *acc_lse, const void *o, const float *lse)
{
    const d9d_attention_dims resolved = d9d_attention_dims_resolve(dims), *n = &resolved;
    const int64_t rows = n->b * n->s * n->a;

    (void)s;
    D9D_TRY(d9di_args_check_float("attention_merge", n->t));
#pragma omp parallel for if (rows * n->dv > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = d9di_attention_lse_index(n, r % n->a, r / n->a);
        const merge_weights w =
            first ? (merge_weights){0.0f, 1.0f, lse[at]} : merge_weights_of(acc_lse[at], lse[at]);

        if (!first && lse[at] == -INFINITY)
            continue;
        acc_lse[at] = w.lse;
        for (int64_t f = 0; f < n->dv; f += D9DI_BLOCK) {
            const int64_t c = d9di_i64_min(n->dv - f, D9DI_BLOCK);
            float buf[D9DI_BLOCK], *y = acc + r * n->dv + f;
            const float *x = d9di_cpu_read(n->t, o, r * n->dv + f, c, buf);

            for (int64_t i = 0; i < c; i++)
                y[i] = first ? x[i] : w.old * y[i] + w.added * x[i];
        }
    }
    return D9D_OK;
}
