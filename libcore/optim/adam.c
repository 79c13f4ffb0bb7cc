/* adam.c - AdamW and Adam, for float32 and bfloat16 weights.  Formulas: d9d/optim/optim.h.
 */
#include <math.h>

#include "d9d/base/hash.h"
#include "optim/optimizer.h"

typedef struct adam_config {
    double lr;
    d9d_list betas;
    double eps, weight_decay;
    bool amsgrad, maximize, decoupled;
    int weight_update; /* a d9d_optimizer_weight_update */
    int state_dtype;
    d9d_list groups;
    double layer_lr_decay;
} adam_config;

static const char *const update_names[] = {[D9D_UPDATE_MASTER] = "master",
                                           [D9D_UPDATE_STOCHASTIC] = "stochastic",
                                           [D9D_UPDATE_NEAREST] = "nearest",
                                           [D9D_UPDATE_NEAREST + 1] = NULL};
static const d9d_key beta_elem = {.kind = D9D_KIND_REAL,
                                  .flags = D9D_BELOW_MAX | D9D_FLOAT32,
                                  .min = 0,
                                  .max = 1,
                                  .doc = "decay of a moment"};

#define ADAM_KEYS                                                                                  \
    D9D_KEY_REAL(adam_config, lr, D9D_REQUIRED, 0, 1e6, "learning rate before the schedule",       \
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),                                            \
        D9D_KEY_LIST(adam_config, betas, "[0.9, 0.999]", &beta_elem,                               \
                     "decay of the first and the second moment", .min = 2, .max = 2),              \
        D9D_KEY_REAL(adam_config, eps, "1e-8", 0, 1,                                               \
                     "added to the square root of the second moment",                              \
                     .flags = D9D_ABOVE_MIN | D9D_FLOAT32),                                        \
        D9D_KEY_REAL(adam_config, weight_decay, "0.01", 0, 1e6, "weight decay",                    \
                     .flags = D9D_FLOAT32),                                                        \
        D9D_KEY_ENUM(adam_config, state_dtype, "\"float32\"", d9di_optimizer_state_dtype_names,    \
                     "type of the moments; bfloat16 is rounded stochastically, and to nearest "    \
                     "with weight_update nearest"),                                                \
        D9D_OPTIMIZER_GROUP_KEYS(adam_config)
#define ADAM_FLAGS                                                                                 \
    D9D_KEY_BOOL(adam_config, amsgrad, "false", "use the largest second moment so far"),           \
        D9D_KEY_BOOL(adam_config, maximize, "false",                                               \
                     "maximize the objective instead of minimizing it"),                           \
        D9D_KEY_ENUM(adam_config, weight_update, "\"master\"", update_names,                       \
                     D9DI_WEIGHT_UPDATE_DOC)

static const d9d_key adamw_keys[] = {ADAM_KEYS, ADAM_FLAGS, D9D_KEY_END};
static const d9d_key adam_keys[] = {
    ADAM_KEYS,
    ADAM_FLAGS,
    {.name = "decoupled_weight_decay",
     .kind = D9D_KIND_BOOL,
     .offset = offsetof(adam_config, decoupled),
     .def = "false",
     .doc = "decay the weights, not the gradient"},
    D9D_KEY_END,
};
static const d9d_key stochastic_keys[] = {ADAM_KEYS, D9D_KEY_END};

static bool is_stochastic(const adam_config *c, d9d_optimizer_weight_update update)
{
    return update == D9D_UPDATE_STOCHASTIC || (update == D9D_UPDATE_MASTER && c->state_dtype != 0);
}

/* A maximum of stochastically rounded numbers is biased, so amsgrad is refused with it. */
static d9d_status adam_check(const void *value, const char *path)
{
    const adam_config *c = value;

    if (c->amsgrad && is_stochastic(c, (d9d_optimizer_weight_update)c->weight_update))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: amsgrad does not support stochastic rounding: it needs state_dtype "
                        "float32 with weight_update master, or weight_update nearest",
                        path);
    return D9D_OK;
}

extern const d9d_table d9di_optimizer_adamw_table, d9di_optimizer_adam_table,
    d9di_optimizer_stochastic_adamw_table;
const d9d_table d9di_optimizer_adamw_table = D9D_TABLE(
    adam_config, "adamw", adamw_keys, "AdamW", .check = adam_check, .row = &d9di_optimizer_adamw);
const d9d_table d9di_optimizer_adam_table = D9D_TABLE(
    adam_config, "adam", adam_keys, "Adam", .check = adam_check, .row = &d9di_optimizer_adam);
const d9d_table d9di_optimizer_stochastic_adamw_table =
    D9D_TABLE(adam_config, "stochastic_adamw", stochastic_keys,
              "AdamW on bfloat16 parameters with stochastic rounding: adamw with weight_update "
              "stochastic",
              .row = &d9di_optimizer_stochastic_adamw);

static d9d_adam_step step_constants(const adam_config *c, const d9d_optimizer_update *u,
                                    bool decoupled)
{
    const double *betas = c->betas.items;

    return (d9d_adam_step){
        .lr = u->lr,
        .beta1 = betas[0],
        .beta2 = betas[1],
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .bias_correction1 = 1.0 - pow(betas[0], (double)u->step),
        .bias_correction2 = 1.0 - pow(betas[1], (double)u->step),
        .decoupled = decoupled,
        .amsgrad = c->amsgrad,
        .maximize = c->maximize,
    };
}

/* Can one kernel call make both updates? */
static bool same_batch(const d9d_optimizer_update *a, const d9d_optimizer_update *b)
{
    return a->step == b->step && a->lr == b->lr && a->param->spec.dtype == b->param->spec.dtype &&
           a->param->spec.grad_dtype == b->param->spec.grad_dtype &&
           a->state_dtype == b->state_dtype;
}

static int adam_states(const void *config)
{
    return ((const adam_config *)config)->amsgrad ? 3 : 2;
}

static d9d_adam_arrays adam_arrays(const adam_config *c, d9d_optimizer_weight_update update,
                                   const d9d_optimizer_update *u)
{
    const d9d_param *p = u->param;

    return (d9d_adam_arrays){
        .p = d9d_tensor_data(&p->shard.data),
        .g = d9d_tensor_data(&p->shard.grad),
        .m = d9d_tensor_data(&u->state[0]),
        .v = d9d_tensor_data(&u->state[1]),
        .vmax = c->amsgrad ? d9d_tensor_data(&u->state[2]) : NULL,
        .n = d9d_tensor_numel(&p->shard.data),
        .residual = d9di_optimizer_residual(u, update, adam_states(c)),
    };
}

/* Make as many of the first updates as one kernel call can (multi-tensor apply). */
static d9d_status update_batch(const adam_config *c, bool decoupled,
                               d9d_optimizer_weight_update update, const d9d_optimizer_update *u,
                               size_t n, size_t *done)
{
    const d9d_adam_step step = step_constants(c, u, decoupled);
    d9d_adam_arrays list[64];
    size_t count = 0;

    while (count < n && count < 64 && same_batch(u, &u[count])) {
        list[count] = adam_arrays(c, update, &u[count]);
        count++;
    }
    *done += count;
    return u->dev->kernels->optim->adam(u->dev->stream, &step, u->scale, u->param->spec.dtype,
                                        u->param->spec.grad_dtype, u->state_dtype, list,
                                        (int64_t)count);
}

/* Stochastic rounding: one Philox stream for each parameter and step. */
static d9d_status update_stochastic(const adam_config *c, bool decoupled,
                                    d9d_optimizer_weight_update update,
                                    const d9d_optimizer_update *u)
{
    const d9d_adam_step step = step_constants(c, u, decoupled);
    const d9d_adam_arrays arrays = adam_arrays(c, update, u);
    const d9d_param *p = u->param;
    const uint64_t key[2] = {p->id, (uint64_t)u->step};
    const d9d_rng rng = {u->seed, d9d_hash_u64(key, sizeof(key))};

    return u->dev->kernels->optim->adam_stochastic(
        u->dev->stream, &step, u->scale, p->spec.dtype, p->spec.grad_dtype, u->state_dtype, &arrays,
        rng, p->shard.shape.ndim, p->shard.shape.dim, p->shard.offset, p->spec.shape.dim);
}

static d9d_status update_all(const adam_config *c, bool decoupled,
                             d9d_optimizer_weight_update update, const d9d_optimizer_update *u,
                             size_t n)
{
    const bool randomly = is_stochastic(c, update);

    for (size_t i = 0; i < n;) {
        if (randomly)
            D9D_TRY(update_stochastic(c, decoupled, update, &u[i++]));
        else
            D9D_TRY(update_batch(c, decoupled, update, &u[i], n - i, &i));
    }
    return D9D_OK;
}

static d9d_optimizer_weight_update weight_update(const void *config)
{
    return (d9d_optimizer_weight_update)((const adam_config *)config)->weight_update;
}

static d9d_status adamw_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    return update_all(config, true, weight_update(config), u, n);
}

static d9d_status adam_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    return update_all(config, ((const adam_config *)config)->decoupled, weight_update(config), u,
                      n);
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
    (void)p;
    return d9di_optimizer_state_dtype(((const adam_config *)config)->state_dtype);
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
