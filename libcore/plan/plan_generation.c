/* plan_generation.c - the completions of a step, decoded on the simulated device.  See
 * plan/plan_simulate.h.
 */
#include <stdlib.h>

#include "d9d/device/simulated.h"
#include "infer/kv_decoder.h"
#include "plan/plan_simulate.h"

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
        in[i] = (d9di_kv_decoder_input){.row = i, .first = first, .n = n, .ids = ids};
    st = d9di_kv_decoder_enqueue(d, in, (size_t)rows);
    free(in);
    D9D_TRY(st);
    D9D_TRY(d9di_kv_decoder_wait(d, &none));
    *out = d9d_sim_now(e->dev->stream) - before;
    return D9D_OK;
}

/* Seconds in which a completion gets its prompt's part of the cache. */
static d9d_status measure_copy(d9di_kv_decoder *d, const d9di_engine *e, int64_t rows,
                               int64_t prompt, double *out)
{
    const double before = d9d_sim_now(e->dev->stream);

    D9D_TRY(d9di_kv_decoder_copy(d, rows, 0, prompt));
    *out = d9d_sim_now(e->dev->stream) - before;
    return D9D_OK;
}

/* As train/rollout.c: each prompt once, its copies, and a token of all rows at a time.  A token
 * takes what it takes in the middle of a completion. */
static d9d_status measure(d9di_kv_decoder *d, d9di_engine *e, const d9d_grpo_section *c,
                          int64_t rows, int64_t prompts, int64_t prompt, double *out)
{
    const int64_t group = d9d_comm_size(e->stages[0].model->groups.cp),
                  completions = (prompts * c->num_generations + group - 1) / group,
                  rounds = (completions + rows - 1) / rows;
    uint32_t *ids = calloc((size_t)prompt, sizeof(*ids));
    double prefill = 0, copy = 0, decode = 0;
    d9d_status st;

    if (ids == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: a prompt of %lld tokens", (long long)prompt);
    st = measure_call(d, e, 1, 0, prompt, ids, &prefill);
    if (st == D9D_OK)
        st = measure_copy(d, e, rows, prompt, &copy);
    if (st == D9D_OK)
        st = measure_call(d, e, rows, prompt + c->max_completion_length / 2, 1, ids, &decode);
    free(ids);
    *out = (prefill * (double)prompts + copy * (double)completions +
            decode * (double)(rounds * c->max_completion_length)) /
           (double)c->num_iterations;
    return st;
}

d9d_status d9di_plan_simulate_generation(d9di_engine *e, const d9d_grpo_section *c, int64_t rows,
                                         int64_t prompts, int64_t length, d9di_plan_simulation *out)
{
    const int64_t most = length + 1, prompt = length - c->max_completion_length + 1;
    const uint64_t before = d9d_device_memory(e->dev).peak;
    d9di_kv_decoder *d;
    d9d_status st;

    out->cache = d9di_kv_decoder_bytes(e, D9D_KV_CACHE_AUTO, rows + 1, most);
    D9D_TRY(d9di_kv_decoder_open(e, D9D_KV_CACHE_AUTO, rows + 1, most, false, &d));
    st = measure(d, e, c, rows, prompts, prompt, &out->generate_s);
    d9di_kv_decoder_close(d);
    out->step_s += out->generate_s;
    if (d9d_device_memory(e->dev).peak > before && d9d_device_memory(e->dev).peak > out->peak)
        out->peak = d9d_device_memory(e->dev).peak;
    return st;
}
