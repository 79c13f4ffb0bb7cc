/* plan_generation.c - the completions of a step, decoded on the simulated device.  See
 * plan/plan_simulate.h.
 */
#include <stdlib.h>

#include "d9d/device/simulated.h"
#include "plan/plan_simulate.h"
#include "train/rollout.h"

/* Seconds of a call of `rows` sequences, of which each has n tokens behind `first`. */
static d9d_status measure_call(d9di_kv_decoder *d, d9di_engine *e, int64_t rows, int64_t first,
                               int64_t n, const uint32_t *ids, double *out)
{
    const double before = d9d_sim_now(e->dev->stream);
    d9di_kv_decoder_input *in = calloc((size_t)rows, sizeof(*in));
    d9di_kv_decoder_output none;
    d9d_status st;

    if (in == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %lld sequences", (long long)rows);
    for (int64_t i = 0; i < rows; i++)
        in[i] = (d9di_kv_decoder_input){
            .row = i, .first = first, .n = n, .ids = ids, .keeps = rows == 1};
    st = d9di_kv_decoder_enqueue(d, in, (size_t)rows);
    free(in);
    D9D_TRY(st);
    D9D_TRY(d9di_kv_decoder_wait(d, &none));
    *out = d9d_sim_now(e->dev->stream) - before;
    return D9D_OK;
}

/* Seconds in which n completions get their prompt's part of the cache, and a first token each. */
static d9d_status measure_begin(d9di_kv_decoder *d, const d9di_engine *e, int64_t rows, int64_t n,
                                int64_t prompt, double *out)
{
    const double before = d9d_sim_now(e->dev->stream);
    uint64_t *streams = calloc((size_t)n, sizeof(*streams));
    d9di_kv_decoder_output none;
    d9d_status st = D9D_OK;

    if (streams == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %lld sequences", (long long)n);
    for (int64_t i = 0; st == D9D_OK && i < n; i++)
        st = d9di_kv_decoder_copy(d, rows, i, prompt);
    if (st == D9D_OK)
        st = d9di_kv_decoder_draw_kept(d, streams, n, prompt, &none);
    free(streams);
    *out = d9d_sim_now(e->dev->stream) - before;
    return st;
}

/* As train/rollout.c: each prompt once, its copies with their first tokens, and a token of all rows
 * at a time.  A token
 * takes what it takes in the middle of a completion. */
static d9d_status measure(d9di_kv_decoder *d, d9di_engine *e, const d9d_grpo_section *c,
                          int64_t rows, int64_t prompts, int64_t prompt, double *out)
{
    const int64_t group = d9d_comm_size(e->stages[0].model->groups.cp),
                  completions = (prompts * c->num_generations + group - 1) / group,
                  rounds = (completions + rows - 1) / rows,
                  begun = rows < c->num_generations ? rows : c->num_generations;
    uint32_t *ids = calloc((size_t)prompt, sizeof(*ids));
    double prefill = 0, begin = 0, decode = 0;
    d9d_status st;

    if (ids == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: a prompt of %lld tokens", (long long)prompt);
    st = measure_call(d, e, 1, 0, prompt, ids, &prefill);
    if (st == D9D_OK)
        st = measure_begin(d, e, rows, begun, prompt, &begin);
    if (st == D9D_OK)
        st = measure_call(d, e, rows, prompt + c->max_completion_length / 2, 1, ids, &decode);
    free(ids);
    *out = (prefill * (double)prompts + begin * (double)completions / (double)begun +
            decode * (double)(rounds * c->max_completion_length)) /
           (double)c->num_iterations;
    return st;
}

d9d_status d9di_plan_simulate_generation(d9di_engine *e, const d9d_grpo_section *c, int64_t rows,
                                         int64_t prompts, int64_t length, d9di_plan_simulation *out)
{
    const int64_t most = length + 1, prompt = length - c->max_completion_length + 1;
    const d9di_kv_decoder_opts opts = d9di_rollout_decoder_opts(c, rows, most);
    const uint64_t before = d9d_device_memory(e->dev).peak;
    d9di_kv_decoder *d;
    d9d_status st;

    out->cache = d9di_kv_decoder_bytes(e, D9D_KV_CACHE_AUTO, rows + 1, most);
    D9D_TRY(d9di_kv_decoder_open(e, &opts, &d));
    st = measure(d, e, c, rows, prompts, prompt, &out->generate_s);
    d9di_kv_decoder_close(d);
    out->step_s += out->generate_s;
    if (d9d_device_memory(e->dev).peak > before && d9d_device_memory(e->dev).peak > out->peak)
        out->peak = d9d_device_memory(e->dev).peak;
    return st;
}
