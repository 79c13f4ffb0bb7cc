/* token_sampler.c - see infer/token_sampler.h. */
#include "infer/token_sampler.h"

#include <math.h>

#include "d9d/kernels/table.h"

typedef struct softmax_draw {
    const d9di_token_sampler *sampler;
    const float *logits;
    int64_t n;
    float largest;
} softmax_draw;

static double token_weight(const softmax_draw *d, uint32_t token)
{
    return exp((double)(d->logits[token] - d->largest) / d->sampler->temperature);
}

/* True if a is more likely than b. */
static bool is_likelier(const softmax_draw *d, uint32_t a, uint32_t b)
{
    return d->logits[a] > d->logits[b] || (d->logits[a] == d->logits[b] && a < b);
}

/* --- partial heap sort: a heap in front, the popped tokens after it --------------------------- */

static void heap_sift_down(const softmax_draw *d, uint32_t *heap, int64_t n, int64_t i)
{
    const uint32_t x = heap[i];

    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_likelier(d, heap[child + 1], heap[child]))
            child++;
        if (!is_likelier(d, heap[child], x))
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* Pops the most likely of the heap's n tokens to index n - 1. */
static uint32_t heap_pop(const softmax_draw *d, uint32_t *heap, int64_t n)
{
    const uint32_t best = heap[0];

    heap[0] = heap[n - 1];
    heap_sift_down(d, heap, n - 1, 0);
    heap[n - 1] = best;
    return best;
}

/* The least likely token that may be drawn. */
static d9d_status find_last_candidate(d9di_token_sampler *c, const softmax_draw *d, uint32_t *out)
{
    const int64_t n = d->n, max_n = c->top_k > 0 && c->top_k < n ? c->top_k : n;
    const int64_t taken = max_n < n ? max_n : 0;
    double sum = 0, above = 0;
    uint32_t *heap;

    c->order.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&c->order, (size_t)n));
    heap = c->order.data;
    for (int64_t i = 0; i < n; i++) {
        heap[i] = (uint32_t)i;
        sum += taken > 0 ? 0 : token_weight(d, (uint32_t)i);
    }
    for (int64_t i = n / 2; i-- > 0;)
        heap_sift_down(d, heap, n, i);
    for (int64_t i = 0; i < taken; i++)
        sum += token_weight(d, heap_pop(d, heap, n - i));
    for (int64_t i = 0; i < max_n && above < c->top_p * sum; i++) {
        *out = i < taken ? heap[n - 1 - i] : heap_pop(d, heap, n - i);
        above += token_weight(d, *out);
    }
    return D9D_OK;
}

/* Draws among the tokens not less likely than `last` (NULL: all): the token at which the cumulative
 * weight passes `share` of the sum. */
static d9d_status draw_token(d9di_token_sampler *c, const softmax_draw *d, const uint32_t *last,
                             double share, uint32_t *out)
{
    double sum = 0, *until;
    int64_t i;

    c->cumulative.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&c->cumulative, (size_t)d->n));
    until = c->cumulative.data;
    for (i = 0; i < d->n; i++) {
        const uint32_t token = (uint32_t)i;

        sum += last != NULL && is_likelier(d, *last, token) ? 0 : token_weight(d, token);
        until[i] = sum;
    }
    for (i = 0; i + 1 < d->n && until[i] <= share * sum;)
        i++;
    *out = (uint32_t)i;
    return D9D_OK;
}

d9d_status d9di_token_sampler_check_logit(uint32_t best, float logit)
{
    if (isfinite(logit))
        return D9D_OK;
    return D9D_FAIL(D9D_ENUMERIC, "the logit of token %u is %s", best,
                    isnan(logit) ? "nan"
                    : logit > 0  ? "inf"
                                 : "-inf");
}

d9d_status d9di_token_sampler_sample(d9di_token_sampler *c, d9d_rng r, int64_t position,
                                     const float *logits, int64_t n, uint32_t *out)
{
    const double share = (double)(d9d_rng_u64(r, (uint64_t)position) >> 11) * 0x1p-53;
    const bool some = c->top_p < 1 || (c->top_k > 0 && c->top_k < n);
    softmax_draw d = {c, logits, n, 0};
    int32_t best;
    uint32_t last = 0;

    D9D_TRY(d9d_kernels_cpu()->elementwise->argmax(NULL, &best, &d.largest, logits, 1, n));
    D9D_TRY(d9di_token_sampler_check_logit((uint32_t)best, d.largest));
    if (c->temperature == 0) {
        *out = (uint32_t)best;
        return D9D_OK;
    }
    if (some)
        D9D_TRY(find_last_candidate(c, &d, &last));
    return draw_token(c, &d, some ? &last : NULL, share, out);
}

void d9di_token_sampler_release(d9di_token_sampler *c)
{
    D9D_VEC_RELEASE(&c->order);
    D9D_VEC_RELEASE(&c->cumulative);
}
