/* lion.c - Lion, for float32 and bfloat16 weights.  Formulas: d9d/optim/optim.h. */
#include "optim/update_lists.h"

typedef struct lion_config {
    double lr;
    d9d_list betas;
    double weight_decay;
    int weight_update; /* a d9d_optimizer_weight_update */
    int state_dtype;
    d9d_list groups;
    double layer_lr_decay;
} lion_config;

static const d9d_key lion_keys[] = {
    D9D_KEY_REAL(lion_config, lr, D9D_REQUIRED, 0, 1e6,
                 "learning rate before the schedule: a third to a tenth of AdamW's",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_LIST(lion_config, betas, "[0.9, 0.99]", &d9di_optimizer_beta_elem,
                 "weight of the moment in the update, and decay of the moment", .min = 2, .max = 2),
    D9D_KEY_REAL(lion_config, weight_decay, "0", 0, 1e6, "weight decay: three to ten times AdamW's",
                 .flags = D9D_FLOAT32),
    D9D_KEY_ENUM(lion_config, state_dtype, "\"float32\"", d9di_optimizer_moment_dtype_names,
                 D9DI_MOMENT_DTYPE_DOC),
    D9D_OPTIMIZER_GROUP_KEYS(lion_config),
    D9D_KEY_ENUM(lion_config, weight_update, "\"master\"", d9di_optimizer_weight_update_names,
                 D9DI_WEIGHT_UPDATE_DOC),
    D9D_KEY_END,
};

static d9d_status lion_check(const void *value, const char *path)
{
    const lion_config *c = value;

    return d9di_optimizer_check_rounding((d9d_optimizer_weight_update)c->weight_update,
                                         d9di_optimizer_state_dtype(c->state_dtype), path);
}

extern const d9d_table d9di_optimizer_lion_table;
const d9d_table d9di_optimizer_lion_table =
    D9D_TABLE(lion_config, "lion", lion_keys, "Lion: the sign of a moment; one state",
              .check = lion_check, .row = &d9di_optimizer_lion);

static d9d_lion_step step_constants(const lion_config *c, const d9d_optimizer_update *u)
{
    const double *betas = c->betas.items;

    return (d9d_lion_step){
        .lr = u->lr, .beta1 = betas[0], .beta2 = betas[1], .weight_decay = c->weight_decay};
}

static d9d_status lion_list(const void *arg, const d9d_optimizer_update *u,
                            const d9d_optim_arrays *list, int64_t n)
{
    const d9d_lion_step step = step_constants(arg, u);

    return u->dev->kernels->optim->lion(u->dev->stream, &step, u->scale, u->param->spec.dtype,
                                        u->param->spec.grad_dtype, u->state_dtype, list, n);
}

static d9d_status lion_stochastic(const void *arg, const d9d_optimizer_update *u,
                                  const d9d_optim_arrays *a, d9d_rng rng)
{
    const d9d_lion_step step = step_constants(arg, u);
    const d9d_param *p = u->param;

    return u->dev->kernels->optim->lion_stochastic(
        u->dev->stream, &step, u->scale, p->spec.dtype, p->spec.grad_dtype, u->state_dtype, a, rng,
        p->shard.shape.ndim, p->shard.shape.dim, p->shard.offset, p->spec.shape.dim);
}

static d9d_optimizer_weight_update lion_weight_update(const void *config)
{
    return (d9d_optimizer_weight_update)((const lion_config *)config)->weight_update;
}

static d9d_status lion_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    const lion_config *c = config;
    const d9d_optimizer_weight_update update = lion_weight_update(config);
    const d9di_optimizer_rule rule = {
        .arg = c,
        .list = lion_list,
        .stochastic = lion_stochastic,
        .states = 1,
        .weight_update = update,
    };

    return d9di_optimizer_update_lists(&rule, u, n);
}

static d9d_dtype lion_dtype(const void *config, const d9d_param *p)
{
    return d9di_optimizer_moment_dtype(((const lion_config *)config)->state_dtype, p);
}

const d9d_optimizer_kind d9di_optimizer_lion = {.size = sizeof(d9d_optimizer_kind),
                                                .table = &d9di_optimizer_lion_table,
                                                .states = {"exp_avg", NULL},
                                                .state_dtype = lion_dtype,
                                                .update_list = lion_update,
                                                .partial_lists_ok = true,
                                                .weight_update = lion_weight_update};
