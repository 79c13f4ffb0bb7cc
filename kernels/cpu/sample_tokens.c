/* sample_tokens.c - the next token of each row of logits: temperature, top-k, top-p, min-p. */
#include "common/sampling.h"
#include "cpu/common.h"

/* Tokens of one value of a key's digit. */
typedef struct digit_bin {
    uint64_t count, mass; /* mass: the sum of their weights */
} digit_bin;

/* A row. */
typedef struct token_row {
    const float *x;
    int64_t n;
    const uint64_t *weight; /* [n] */
    float largest;
    double scale;
    uint64_t sum, moment;
} token_row;

D9DI_CLONES static void row_weigh(token_row *r, uint64_t *weight)
{
    uint64_t sum = 0, moment = 0;

    for (int64_t i = 0; i < r->n; i++) {
        const double z = d9di_sampling_log2(r->x[i], r->largest, r->scale);
        const uint64_t w = d9di_sampling_weight(z);

        weight[i] = w;
        sum += w;
        moment += w > 0 ? d9di_sampling_moment(w, z) : 0;
    }
    r->weight = weight;
    r->sum = sum;
    r->moment = moment;
}

/* The digits of keys that begin with the digits in `key`. */
static void row_count_digits(const token_row *r, uint32_t key, int pass, digit_bin *bin)
{
    memset(bin, 0, D9DI_SAMPLE_BINS * sizeof(*bin));
    for (int64_t i = 0; i < r->n; i++) {
        const uint32_t k = d9di_sampling_key(r->x[i]);
        digit_bin *b = &bin[d9di_sampling_digit(k, pass)];

        if (pass > 0 && k >> d9di_sampling_shift(pass - 1) != key)
            continue;
        b->count++;
        b->mass += r->weight[i];
    }
}

/* The most likely tokens that are `want`, or whose sum reaches it (`by_mass`), digit by digit;
 * there are so many. Returns the sum of their weights. */
static uint64_t row_select(const token_row *r, bool by_mass, uint64_t want,
                           d9di_sampling_threshold *out)
{
    digit_bin bin[D9DI_SAMPLE_BINS];
    uint64_t above = 0, weight;
    uint32_t key = 0, digit = 0;

    for (int pass = 0; pass < D9DI_SAMPLE_PASSES; pass++) {
        row_count_digits(r, key, pass, bin);
        digit = D9DI_SAMPLE_BINS - 1;
        for (; want > (by_mass ? bin[digit].mass : bin[digit].count); digit--) {
            want -= by_mass ? bin[digit].mass : bin[digit].count;
            above += bin[digit].mass;
        }
        key = key << d9di_sampling_digit_bits(pass) | digit;
    }
    weight = bin[digit].mass / bin[digit].count;
    out->key = key;
    out->ties = by_mass ? d9di_sampling_ties(want, weight) : want;
    return above + out->ties * weight;
}

/* What top_k and top_p leave. */
static d9di_sampling_threshold row_threshold(const d9d_sample_tokens_args *a, const token_row *r)
{
    d9di_sampling_threshold t = {0, 0};
    uint64_t sum = r->sum;

    if (a->top_k > 0 && a->top_k < r->n)
        sum = row_select(r, false, (uint64_t)a->top_k, &t);
    if (a->top_p < 1)
        row_select(r, true, d9di_sampling_mass(a->top_p, sum), &t);
    return t;
}

/* The weight of token i in a draw, which takes up to `ties` tokens of the threshold's key. */
static uint64_t draw_weight(const token_row *r, const d9di_sampling_threshold *t, uint64_t least,
                            int64_t i, uint64_t *ties)
{
    const uint32_t key = d9di_sampling_key(r->x[i]);
    const bool tie = key == t->key && *ties > 0;

    *ties -= tie;
    return (key > t->key || tie) && r->weight[i] >= least ? r->weight[i] : 0; /* NOLINT: not NULL */
}

static int32_t row_draw(const d9d_sample_tokens_args *a, const token_row *r, const int64_t *draw)
{
    const d9di_sampling_threshold t = row_threshold(a, r);
    const d9d_rng rng = {a->seed, (uint64_t)draw[0]};
    const uint64_t least = d9di_sampling_least(a->min_p);
    uint64_t sum = 0, until = 0, ties = t.ties, target;
    int64_t i;

    for (i = 0; i < r->n; i++)
        sum += draw_weight(r, &t, least, i, &ties);
    target = (uint64_t)((unsigned __int128)d9d_rng_u64(rng, (uint64_t)draw[1]) * sum >> 64);
    ties = t.ties;
    for (i = 0; i + 1 < r->n; i++) {
        until += draw_weight(r, &t, least, i, &ties);
        if (until > target)
            break;
    }
    return (int32_t)i;
}

/* `weight` [n]: scratch. */
static void row_sample(const d9d_sample_tokens_args *a, int64_t i, uint64_t *weight)
{
    token_row r = {.x = a->x + i * a->n,
                   .n = a->n,
                   .largest = a->largest[i],
                   .scale = d9di_sampling_scale(a->temperature)};

    if (!isfinite(r.largest)) {
        if (a->stats != NULL)
            a->stats[2 * i] = a->stats[2 * i + 1] = NAN;
        return;
    }
    if (a->temperature > 0 || a->stats != NULL)
        row_weigh(&r, weight);
    if (a->temperature > 0)
        a->token[i] = row_draw(a, &r, a->draw + 2 * i);
    if (a->stats == NULL)
        return;
    a->stats[2 * i] =
        d9di_sampling_log_prob(d9di_sampling_log2(r.x[a->token[i]], r.largest, r.scale), r.sum);
    a->stats[2 * i + 1] = d9di_sampling_entropy(r.sum, r.moment);
}

d9d_status d9d_ref_sample_tokens(d9d_stream s, const d9d_sample_tokens_args *a)
{
    float *scratch;

    D9D_TRY(d9di_args_check_sample_tokens(a));
    D9D_TRY(d9d_ref_argmax(s, a->token, a->largest, a->x, a->m, a->n));
    if (a->m == 0 || (a->temperature == 0 && a->stats == NULL))
        return D9D_OK;
    scratch = d9di_cpu_scratch_alloc_threads("sample_tokens", 2 * a->n);
    if (scratch == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for if (a->m * a->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < a->m; i++)
        row_sample(a, i, (uint64_t *)(void *)d9di_cpu_scratch_of_thread(scratch, 2 * a->n));
    free(scratch);
    return D9D_OK;
}
