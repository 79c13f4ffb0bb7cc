/* router.c - MoE router: scores and top-k, load-balancing and z losses, load counts, and the bias
 * of loss-free balancing. */
#include "cpu/common.h"
#include "cpu/math.h"

enum { ROWS = 64 }; /* rows per task of a thread */

/* --- top-k -------------------------------------------------------------------------------- */

/* The index after (last_key, last) in the order of descending key, ties by ascending index. NaN
 * counts as -inf, so there is always one while fewer than n were taken. */
static int32_t topk_next(const float *key, int64_t n, float last_key, int32_t last)
{
    int32_t best = -1;
    float best_key = 0.0f;

    for (int32_t i = 0; i < n; i++) {
        float v = key[i] == key[i] ? key[i] : -INFINITY;

        if (last >= 0 && (v > last_key || (v == last_key && i <= last)))
            continue;
        if (best < 0 || v > best_key) {
            best = i;
            best_key = v;
        }
    }
    return best;
}

static void row_topk(const float *key, int64_t n, int32_t *out, int64_t k)
{
    int32_t last = -1;
    float last_key = 0.0f;

    for (int64_t j = 0; j < k; j++) {
        last = topk_next(key, n, last_key, last);
        last_key = last >= 0 && key[last] == key[last] ? key[last] : -INFINITY;
        out[j] = last;
    }
}

/* What a group is worth: its two largest keys together, or the largest. */
static float group_worth(const float *key, int64_t each, bool largest)
{
    const int64_t n = largest || each < 2 ? 1 : 2;
    int32_t best[2] = {0};

    row_topk(key, each, best, n);
    return key[best[0]] + (n < 2 ? 0.0f : key[best[1]]);
}

/* Sets the keys of all but the best groups to -inf. */
static void mask_groups(float *key, const d9d_router_dims *n)
{
    const int64_t each = n->e / n->groups;
    float worth[D9D_ROUTER_MAX_GROUPS];
    int32_t best[D9D_ROUTER_MAX_GROUPS] = {0};
    bool chosen[D9D_ROUTER_MAX_GROUPS] = {false};

    assert(each > 0);
    for (int g = 0; g < n->groups; g++)
        worth[g] = group_worth(key + g * each, each, n->group_max);
    row_topk(worth, n->groups, best, n->top_groups);
    for (int i = 0; i < n->top_groups; i++)
        chosen[best[i]] = true;
    for (int64_t i = 0; i < n->e; i++)
        key[i] = chosen[i / each] ? key[i] : -INFINITY;
}

/* Scores of one row of logits, in place. */
static void row_scores(float *p, const d9d_router_dims *n)
{
    float sum;

    if (n->sigmoid) {
        for (int64_t i = 0; i < n->e; i++)
            p[i] = d9di_cpu_sigmoid(p[i]);
        return;
    }
    sum = d9di_cpu_row_exp(p, p, d9di_cpu_row_max(p, n->e), n->e);
    d9di_cpu_row_scale(p, 1.0f / sum, p, n->e);
}

/* prob = p of the chosen experts, divided by their sum + 1e-20 if renormalised, and scaled. */
static void gather_probs(float *prob, const float *p, const int32_t *expert,
                         const d9d_router_dims *n)
{
    float sum = 0.0f;

    for (int64_t j = 0; j < n->k; j++) {
        prob[j] = p[expert[j]];
        sum += prob[j];
    }
    for (int64_t j = 0; j < n->k && n->renormalise; j++)
        prob[j] /= sum + 1e-20f;
    for (int64_t j = 0; j < n->k && n->scale != 1.0f; j++)
        prob[j] *= n->scale;
}

d9d_status d9d_ref_router(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                          int32_t *expert, const void *logits, const float *bias)
{
    const int64_t e = n->e, k = n->k;
    float *scratch;

    (void)s;
    D9D_TRY(d9di_args_check_router("router", n));
    if ((scratch = d9di_cpu_scratch_alloc_threads("router", e)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(static, ROWS) if (n->rows * e > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < n->rows; r++) {
        float *row = p + r * e, *key = d9di_cpu_scratch_of_thread(scratch, e);

        d9di_cpu_load(n->t, row, logits, r * e, e);
        row_scores(row, n);
        memcpy(key, row, (size_t)e * sizeof(*key));
        if (bias != NULL)
            d9di_cpu_row_axpy(key, 1.0f, bias, e);
        if (n->groups > 1)
            mask_groups(key, n);
        row_topk(key, e, expert + r * k, k);
        gather_probs(prob + r * k, row, expert + r * k, n);
    }
    free(scratch);
    return D9D_OK;
}

/* --- the losses ----------------------------------------------------------------------------- */

/* Load counts of the sequence that token r belongs to. */
static const float *seq_load(const d9d_router_balance *b, int64_t r, int64_t e)
{
    return b->load + (b->first + r) / b->seq_len * e;
}

/* Returns log of the sum of exp of x [n]; x becomes the softmax. */
static float row_softmax(float *x, int64_t n)
{
    const float row_max = d9di_cpu_row_max(x, n), sum = d9di_cpu_row_exp(x, x, row_max, n);

    d9di_cpu_row_scale(x, 1.0f / sum, x, n);
    return row_max + logf(sum);
}

/* d += coefficient w times the gradient of z by the logits; `scratch` is scratch [e]. */
static void z_loss_bwd(float *d, int64_t r, const d9d_router_dims *n, const d9d_router_balance *b,
                       float *workspace)
{
    float lse;

    d9di_cpu_load(n->t, workspace, b->logits, r * n->e, n->e);
    lse = row_softmax(workspace, n->e);
    d9di_cpu_row_axpy(d, 2.0f * b->z * b->weight[r] * lse, workspace, n->e);
}

/* ds += coefficient w times the gradient of aux by the scores: (g_e - sum of q g) / sum of s, where
 * g = E load / (sum of load). For a softmax the sum of s is 1. */
static void aux_loss_bwd(float *ds, const float *p, int64_t r, const d9d_router_dims *n,
                         const d9d_router_balance *b)
{
    const float *load = seq_load(b, r, n->e);
    const float all = d9di_cpu_row_sum(p, n->e) + 1e-20f;
    const float scale = (float)n->e / d9di_cpu_row_sum(load, n->e);
    const float mean = d9di_cpu_row_dot(p, load, n->e) * scale / all;
    const float c = b->aux * b->weight[r] / all;

    for (int64_t i = 0; i < n->e; i++)
        ds[i] += c * (load[i] * scale - mean);
}

/* ds from the gradient of the chosen experts: with S = sum + 1e-20 and q = p / S, ds_j = scale
 * (dprob_j - sum_i dprob_i q_i) / S. */
static void topk_bwd(float *ds, const float *dprob, const float *p, const float *prob,
                     const int32_t *expert, const d9d_router_dims *n)
{
    float sum = 0.0f, mean = 0.0f;

    for (int64_t j = 0; j < n->k; j++) {
        sum += p[expert[j]];
        mean += dprob[j] * prob[j];
    }
    memset(ds, 0, (size_t)n->e * sizeof(*ds));
    for (int64_t j = 0; j < n->k; j++)
        ds[expert[j]] =
            n->renormalise ? (n->scale * dprob[j] - mean) / (sum + 1e-20f) : n->scale * dprob[j];
}

/* Gradient of the logits from that of the scores, in place: p (ds - sum_j p_j ds_j), or for
 * sigmoids p (1 - p) ds. */
static void row_scores_bwd(float *d, const float *p, const d9d_router_dims *n)
{
    const float dot = n->sigmoid ? 0.0f : d9di_cpu_row_dot(p, d, n->e);

    for (int64_t i = 0; i < n->e; i++)
        d[i] = p[i] * (n->sigmoid ? (1.0f - p[i]) * d[i] : d[i] - dot);
}

d9d_status d9d_ref_router_bwd(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                              const float *dprob, const float *p, const float *prob,
                              const int32_t *expert, const d9d_router_balance *b)
{
    const int64_t e = n->e, k = n->k;
    float *scratch;

    (void)s;
    D9D_TRY(d9di_args_check_router("router_bwd", n));
    if ((scratch = d9di_cpu_scratch_alloc_threads("router_bwd", 2 * e)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(static, ROWS) if (n->rows * e > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < n->rows; r++) {
        float *workspace = d9di_cpu_scratch_of_thread(scratch, 2 * e),
              *d = d9di_cpu_write_ptr(n->t, dlogits, r * e, workspace);
        const bool counts = b != NULL && b->weight[r] > 0.0f;

        topk_bwd(d, dprob + r * k, p + r * e, prob + r * k, expert + r * k, n);
        if (counts && b->aux != 0.0f)
            aux_loss_bwd(d, p + r * e, r, n, b);
        row_scores_bwd(d, p + r * e, n);
        if (counts && b->z != 0.0f)
            z_loss_bwd(d, r, n, b, workspace + e);
        d9di_cpu_write(n->t, dlogits, r * e, e, d);
    }
    free(scratch);
    return D9D_OK;
}

d9d_status d9d_ref_router_losses(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                 const float *p, const d9d_router_balance *b)
{
    const int64_t e = n->e;
    float *scratch;

    (void)s;
    D9D_TRY(d9di_args_check_router("router_losses", n));
    if ((scratch = d9di_cpu_scratch_alloc_threads("router_losses", e)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(static, ROWS) if (n->rows * e > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < n->rows; r++) {
        const float w = b->weight[r], *row = p + r * e;
        float *x = d9di_cpu_scratch_of_thread(scratch, e), lse;

        aux[r] = z[r] = 0.0f;
        if (w > 0.0f && b->aux != 0.0f) {
            const float *load = seq_load(b, r, e);

            aux[r] = w * d9di_cpu_row_dot(row, load, e) * (float)e /
                     (d9di_cpu_row_sum(load, e) * (d9di_cpu_row_sum(row, e) + 1e-20f));
        }
        if (w > 0.0f && b->z != 0.0f) {
            d9di_cpu_load(n->t, x, b->logits, r * e, e);
            lse = row_softmax(x, e);
            z[r] = w * lse * lse;
        }
    }
    free(scratch);
    return D9D_OK;
}

/* --- load counts, and the bias that follows them ------------------------------------------- */

d9d_status d9d_ref_expert_load(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                               const int32_t *expert, const d9d_router_balance *b)
{
    (void)s;
    for (int64_t r = 0; r < n->rows; r++) {
        if (!(b->weight[r] > 0.0f))
            continue;
        for (int64_t j = 0; j < n->k; j++) {
            const int32_t x = expert[r * n->k + j];

            if (load != NULL)
                load[(b->first + r) / b->seq_len * n->e + x] += 1.0f;
            if (total != NULL)
                total[x] += 1.0;
        }
    }
    return D9D_OK;
}

d9d_status d9d_ref_router_bias(d9d_stream s, float *bias, const double *load, const float *scale,
                               float rate, int64_t first, int64_t n, int64_t e)
{
    double sum = 0.0;

    (void)s;
    for (int64_t i = 0; i < e; i++)
        sum += load[i];
    for (int64_t i = 0; i < n && *scale == *scale; i++) {
        const double much = load[first + i] * (double)e;

        bias[i] += much < sum ? rate : much > sum ? -rate : 0.0f;
    }
    return D9D_OK;
}
