/* adam.c - AdamW and Adam, for float32 and bfloat16 weights.  Formulas: d9d/optim/optim.h.
 */
#include <math.h>

#include "optim/adam.h"
#include "optim/update_lists.h"

#define ADAM_KEYS                                                                                  \
    D9D_KEY_REAL(d9di_optimizer_adam_config, lr, D9D_REQUIRED, 0, 1e6,                             \
                 "learning rate before the schedule", .flags = D9D_ABOVE_MIN | D9D_FLOAT32),       \
        D9DI_ADAM_MOMENT_KEYS, D9D_OPTIMIZER_GROUP_KEYS(d9di_optimizer_adam_config)
#define ADAM_FLAGS                                                                                 \
    D9D_KEY_BOOL(d9di_optimizer_adam_config, amsgrad, "false",                                     \
                 "use the largest second moment so far"),                                          \
        D9D_KEY_BOOL(d9di_optimizer_adam_config, maximize, "false",                                \
                     "maximize the objective instead of minimizing it"),                           \
        D9DI_ADAM_WEIGHT_UPDATE_KEY

static const d9d_key adamw_keys[] = {ADAM_KEYS, ADAM_FLAGS, D9D_KEY_END};
static const d9d_key adam_keys[] = {
    ADAM_KEYS,
    ADAM_FLAGS,
    {.name = "decoupled_weight_decay",
     .kind = D9D_KIND_BOOL,
     .offset = offsetof(d9di_optimizer_adam_config, decoupled),
     .def = "false",
     .doc = "decay the weights, not the gradient"},
    D9D_KEY_END,
};
static const d9d_key stochastic_keys[] = {ADAM_KEYS, D9D_KEY_END};

/* A maximum of stochastically rounded numbers is biased, so amsgrad is refused with it. */
d9d_status d9di_optimizer_adam_check(const void *value, const char *path)
{
    const d9di_optimizer_adam_config *c = value;
    const d9d_optimizer_weight_update update = (d9d_optimizer_weight_update)c->weight_update;
    const d9d_dtype states = d9di_optimizer_state_dtype(c->state_dtype);

    D9D_TRY(d9di_optimizer_check_rounding(update, states, path));
    if (c->amsgrad && d9di_optimizer_rounds_stochastically(update, states))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: amsgrad does not support stochastic rounding: it needs state_dtype "
                        "float32 with weight_update master, or weight_update nearest",
                        path);
    return D9D_OK;
}

extern const d9d_table d9di_optimizer_adamw_table, d9di_optimizer_adam_table,
    d9di_optimizer_stochastic_adamw_table;
const d9d_table d9di_optimizer_adamw_table =
    D9D_TABLE(d9di_optimizer_adam_config, "adamw", adamw_keys, "AdamW",
              .check = d9di_optimizer_adam_check, .row = &d9di_optimizer_adamw);
const d9d_table d9di_optimizer_adam_table =
    D9D_TABLE(d9di_optimizer_adam_config, "adam", adam_keys, "Adam",
              .check = d9di_optimizer_adam_check, .row = &d9di_optimizer_adam);
const d9d_table d9di_optimizer_stochastic_adamw_table =
    D9D_TABLE(d9di_optimizer_adam_config, "stochastic_adamw", stochastic_keys,
              "AdamW on bfloat16 parameters with stochastic rounding: adamw with weight_update "
              "stochastic",
              .row = &d9di_optimizer_stochastic_adamw);

/* What a step has beside the constants of the section. */
typedef struct adam_call {
    const d9di_optimizer_adam_config *config;
    bool decoupled;
} adam_call;

static d9d_adam_step step_constants(const adam_call *call, const d9d_optimizer_update *u)
{
    const d9di_optimizer_adam_config *c = call->config;
    const double *betas = c->betas.items;

    return (d9d_adam_step){
        .lr = u->lr,
        .beta1 = betas[0],
        .beta2 = betas[1],
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .bias_correction1 = 1.0 - pow(betas[0], (double)u->step),
        .bias_correction2 = 1.0 - pow(betas[1], (double)u->step),
        .decoupled = call->decoupled,
        .amsgrad = c->amsgrad,
        .maximize = c->maximize,
    };
}

static int adam_states(const void *config)
{
    return ((const d9di_optimizer_adam_config *)config)->amsgrad ? 3 : 2;
}

static d9d_status adam_list(const void *arg, const d9d_optimizer_update *u,
                            const d9d_optim_arrays *list, int64_t n)
{
    const d9d_adam_step step = step_constants(arg, u);

    return u->dev->kernels->optim->adam(u->dev->stream, &step, u->scale, u->param->spec.dtype,
                                        u->param->spec.grad_dtype, u->state_dtype, list, n);
}

static d9d_status adam_stochastic(const void *arg, const d9d_optimizer_update *u,
                                  const d9d_optim_arrays *a, d9d_rng rng)
{
    const d9d_adam_step step = step_constants(arg, u);
    const d9d_param *p = u->param;

    return u->dev->kernels->optim->adam_stochastic(
        u->dev->stream, &step, u->scale, p->spec.dtype, p->spec.grad_dtype, u->state_dtype, a, rng,
        p->shard.shape.ndim, p->shard.shape.dim, p->shard.offset, p->spec.shape.dim);
}

static d9d_status update_all(const d9di_optimizer_adam_config *c, bool decoupled,
                             d9d_optimizer_weight_update update, const d9d_optimizer_update *u,
                             size_t n)
{
    const adam_call call = {c, decoupled};
    const d9di_optimizer_rule rule = {
        .arg = &call,
        .list = adam_list,
        .stochastic = adam_stochastic,
        .states = adam_states(c),
        .weight_update = update,
    };

    return d9di_optimizer_update_lists(&rule, u, n);
}

static d9d_optimizer_weight_update weight_update(const void *config)
{
    return (d9d_optimizer_weight_update)((const d9di_optimizer_adam_config *)config)->weight_update;
}

static d9d_status adamw_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    return update_all(config, true, weight_update(config), u, n);
}

static d9d_status adam_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    return update_all(config, ((const d9di_optimizer_adam_config *)config)->decoupled,
                      weight_update(config), u, n);
}

static d9d_optimizer_weight_update stochastic_weight_update(const void *config)
{
    (void)config;
    return D9D_UPDATE_STOCHASTIC;
}

static d9d_status stochastic_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    return update_all(config, true, D9D_UPDATE_STOCHASTIC, u, n);
}

static d9d_dtype adam_dtype(const void *config, const d9d_param *p)
{
    return d9di_optimizer_moment_dtype(((const d9di_optimizer_adam_config *)config)->state_dtype,
                                       p);
}

static d9d_status stochastic_accepts(const d9d_param *p)
{
    if (p->spec.dtype != D9D_BF16)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer: stochastic_adamw rounds to bfloat16, and %s is %s; set "
                        "model_provider.dtype to \"bfloat16\" or use adamw",
                        p->name, d9d_dtype_name(p->spec.dtype));
    return D9D_OK;
}

#define ADAM(name, section, ...)                                                                   \
    const d9d_optimizer_kind name = {.size = sizeof(d9d_optimizer_kind),                           \
                                     .table = &(section),                                          \
                                     .states = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", NULL},  \
                                     .n_states = adam_states,                                      \
                                     .state_dtype = adam_dtype,                                    \
                                     .partial_lists_ok = true,                                     \
                                     __VA_ARGS__}
ADAM(d9di_optimizer_adamw, d9di_optimizer_adamw_table, .update_list = adamw_update,
     .weight_update = weight_update);
ADAM(d9di_optimizer_adam, d9di_optimizer_adam_table, .update_list = adam_update,
     .weight_update = weight_update);
ADAM(d9di_optimizer_stochastic_adamw, d9di_optimizer_stochastic_adamw_table,
     .update_list = stochastic_update, .weight_update = stochastic_weight_update,
     .accepts = stochastic_accepts);
