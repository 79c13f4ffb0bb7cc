/* registry.c - the table of built-in optimizers.  See d9d/optim/optim.h.
 */
#include "optim/optimizer.h"

extern const d9d_table d9di_optimizer_adamw_table, d9di_optimizer_adam_table,
    d9di_optimizer_stochastic_adamw_table, d9di_optimizer_lion_table, d9di_optimizer_muon_table,
    d9di_optimizer_sgd_table, d9di_optimizer_adafactor_table, d9di_optimizer_schedule_free_table;

const char *const d9d_optimizer_tag[] = {"name", NULL};

const char *const d9di_optimizer_weight_update_names[] = {[D9D_UPDATE_MASTER] = "master",
                                                          [D9D_UPDATE_STOCHASTIC] = "stochastic",
                                                          [D9D_UPDATE_NEAREST] = "nearest",
                                                          [D9D_UPDATE_NEAREST + 1] = NULL};

const d9d_key d9di_optimizer_beta_elem = {.kind = D9D_KIND_REAL,
                                          .flags = D9D_BELOW_MAX | D9D_FLOAT32,
                                          .min = 0,
                                          .max = 1,
                                          .doc = "decay of a moment"};

const char *const d9di_optimizer_kind_names[] = {
    [D9DI_KIND_MUON] = "muon", [D9DI_KIND_ADAMW] = "adamw", NULL};

const char *const d9di_optimizer_state_dtype_names[] = {"float32", "bfloat16", NULL};
const char *const d9di_optimizer_moment_dtype_names[] = {"float32", "bfloat16", "int8", NULL};

d9d_dtype d9di_optimizer_state_dtype(int word)
{
    static const d9d_dtype types[] = {D9D_F32, D9D_BF16, D9D_I8};

    return types[word];
}

d9d_dtype d9di_optimizer_moment_dtype(int word, const d9d_param *p)
{
    const d9d_dtype t = d9di_optimizer_state_dtype(word);
    const d9d_shape *s = &p->spec.shape;

    return t == D9D_I8 && (s->ndim < 2 || s->dim[s->ndim - 1] < D9D_STATE_BLOCK) ? D9D_F32 : t;
}

const d9d_table *const d9d_optimizer_choices[] = {
    &d9di_optimizer_adamw_table,
    &d9di_optimizer_adam_table,
    &d9di_optimizer_stochastic_adamw_table,
    &d9di_optimizer_sgd_table,
    &d9di_optimizer_lion_table,
    &d9di_optimizer_muon_table,
    &d9di_optimizer_adafactor_table,
    &d9di_optimizer_schedule_free_table,
    NULL,
};
