/* adam.c - AdamW, Adam, and AdamW with stochastic rounding.  Formulas: d9d/optim/optim.h. */
#include <math.h>

#include "d9d/base/hash.h"
#include "optim/optimizer.h"

typedef struct adam_config {
    double lr;
    d9d_list betas;
    double eps, weight_decay;
    bool amsgrad, maximize, decoupled;
    int state_dtype;
} adam_config;

static const char *const dtype_words[] = {"float32", "bfloat16", NULL};
static const d9d_key beta_elem = {
    .kind = D9D_KIND_REAL, .flags = D9D_BELOW_MAX, .min = 0, .max = 1, .doc = "decay of a moment"};

#define ADAM_KEYS                                                                                  \
    D9D_KEY_REAL(adam_config, lr, D9D_REQUIRED, 0, 1e6, "learning rate before the schedule",       \
                 .flags = D9D_ABOVE_MIN),                                                          \
        D9D_KEY_LIST(adam_config, betas, "[0.9, 0.999]", &beta_elem,                               \
                     "decay of the first and the second moment", .min = 2, .max = 2),              \
        D9D_KEY_REAL(adam_config, eps, "1e-8", 0, 1, "added to the root of the second moment",     \
                     .flags = D9D_ABOVE_MIN),                                                      \
        D9D_KEY_REAL(adam_config, weight_decay, "0.01", 0, 1e6, "weight decay")
#define ADAM_FLAGS                                                                                 \
    D9D_KEY_BOOL(adam_config, amsgrad, "false", "use the largest second moment so far"),           \
        D9D_KEY_BOOL(adam_config, maximize, "false", "climb instead of descend")

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
static const d9d_key stochastic_keys[] = {
    ADAM_KEYS,
    D9D_KEY_ENUM(adam_config, state_dtype, "\"float32\"", dtype_words, "type of both moments"),
    D9D_KEY_END,
};

extern const d9d_table d9di_adamw_table, d9di_adam_table, d9di_stochastic_table;
const d9d_table d9di_adamw_table =
    D9D_TABLE(adam_config, "adamw", adamw_keys, "AdamW", .row = &d9di_adamw);
const d9d_table d9di_adam_table =
    D9D_TABLE(adam_config, "adam", adam_keys, "Adam", .row = &d9di_adam);
const d9d_table d9di_stochastic_table = D9D_TABLE(
    adam_config, "stochastic_adamw", stochastic_keys,
    "AdamW on bfloat16 parameters with stochastic rounding", .row = &d9di_stochastic_adamw);

static d9d_adam_step constants(const adam_config *c, const d9d_update *u, bool decoupled)
{
    const double *betas = c->betas.items;

    return (d9d_adam_step){
        .lr = u->lr,
        .beta1 = betas[0],
        .beta2 = betas[1],
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .bias1 = 1.0 - pow(betas[0], (double)u->step),
        .bias2 = 1.0 - pow(betas[1], (double)u->step),
        .decoupled = decoupled,
        .amsgrad = c->amsgrad,
        .maximize = c->maximize,
    };
}

/* Updates that one call of the kernel can make. */
static bool alike(const d9d_update *a, const d9d_update *b)
{
    return a->step == b->step && a->param->dtype == b->param->dtype &&
           a->param->grad_dtype == b->param->grad_dtype && a->state_dtype == b->state_dtype;
}

static d9d_adam_arrays arrays_of(const adam_config *c, const d9d_update *u)
{
    const d9d_param *p = u->param;

    return (d9d_adam_arrays){
        .p = d9d_tensor_data(&p->own),
        .g = d9d_tensor_data(&p->own_grad),
        .m = d9d_tensor_data(&u->state[0]),
        .v = d9d_tensor_data(&u->state[1]),
        .vmax = c->amsgrad ? d9d_tensor_data(&u->state[2]) : NULL,
        .n = d9d_tensor_numel(&p->own),
    };
}

static d9d_status adam_update_with(const adam_config *c, const d9d_update *u, size_t n,
                                   bool decoupled)
{
    for (size_t i = 0; i < n;) {
        const d9d_update *first = &u[i];
        const d9d_adam_step step = constants(c, first, decoupled);
        d9d_adam_arrays list[64];
        int64_t count = 0;

        while (i < n && count < 64 && alike(first, &u[i]))
            list[count++] = arrays_of(c, &u[i++]);
        D9D_TRY(first->dev->kernels->adam(first->dev->stream, &step, first->scale,
                                          first->param->dtype, first->param->grad_dtype,
                                          first->state_dtype, list, count));
    }
    return D9D_OK;
}

static d9d_status adamw_update(const void *config, const d9d_update *u, size_t n)
{
    return adam_update_with(config, u, n, true);
}

static d9d_status adam_update(const void *config, const d9d_update *u, size_t n)
{
    return adam_update_with(config, u, n, ((const adam_config *)config)->decoupled);
}

/* The noise of a step: one stream a parameter and step. */
static d9d_status stochastic_update(const void *config, const d9d_update *u)
{
    const d9d_adam_step step = constants(config, u, true);
    const d9d_param *p = u->param;
    const uint64_t key[2] = {p->id, (uint64_t)u->step};
    const d9d_rng rng = {u->seed, d9d_hash64(key, sizeof(key))};

    return u->dev->kernels->adam_stochastic(
        u->dev->stream, &step, d9d_tensor_data(&p->own), p->grad_dtype,
        d9d_tensor_data(&p->own_grad), u->scale, u->state_dtype, d9d_tensor_data(&u->state[0]),
        d9d_tensor_data(&u->state[1]), rng, p->box.ndim, p->box.dim, p->start, p->whole.dim);
}

static int adam_states(const void *config)
{
    return ((const adam_config *)config)->amsgrad ? 3 : 2;
}

static d9d_dtype stochastic_dtype(const void *config, const d9d_param *p)
{
    (void)p;
    return ((const adam_config *)config)->state_dtype == 0 ? D9D_F32 : D9D_BF16;
}

static d9d_status stochastic_accepts(const d9d_param *p)
{
    if (p->dtype != D9D_BF16)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer: stochastic_adamw rounds to bfloat16, and %s is %s; set "
                        "model_provider.dtype to \"bfloat16\" or use adamw",
                        p->name, d9d_dtype_word(p->dtype));
    return D9D_OK;
}

/* As in torch.optim, moments have the parameter's type, but where noise is rounded. */
#define ADAM(name, section, ...)                                                                   \
    const d9d_optimizer_kind name = {.size = sizeof(d9d_optimizer_kind),                           \
                                     .table = &(section),                                          \
                                     .states = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", NULL},  \
                                     .n_states = adam_states,                                      \
                                     __VA_ARGS__}
ADAM(d9di_adamw, d9di_adamw_table, .update_list = adamw_update, .in_turns = true);
ADAM(d9di_adam, d9di_adam_table, .update_list = adam_update, .in_turns = true);
ADAM(d9di_stochastic_adamw, d9di_stochastic_table, .update = stochastic_update,
     .state_dtype = stochastic_dtype, .accepts = stochastic_accepts);
