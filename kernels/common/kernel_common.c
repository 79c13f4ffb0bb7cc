/* kernel_common.c - see kernel_common.h. */
#include "common/kernel_common.h"
#include "common/sampling.h"

d9d_status d9di_args_check_addends(int of)
{
    if (of < 1 || of > D9D_ADD_MAX_ARRAYS)
        return D9D_FAIL(D9D_EINVAL, "add: a sum of %d arrays, possible are 1 to %d", of,
                        D9D_ADD_MAX_ARRAYS);
    return D9D_OK;
}

d9d_status d9di_args_check_foreach(int count)
{
    if (count >= 0 && count <= D9D_FOREACH_MAX)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "foreach_axpby: %d matrices, up to %d are supported", count,
                    D9D_FOREACH_MAX);
}

_Static_assert(D9D_SAMPLE_MAX_VOCAB <= INT64_C(1) << (63 - D9DI_WEIGHT_BITS),
               "sums of weights stay below 2^63");

d9d_status d9di_args_check_sample_tokens(const d9d_sample_tokens_args *a)
{
    const bool sums = a->temperature > 0 || a->stats != NULL;
    const int64_t most = sums ? D9D_SAMPLE_MAX_VOCAB : INT32_MAX;

    if (a->m > 0 && (a->n < 1 || a->n > most))
        return D9D_FAIL(D9D_EINVAL, "sample_tokens: %lld tokens, possible are 1 to %lld",
                        (long long)a->n, (long long)most);
    return D9D_OK;
}

d9d_status d9di_args_check_float(const char *op, d9d_dtype t)
{
    if (t == D9D_F32 || t == D9D_BF16)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: works on float32 and bfloat16, not on %s", op,
                    d9d_dtype_name(t));
}

d9d_status d9di_args_check_attention_cache(const char *op, const d9d_attention_dims *n)
{
    if ((n->k_scale != NULL) != (n->v_scale != NULL))
        return D9D_FAIL(D9D_EINVAL, "%s: keys and values in 8 bits need scales of both", op);
    if (n->k_scale != NULL && !n->decode)
        return D9D_FAIL(D9D_EINVAL, "%s: keys and values in 8 bits are those of a cache", op);
    return D9D_OK;
}

d9d_status d9di_args_check_kv_append_fp8(const char *op, int n)
{
    return n >= 0 && n <= D9D_ATTENTION_APPEND_FP8_MAX
               ? D9D_OK
               : D9D_FAIL(D9D_EINVAL, "%s: %d arrays, of 0 to %d", op, n,
                          D9D_ATTENTION_APPEND_FP8_MAX);
}

d9d_status d9di_args_check_glu(const char *op, d9d_dtype t, const d9d_glu *f, bool gated)
{
    D9D_TRY(d9di_args_check_float(op, t));
    if ((unsigned)f->act >= D9D_N_ACTIVATIONS)
        return D9D_FAIL(D9D_EINVAL, "%s: activation %d of %d", op, (int)f->act, D9D_N_ACTIVATIONS);
    if (f->act != D9D_ACT_SWIGLU_OAI && f->act != D9D_ACT_HARDTANH)
        return D9D_OK;
    if (f->act == D9D_ACT_SWIGLU_OAI && !gated)
        return D9D_FAIL(D9D_EINVAL, "%s: the clamped SwiGLU needs both gate and up", op);
    return f->limit > 0 ? D9D_OK
                        : D9D_FAIL(D9D_EINVAL, "%s: a limit of %g, it must be positive", op,
                                   (double)f->limit);
}

d9d_status d9di_args_check_router(const char *op, const d9d_router_dims *n)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    if (n->k > n->e)
        return D9D_FAIL(D9D_EINVAL, "%s: %lld experts a token, but there are %lld", op,
                        (long long)n->k, (long long)n->e);
    if (n->groups > D9D_ROUTER_MAX_GROUPS ||
        (n->groups > 1 &&
         (n->e % n->groups != 0 || n->top_groups < 1 || n->top_groups * (n->e / n->groups) < n->k)))
        return D9D_FAIL(D9D_EINVAL, "%s: %lld of %lld experts in %d of %d groups", op,
                        (long long)n->k, (long long)n->e, n->top_groups, n->groups);
    return D9D_OK;
}

/* The last `merged` dimensions are the run. */
static d9di_subarray subarray_make(int ndim, int merged, const int64_t *box, const int64_t *start,
                                   const int64_t *whole)
{
    d9di_subarray b = {.run = 1, .n_runs = 1, .ndim = ndim - merged};
    int64_t stride = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        if (d >= b.ndim) {
            b.run *= box[d];
            b.first += start[d] * stride;
        } else {
            b.box[d] = box[d];
            b.start[d] = start[d];
            b.stride[d] = stride;
            b.n_runs *= box[d];
        }
        stride *= whole[d];
    }
    return b;
}

/* Dimensions that the box covers entirely merge into the run; the first other one ends it. */
d9di_subarray d9di_subarray_make(int ndim, const int64_t *box, const int64_t *start,
                                 const int64_t *whole)
{
    int merged = ndim > 0 ? 1 : 0;

    while (merged < ndim && box[ndim - merged] == whole[ndim - merged])
        merged++;
    return subarray_make(ndim, merged, box, start, whole);
}

d9di_subarray d9di_subarray_make_rows(int ndim, const int64_t *box, const int64_t *start,
                                      const int64_t *whole)
{
    return subarray_make(ndim, ndim > 0 ? 1 : 0, box, start, whole);
}

/* --- linear_cross_entropy_fwd_bwd ---------------------------------------------------------- */

enum { TOKEN_STEP = 128, LOGIT_COLUMNS = 8192 };
enum { TOKEN_ALIGN = 1024 }; /* if the scratch allows: avoids partial tiles of the GEMMs */
#define DEFAULT_SCRATCH ((int64_t)768 << 20)

/* Approximate bytes per token on the rank with the largest part. */
static double max_token_bytes(const d9d_linear_cross_entropy_dims *n)
{
    const double max_rows = (double)n->ranks->max_rows, size = (double)d9d_dtype_size(n->t);
    const double logits = n->t != D9D_F32 ? 0 : max_rows < LOGIT_COLUMNS ? max_rows : LOGIT_COLUMNS;

    return max_rows * size + (double)n->h * (4 + size) + 4 * logits;
}

int64_t d9di_linear_cross_entropy_tokens(const d9d_linear_cross_entropy_dims *n, int64_t empty,
                                         double each)
{
    const int64_t scratch_bytes = n->scratch > 0 ? n->scratch : DEFAULT_SCRATCH;
    const double left = n->ranks != NULL ? (double)scratch_bytes : (double)(scratch_bytes - empty);
    const double one = (n->ranks != NULL ? max_token_bytes(n) : each) * TOKEN_STEP;
    const int64_t steps = one > 0 && left > one ? (int64_t)(left / one) : 1;
    const int64_t fit = steps * TOKEN_STEP;
    const int64_t max_tokens = fit > TOKEN_ALIGN ? fit / TOKEN_ALIGN * TOKEN_ALIGN : fit;
    const int64_t rounds = (n->rows + max_tokens - 1) / max_tokens;
    const int64_t even =
        rounds > 0 ? d9di_i64_round_up((n->rows + rounds - 1) / rounds, TOKEN_STEP) : max_tokens;

    return n->rows < even ? n->rows : even;
}
