/* token_sampler.c - see infer/token_sampler.h. */
#include "infer/token_sampler.h"

#include <math.h>
#include <string.h>

#include "d9d/kernels/table.h"

typedef struct softmax_draw {
    const d9di_token_sampler_opts *opts;
    const float *logits;
    int64_t n;
    float largest;
    double temperature;
    const double *weights; /* [n] exp((logit - largest) / temperature) */
    double sum, moment;    /* of weights; of weights times their logarithms */
} softmax_draw;

static d9d_status softmax_weigh(d9di_token_sampler *s, softmax_draw *d)
{
    double *w;

    s->weights.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->weights, (size_t)d->n));
    d->weights = w = s->weights.data;
    d->sum = d->moment = 0;
    for (int64_t i = 0; i < d->n; i++) {
        const double x = (double)(d->logits[i] - d->largest) / d->temperature;

        w[i] = exp(x);
        d->sum += w[i];
        d->moment += w[i] > 0 ? w[i] * x : 0;
    }
    return D9D_OK;
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
    const int64_t n = d->n, max_n = d->opts->top_k > 0 && d->opts->top_k < n ? d->opts->top_k : n;
    const int64_t taken = max_n < n ? max_n : 0;
    double sum = 0, above = 0;
    uint32_t *heap;

    c->order.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&c->order, (size_t)n));
    heap = c->order.data;
    for (int64_t i = 0; i < n; i++) {
        heap[i] = (uint32_t)i;
        sum += taken > 0 ? 0 : d->weights[i];
    }
    for (int64_t i = n / 2; i-- > 0;)
        heap_sift_down(d, heap, n, i);
    for (int64_t i = 0; i < taken; i++)
        sum += d->weights[heap_pop(d, heap, n - i)];
    for (int64_t i = 0; i < max_n && (i == 0 || above < d->opts->top_p * sum); i++) {
        *out = i < taken ? heap[n - 1 - i] : heap_pop(d, heap, n - i);
        above += d->weights[*out];
    }
    return D9D_OK;
}

/* 0 for a token that is less likely than `last` (NULL: none is) or than min_p allows.  The largest
 * weight is 1. */
static double draw_weight(const softmax_draw *d, const uint32_t *last, int64_t token)
{
    const double w = d->weights[token];

    return w < d->opts->min_p || (last != NULL && is_likelier(d, *last, (uint32_t)token)) ? 0 : w;
}

/* Draws among the tokens not less likely than `last` (NULL: all): the token at which the cumulative
 * weight passes `share` of the sum. */
static uint32_t draw_token(const softmax_draw *d, const uint32_t *last, double share)
{
    const bool all = last == NULL && d->opts->min_p <= 0;
    double sum = all ? d->sum : 0, until = 0;
    int64_t i;

    for (i = 0; !all && i < d->n; i++)
        sum += draw_weight(d, last, i);
    for (i = 0; i + 1 < d->n; i++) {
        until += draw_weight(d, last, i);
        if (until > share * sum)
            break;
    }
    return (uint32_t)i;
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

static void measure(const softmax_draw *d, uint32_t token, d9di_token_sampler_stats *out)
{
    out->log_prob = (double)(d->logits[token] - d->largest) / d->temperature - log(d->sum);
    out->entropy = log(d->sum) - d->moment / d->sum;
}

static d9d_status choose(d9di_token_sampler *s, const softmax_draw *d, int32_t best, double share,
                         uint32_t *out)
{
    const d9di_token_sampler_opts *o = d->opts;
    const bool some = o->top_p < 1 || (o->top_k > 0 && o->top_k < d->n);
    uint32_t last = 0;

    *out = (uint32_t)best;
    if (o->temperature == 0)
        return D9D_OK;
    if (some)
        D9D_TRY(find_last_candidate(s, d, &last));
    *out = draw_token(d, some ? &last : NULL, share);
    return D9D_OK;
}

static bool is_penalised(const d9di_token_sampler_opts *o)
{
    return o->repetition_penalty > 0 && o->repetition_penalty != 1;
}

bool d9di_token_sampler_is_argmax(const d9di_token_sampler_opts *o)
{
    return o->temperature == 0 && !is_penalised(o);
}

/* Each token of ids [n_ids] once, however often it is there; virtual tokens have no logit. */
static d9d_status penalise(d9di_token_sampler *s, double penalty, const uint32_t *ids,
                           int64_t n_ids, const float *logits, int64_t n)
{
    const float p = (float)penalty;
    float *out;

    s->penalised.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->penalised, (size_t)n));
    out = s->penalised.data;
    memcpy(out, logits, (size_t)n * sizeof(*out));
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < n)
            out[ids[i]] = logits[ids[i]] < 0 ? logits[ids[i]] * p : logits[ids[i]] / p;
    return D9D_OK;
}

d9d_status d9di_token_sampler_sample(d9di_token_sampler *s, const d9di_token_sampler_opts *o,
                                     d9d_rng r, const uint32_t *ids, int64_t position,
                                     const float *logits, int64_t n, uint32_t *out,
                                     d9di_token_sampler_stats *stats)
{
    const double share = (double)(d9d_rng_u64(r, (uint64_t)position) >> 11) * 0x1p-53;
    softmax_draw d = {.opts = o,
                      .logits = logits,
                      .n = n,
                      .temperature = o->temperature > 0 ? o->temperature : 1};
    int32_t best;

    if (is_penalised(o)) {
        D9D_TRY(penalise(s, o->repetition_penalty, ids, position, logits, n));
        d.logits = s->penalised.data;
    }
    D9D_TRY(d9d_kernels_cpu()->elementwise->argmax(NULL, &best, &d.largest, d.logits, 1, n));
    D9D_TRY(d9di_token_sampler_check_logit((uint32_t)best, d.largest));
    if (o->temperature > 0 || stats != NULL)
        D9D_TRY(softmax_weigh(s, &d));
    D9D_TRY(choose(s, &d, best, share, out));
    if (stats != NULL)
        measure(&d, *out, stats);
    return D9D_OK;
}

void d9di_token_sampler_release(d9di_token_sampler *c)
{
    D9D_VEC_RELEASE(&c->order);
    D9D_VEC_RELEASE(&c->weights);
    D9D_VEC_RELEASE(&c->penalised);
}
