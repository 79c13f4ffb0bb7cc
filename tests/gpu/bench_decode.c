/* bench_decode.c - generation with random weights: decode, prefill, and a training forward beside
 * it.
 *
 *     bench_decode CONFIG.json [quantization=nf4] [head_quantization=fp8] [kv_cache_dtype=fp8]
 *                  [prompt=TOKENS] [temperature=T] [top_p=P]
 *                  [decode=SEQUENCES] [prefill=TOKENS] [forward=TOKENS] ...
 *
 * In bfloat16, or with the layers' matrices, the head or the KV cache quantised, of one model, on
 * the device that D9D_TEST_DEVICE names; decode behind a prompt of 16 tokens or so many, greedy or
 * drawn at the temperature, with log-probabilities and entropies.  Without
 * phases: decode=1, decode=8, and prefill and forward of 8192 tokens.  Prints a line each:
 *
 *     decode SEQUENCES MILLISECONDS GB     of a step of all sequences, one token each; GB: bytes of
 *                                          weights that it reads, of experts the expected ones
 *     prefill TOKENS MILLISECONDS          one prompt, in chunks as d9d-infer divides it
 *     forward TOKENS MILLISECONDS          one sequence without a cache, recorded for backward
 *
 * Then says whether the first sequence has the same tokens alone and beside others.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/infer/infer.h"
#include "infer/decode_batch.h"
#include "infer/infer_job.h"
#include "support/unit_device.h"

enum {
    MAX_SEQS = 64,
    PROMPT = 16,  /* tokens of the first sequence, by default; */
    MORE = 5,     /* each next has more */
    WARM_UP = 32, /* steps before the clock starts */
    STEPS = 160,  /* steps on the clock */
    REPEATS = 3
};

typedef struct bench {
    d9d_arena arena;
    json_t *doc;
    d9d_infer_config config;
    d9d_job where;
    d9di_engine engine;
    int64_t top_k, experts;           /* of a layer; 0: none */
    uint32_t tokens[WARM_UP + STEPS]; /* of the first sequence, of the first decode phase */
    size_t n_tokens;
    bool differs;
    d9d_kv_cache_dtype cache;
    int64_t prompt; /* tokens of the first sequence */
    d9di_token_sampler_opts sampler;
} bench;

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_decode: %s\n", d9d_err_message());
    exit(1);
}

static double ms_since(int64_t ns)
{
    return (double)(d9d_clock_ns() - ns) * 1e-6;
}

static d9d_model *model_of(const bench *b)
{
    return b->engine.stages[0].model;
}

static d9d_status bench_open(bench *b, const char *config, const char *layers, const char *head)
{
    d9di_engine_opts opts;

    b->doc = json_pack("{s:{s:s,s:s,s:s},s:{s:{s:i},s:{s:s,s:s}},s:{s:s,s:s,s:s}}",
                       "model_provider", "name", "auto", "hf_config", config, "dtype", "bfloat16",
                       "trainer", "batching", "microbatch_size", 1, "model_stage_factory",
                       "quantization", layers, "head_quantization", head, "task", "name",
                       "generate", "output", "none", "prompts", "none");
    if (b->doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a configuration");
    D9D_TRY(d9d_config_bind(&d9d_infer_config_table, b->doc, "bench_decode", NULL, &b->arena,
                            &b->config));
    D9D_TRY(d9d_bootstrap_single(&b->where.bootstrap));
    b->where.device = unit_device_name();
    opts = d9di_infer_engine_opts(&b->config, &b->where, NULL, NULL);
    D9D_TRY(d9di_engine_open(&opts, &b->engine));
    D9D_TRY(d9di_engine_materialize(&b->engine, &opts));
    for (size_t i = 0; i < model_of(b)->n_mixtures; i++) {
        b->top_k = model_of(b)->mixtures[i]->shape.top_k;
        b->experts = model_of(b)->mixtures[i]->shape.experts;
    }
    return D9D_OK;
}

/* Bytes that a step of n tokens reads: experts e of E have a token with probability
 * 1 - (1 - k/E)^n; of an input embedding there are a few rows, unless it is the head too. */
static double weight_bytes(const bench *b, int64_t n)
{
    const d9d_params *all = &b->engine.whole.params;
    double chosen = 1, sum = 0, embedding = 0;
    bool head = false;

    if (b->experts > 0)
        chosen = 1 - pow(1 - (double)b->top_k / (double)b->experts, (double)n);
    for (size_t i = 0; i < all->n; i++) {
        const d9d_param *p = all->p[i];
        const double bytes = (double)d9d_param_stored_bytes(p, &p->local);

        if (strstr(p->name, "token_embedding") != NULL)
            embedding += bytes;
        else if (strstr(p->name, "position") == NULL)
            sum += strstr(p->name, "grouped_experts") != NULL ? chosen * bytes : bytes;
        head |= strstr(p->name, "lm_head") != NULL;
    }
    return head ? sum : sum + embedding;
}

static uint32_t token_at(const bench *b, int64_t seq, int64_t i)
{
    return (uint32_t)((i * 7919 + seq * 104729) % model_of(b)->vocab);
}

static d9d_status prefill(bench *b, d9di_kv_decoder *d, int64_t seq, int64_t n,
                          d9di_kv_decoder_output *out)
{
    uint32_t ids[D9DI_PREFILL_TOKENS];

    for (int64_t first = 0; first < n; first += D9DI_PREFILL_TOKENS) {
        const d9di_kv_decoder_input input = {
            .row = seq,
            .first = first,
            .n = n - first < D9DI_PREFILL_TOKENS ? n - first : D9DI_PREFILL_TOKENS,
            .ids = ids};

        for (int64_t j = 0; j < input.n; j++)
            ids[j] = token_at(b, seq, first + j);
        D9D_TRY(d9di_kv_decoder_enqueue(d, &input, 1));
        D9D_TRY(d9di_kv_decoder_wait(d, out));
    }
    return D9D_OK;
}

static int64_t prompt_length(const bench *b, int64_t seq)
{
    return b->prompt + MORE * seq;
}

/* The first sequence's token of step i: kept, or compared with that of the first phase. */
static void note_token(bench *b, size_t i, uint32_t token)
{
    if (i < b->n_tokens) {
        b->differs |= b->tokens[i] != token;
        return;
    }
    b->tokens[i] = token;
    b->n_tokens = i + 1;
}

/* A step after the other, each enqueued before the one before it is waited for. */
static d9d_status decode_steps(bench *b, d9di_kv_decoder *d, int64_t n, uint32_t *first, double *ms)
{
    d9di_kv_decoder_input in[MAX_SEQS];
    d9di_kv_decoder_output out;
    int64_t start = 0;

    for (size_t i = 0; i <= WARM_UP + STEPS; i++) {
        for (int64_t k = 0; k < n && i < WARM_UP + STEPS; k++)
            in[k] = (d9di_kv_decoder_input){.row = k,
                                            .first = prompt_length(b, k) + (int64_t)i,
                                            .n = 1,
                                            .ids = i == 0 ? &first[k] : NULL,
                                            .stream = (uint64_t)k};
        if (i < WARM_UP + STEPS)
            D9D_TRY(d9di_kv_decoder_enqueue(d, in, (size_t)n));
        if (i == 0)
            continue;
        D9D_TRY(d9di_kv_decoder_wait(d, &out));
        note_token(b, i - 1, (uint32_t)out.token[0]);
        if (i == WARM_UP)
            start = d9d_clock_ns();
    }
    *ms = ms_since(start) / STEPS;
    return D9D_OK;
}

static d9di_kv_decoder_opts decoder_opts(const bench *b, int64_t rows, int64_t max_tokens)
{
    return (d9di_kv_decoder_opts){
        .cache = b->cache, .rows = rows, .max_tokens = max_tokens, .sampler = b->sampler};
}

static d9d_status phase_decode(bench *b, int64_t n)
{
    uint32_t first[MAX_SEQS];
    d9di_kv_decoder_opts opts;
    d9di_kv_decoder_output out;
    d9di_kv_decoder *d;
    double ms = 0;
    d9d_status st;

    if (n < 1 || n > MAX_SEQS)
        return D9D_FAIL(D9D_EINVAL, "decode of %lld sequences, at most %d", (long long)n, MAX_SEQS);
    opts = decoder_opts(b, n, prompt_length(b, n) + WARM_UP + STEPS);
    D9D_TRY(d9di_kv_decoder_open(&b->engine, &opts, &d));
    for (int64_t k = 0; k < n; k++) {
        D9D_TRY_OR(st, prefill(b, d, k, prompt_length(b, k), &out), out);
        first[k] = (uint32_t)out.token[0];
    }
    D9D_TRY_OR(st, decode_steps(b, d, n, first, &ms), out);
    printf("decode %lld %.4f %.4f\n", (long long)n, ms, weight_bytes(b, n) * 1e-9);
out:
    d9di_kv_decoder_close(d);
    return st;
}

/* The best of a few, after one that finds plans. */
static d9d_status phase_prefill(bench *b, int64_t n)
{
    const d9di_kv_decoder_opts opts = decoder_opts(b, 1, n);
    d9di_kv_decoder_output out;
    d9di_kv_decoder *d;
    double best = INFINITY;
    d9d_status st = D9D_OK;

    D9D_TRY(d9di_kv_decoder_open(&b->engine, &opts, &d));
    for (int i = 0; i <= REPEATS && st == D9D_OK; i++) {
        const int64_t start = d9d_clock_ns();

        st = prefill(b, d, 0, n, &out);
        if (i > 0)
            best = fmin(best, ms_since(start));
    }
    d9di_kv_decoder_close(d);
    if (st == D9D_OK)
        printf("prefill %lld %.3f\n", (long long)n, best);
    return st;
}

static d9d_status row_upload(bench *b, int64_t n, bool ids, d9d_tensor *out)
{
    int32_t *host = calloc((size_t)n, sizeof(*host));
    d9d_status st;

    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++)
        host[i] = ids ? (int32_t)token_at(b, 0, i) : (int32_t)i;
    st = d9d_tensor_from_host(b->engine.dev, D9D_I32, D9D_SHAPE(1, n), host, out);
    free(host);
    return st;
}

static d9d_status phase_forward(bench *b, int64_t n)
{
    d9d_tensor ids = {0}, positions = {0};
    d9d_model_in in = {.ids = &ids, .positions = &positions};
    d9d_model_out out;
    d9d_tape *tape;
    double best = INFINITY;
    d9d_status st;

    D9D_TRY(d9d_tape_create(b->engine.dev, &tape));
    D9D_TRY_OR(st, row_upload(b, n, true, &ids), out);
    D9D_TRY_OR(st, row_upload(b, n, false, &positions), out);
    for (int i = 0; i <= REPEATS; i++) {
        const int64_t start = d9d_clock_ns();

        D9D_TRY_OR(st, model_of(b)->ops->forward(model_of(b), tape, &in, &out), out);
        D9D_TRY_OR(st, d9d_device_sync(b->engine.dev), out);
        if (i > 0)
            best = fmin(best, ms_since(start));
        d9d_tape_reset(tape);
    }
    printf("forward %lld %.3f\n", (long long)n, best);
out:
    d9d_tensor_release(&ids);
    d9d_tensor_release(&positions);
    d9d_tape_free(tape);
    return st;
}

static const struct {
    const char *name;
    d9d_status (*run)(bench *b, int64_t n);
} phases[] = {{"decode=", phase_decode}, {"prefill=", phase_prefill}, {"forward=", phase_forward}};

static d9d_status phase_run(bench *b, const char *word)
{
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++)
        if (strncmp(word, phases[i].name, strlen(phases[i].name)) == 0)
            return phases[i].run(b, strtoll(word + strlen(phases[i].name), NULL, 10));
    return D9D_FAIL(D9D_EINVAL, "\"%s\" is no phase", word);
}

/* What follows `name` where the word is that option, and the word is skipped; else `usual`. */
static const char *option_take(const char *const **words, const char *name, const char *usual)
{
    const char *word = **words;

    if (word == NULL || strncmp(word, name, strlen(name)) != 0)
        return usual;
    ++*words;
    return word + strlen(name);
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"decode=1", "decode=8", "prefill=8192", "forward=8192",
                                        NULL};
    const char *layers, *head;
    bench b = {.n_tokens = 0};
    const char *const *words = argc > 2 ? (const char *const *)argv + 2 : usual;

    if (argc < 2) {
        fprintf(stderr, "usage: bench_decode CONFIG.json [PHASE=N ...]\n");
        return 2;
    }
    layers = option_take(&words, "quantization=", "none");
    head = option_take(&words, "head_quantization=", "none");
    if (strcmp(option_take(&words, "kv_cache_dtype=", "auto"), "fp8") == 0)
        b.cache = D9D_KV_CACHE_FP8;
    b.prompt = strtoll(option_take(&words, "prompt=", "0"), NULL, 10);
    b.prompt = b.prompt > 0 ? b.prompt : PROMPT;
    b.sampler.temperature = strtod(option_take(&words, "temperature=", "0"), NULL);
    b.sampler.top_p = strtod(option_take(&words, "top_p=", "1"), NULL);
    b.sampler.wants_stats = b.sampler.temperature > 0;
    if (*words == NULL)
        words = usual;
    must(bench_open(&b, argv[1], layers, head));
    for (; *words != NULL; words++) {
        must(phase_run(&b, *words));
        fflush(stdout);
    }
    printf("first sequence alone and beside others: %s\n", b.differs ? "different" : "the same");
    d9di_engine_release(&b.engine);
    d9d_bootstrap_close(b.where.bootstrap);
    json_decref(b.doc);
    d9d_arena_release(&b.arena);
    return b.differs;
}
