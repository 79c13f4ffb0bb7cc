/* carried_llama_plugin.c - examples/plugins/plain_llama.c, whose stages pass on a counter and what
 * the first stage gave beside the hidden states, for stage_tensors.bats.  Each stage checks what
 * comes. */
#include <string.h>

#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

#pragma push_macro("D9D_PLUGIN")
#undef D9D_PLUGIN
#define D9D_PLUGIN(...) _Static_assert(1, "the plugin below takes its place")
#include "../../examples/plugins/plain_llama.c"
#pragma pop_macro("D9D_PLUGIN")

static d9d_status stage_tensors(const d9d_model *m, int stage, d9d_stage_spec *out, size_t *n)
{
    (void)stage;
    out[(*n)++] = (d9d_stage_spec){.name = "count",
                                   .per = D9D_STAGE_PER_MICRO_BATCH,
                                   .dtype = D9D_I32,
                                   .rank = 1,
                                   .shape = {1},
                                   .constant = true};
    out[(*n)++] = (d9d_stage_spec){.name = D9D_STAGE_HIDDEN,
                                   .per = D9D_STAGE_PER_HIDDEN,
                                   .dtype = m->dtype,
                                   .rank = 1,
                                   .shape = {m->hidden}};
    out[(*n)++] = (d9d_stage_spec){.name = "echo",
                                   .per = D9D_STAGE_PER_HIDDEN,
                                   .dtype = m->dtype,
                                   .rank = 1,
                                   .shape = {m->hidden},
                                   .constant = true};
    return D9D_OK;
}

/* On the CPU: the counter is the stage's number; what the first stage gave is what the second got.
 */
static d9d_status check_passed(const d9d_model *m, const d9d_model_in *in)
{
    const d9d_tensor *count = d9d_var_tensor(d9d_model_find_passed(in, "count")),
                     *echo = d9d_var_tensor(d9d_model_find_passed(in, "echo")),
                     *hidden = d9d_var_tensor(in->hidden);

    if (*(const int32_t *)d9d_tensor_data(count) != m->stage.index)
        return D9D_FAIL(D9D_EVERIFY, "stage %d: the counter is %d", m->stage.index,
                        *(const int32_t *)d9d_tensor_data(count));
    if (m->stage.index == 1 && memcmp(d9d_tensor_data(echo), d9d_tensor_data(hidden),
                                      (size_t)d9d_tensor_bytes(hidden)) != 0)
        return D9D_FAIL(D9D_EVERIFY, "stage 1: another echo than the hidden states");
    return D9D_OK;
}

/* The functions of the model inside, which are those of any decoder. */
static d9d_model_ops inner, outer;

static d9d_status carried_forward(d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                  d9d_model_out *out)
{
    const int32_t next = m->stage.index + 1;
    const bool first = d9d_stage_is_first(m->stage);
    d9d_tensor x;
    d9d_var *count;
    d9d_status st;

    if (!first)
        D9D_TRY(check_passed(m, in));
    D9D_TRY(inner.forward(m, t, in, out));
    if (d9d_stage_is_last(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_tensor_from_host(d9d_tape_device(t), D9D_I32, D9D_SHAPE(1), &next, &x));
    st = d9d_tape_leaf(t, &x, false, &count);
    d9d_tensor_release(&x);
    D9D_TRY(st);
    D9D_TRY(d9d_model_pass(out, "echo", first ? out->hidden : d9d_model_find_passed(in, "echo")));
    return d9d_model_pass(out, "count", count);
}

static d9d_status carried_create(const void *config, d9d_stage stage, const d9d_model_opts *o,
                                 d9d_model **out)
{
    D9D_TRY(create(config, stage, o, out));
    inner = outer = *(*out)->ops;
    outer.forward = carried_forward;
    outer.stage_tensors = stage_tensors;
    (*out)->ops = &outer;
    return D9D_OK;
}

static const d9d_table carried_table =
    D9D_TABLE(d9d_model_section, "carried_llama", keys, "Llama, and more between its stages");
static const d9d_model_provider carried = {sizeof(carried),
                                           &carried_table,
                                           .dims = &llama_dims,
                                           .create = carried_create,
                                           .hf_names = d9d_decoder_hf_names,
                                           .stages = true,
                                           .model_types = llama_types,
                                           .fields = fields};
static const d9d_model_provider *const carried_models[] = {&llama_provider, &mistral_provider,
                                                           &carried, NULL};
D9D_PLUGIN(.models = carried_models);
