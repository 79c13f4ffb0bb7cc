/* token_sampler.c - see infer/token_sampler.h.
 *
 * What is read back is one block of 32-bit words: tokens, largest logits, and four words of
 * statistics for each token. */
#include "infer/token_sampler.h"

#include <math.h>
#include <stdlib.h>

#include "d9d/device/readback.h"

enum { ALIGN_WORDS = 64, STATS_WORDS = sizeof(d9di_token_sampler_stats) / sizeof(int32_t) };

struct d9di_token_sampler {
    d9d_device *dev;
    d9di_token_sampler_opts opts;
    int64_t vocab;
    int64_t max_tokens; /* of a call, rounded up */
    d9d_tensor block;   /* I32: tokens, largest logits, statistics */
    d9d_tensor history; /* I32 [slots]: tokens of all sequences; empty without a penalty */
    d9d_tensor kept;    /* F32 [V]: logits that are kept; empty if none are */
    d9d_readback *read[D9DI_SAMPLER_READBACKS];
};

static bool is_penalised(const d9di_token_sampler_opts *o)
{
    return o->repetition_penalty > 0 && o->repetition_penalty != 1;
}

/* Words before the statistics, and in all. */
static int64_t stats_at(const d9di_token_sampler *s)
{
    return 2 * s->max_tokens;
}
static int64_t block_words(const d9di_token_sampler *s)
{
    return stats_at(s) + (s->opts.wants_stats ? STATS_WORDS * s->max_tokens : 0);
}

static d9d_status alloc_zeros(d9d_device *dev, int64_t n, d9d_tensor *out)
{
    int32_t *zeros = calloc((size_t)n, sizeof(*zeros));
    d9d_status st;

    if (zeros == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to sample with");
    st = d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(n), zeros, out);
    free(zeros);
    return st;
}

static d9d_status sampler_alloc(d9di_token_sampler *s, const d9di_token_sampler_sizes *n)
{
    D9D_TRY(alloc_zeros(s->dev, block_words(s), &s->block));
    if (is_penalised(&s->opts))
        D9D_TRY(alloc_zeros(s->dev, n->slots, &s->history));
    if (n->keeps)
        D9D_TRY(d9d_tensor_alloc(s->dev, D9D_F32, D9D_SHAPE(n->vocab), &s->kept));
    for (int i = 0; i < D9DI_SAMPLER_READBACKS; i++)
        D9D_TRY(d9d_readback_create(s->dev, d9d_tensor_bytes(&s->block), &s->read[i]));
    return D9D_OK;
}

d9d_status d9di_token_sampler_check(const d9di_token_sampler_opts *o, int64_t vocab)
{
    if ((o->temperature == 0 && !o->wants_stats) || vocab <= D9D_SAMPLE_MAX_VOCAB)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "the model's vocabulary has %lld tokens, and sampling draws from up to %d%s",
                    (long long)vocab, D9D_SAMPLE_MAX_VOCAB,
                    o->wants_stats ? "" : "; task.temperature 0 takes the likeliest");
}

d9d_status d9di_token_sampler_open(d9d_device *dev, const d9di_token_sampler_opts *o,
                                   const d9di_token_sampler_sizes *n, d9di_token_sampler **out)
{
    d9di_token_sampler *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to sample with");
    s->dev = dev;
    s->opts = *o;
    s->vocab = n->vocab;
    s->max_tokens = (n->tokens + ALIGN_WORDS - 1) / ALIGN_WORDS * ALIGN_WORDS;
    st = sampler_alloc(s, n);
    if (st == D9D_OK)
        *out = s;
    else
        d9di_token_sampler_close(s);
    return st;
}

void d9di_token_sampler_close(d9di_token_sampler *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < D9DI_SAMPLER_READBACKS; i++)
        d9d_readback_free(s->read[i]);
    d9d_tensor_release(&s->block);
    d9d_tensor_release(&s->history);
    d9d_tensor_release(&s->kept);
    free(s);
}

const d9d_tensor *d9di_token_sampler_chosen(const d9di_token_sampler *s)
{
    return &s->block;
}

d9d_status d9di_token_sampler_copy(d9di_token_sampler *s, int64_t from, int64_t to, int64_t n)
{
    int32_t *ids = d9d_tensor_data(&s->history);

    return is_penalised(&s->opts)
               ? d9d_device_copy(s->dev, ids + to, ids + from, (uint64_t)n * sizeof(*ids))
               : D9D_OK;
}

/* --- a call -------------------------------------------------------------------------------- */

static d9d_status penalise(d9di_token_sampler *s, const d9di_token_sampler_call *c, float *y)
{
    const d9d_repetition_penalty_args a = {.penalty = (float)s->opts.repetition_penalty,
                                           .history = d9d_tensor_data(&s->history),
                                           .ids = c->ids,
                                           .slots = c->slots,
                                           .segment = c->segments,
                                           .tokens = c->tokens,
                                           .m = c->n,
                                           .n = s->vocab,
                                           .x = c->logits,
                                           .y = y};

    return s->dev->kernels->elementwise->repetition_penalty(s->dev->stream, &a);
}

static d9d_status choose(d9di_token_sampler *s, const float *logits, const int64_t *draws,
                         int64_t n)
{
    const d9di_token_sampler_opts *o = &s->opts;
    int32_t *block = d9d_tensor_data(&s->block);
    const d9d_sample_tokens_args a = {
        .temperature = o->temperature,
        .top_k = o->top_k,
        .top_p = o->top_p,
        .min_p = o->min_p,
        .seed = o->seed,
        .draw = draws,
        .x = logits,
        .token = block,
        .largest = (float *)(block + s->max_tokens),
        .stats = o->wants_stats ? (double *)(void *)(block + stats_at(s)) : NULL,
        .m = n,
        .n = s->vocab};

    return s->dev->kernels->elementwise->sample_tokens(s->dev->stream, &a);
}

static d9d_status keep_and_choose(d9di_token_sampler *s, const d9di_token_sampler_call *c,
                                  const float *logits)
{
    if (c->keeps)
        D9D_TRY(
            d9d_device_copy(s->dev, d9d_tensor_data(&s->kept), logits, d9d_tensor_bytes(&s->kept)));
    return choose(s, logits, c->draws, c->n);
}

d9d_status d9di_token_sampler_enqueue(d9di_token_sampler *s, const d9di_token_sampler_call *c)
{
    d9d_tensor y;
    d9d_status st;

    if (c->n == 0)
        return D9D_OK;
    if (!is_penalised(&s->opts))
        return keep_and_choose(s, c, c->logits);
    D9D_TRY(d9d_tensor_alloc(s->dev, D9D_F32, D9D_SHAPE(c->n, s->vocab), &y));
    st = penalise(s, c, d9d_tensor_data(&y));
    if (st == D9D_OK)
        st = keep_and_choose(s, c, d9d_tensor_data(&y));
    d9d_tensor_release(&y);
    return st;
}

d9d_status d9di_token_sampler_draw_kept(d9di_token_sampler *s, const int64_t *draws, int64_t n)
{
    const d9d_copy_strided_dims repeat = {
        .t = D9D_F32, .m = 1, .heads = n, .n = s->vocab, .x_cols = s->vocab, .y_cols = s->vocab};
    d9d_tensor rows = {0}, there = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_tensor_from_host(s->dev, D9D_I64, D9D_SHAPE(n, 2), draws, &there), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(s->dev, D9D_F32, D9D_SHAPE(n, s->vocab), &rows), out);
    D9D_TRY_OR(st,
               s->dev->kernels->elementwise->copy_strided(
                   s->dev->stream, &repeat, d9d_tensor_data(&rows), d9d_tensor_data(&s->kept)),
               out);
    st = choose(s, d9d_tensor_data(&rows), d9d_tensor_data(&there), n);
out:
    d9d_tensor_release(&rows);
    d9d_tensor_release(&there);
    return st;
}

d9d_status d9di_token_sampler_enqueue_readback(d9di_token_sampler *s, int k)
{
    return d9d_readback_enqueue(s->read[k], d9d_tensor_data(&s->block));
}

d9d_status d9di_token_sampler_wait(d9di_token_sampler *s, int k, d9di_token_sampler_tokens *out)
{
    const void *block;
    const int32_t *words;

    D9D_TRY(d9d_readback_wait(s->read[k], &block));
    words = block;
    *out = (d9di_token_sampler_tokens){
        .token = words,
        .largest = (const float *)(words + s->max_tokens),
        .stats = s->opts.wants_stats ? (const void *)(words + stats_at(s)) : NULL};
    return D9D_OK;
}

d9d_status d9di_token_sampler_check_logit(uint32_t token, float largest)
{
    if (isfinite(largest))
        return D9D_OK;
    return D9D_FAIL(D9D_ENUMERIC, "the logit of token %u is %s", token,
                    isnan(largest) ? "nan"
                    : largest > 0  ? "inf"
                                   : "-inf");
}
