/* sgd.c - stochastic gradient descent with momentum.  Formulas: d9d/optim/optim.h. */
#include "optim/optimizer.h"

typedef struct sgd_config {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
    int weight_update, state_dtype;
    d9d_list groups;
    double layer_lr_decay;
} sgd_config;

static const char *const update_names[] = {"master", "nearest", NULL};

static const d9d_key sgd_keys[] = {
    D9D_KEY_REAL(sgd_config, lr, D9D_REQUIRED, 0, 1e6, "learning rate before the schedule",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(sgd_config, momentum, "0", 0, 1e6, "momentum: factor of the previous update",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(sgd_config, dampening, "0", -1e6, 1e6, "dampening of the gradient in the momentum",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(sgd_config, weight_decay, "0", 0, 1e6, "weight decay, through the gradient",
                 .flags = D9D_FLOAT32),
    D9D_KEY_BOOL(sgd_config, nesterov, "false", "Nesterov momentum"),
    D9D_KEY_BOOL(sgd_config, maximize, "false", "maximize the objective instead of minimizing it"),
    D9D_KEY_ENUM(sgd_config, weight_update, "\"master\"", update_names, D9DI_WEIGHT_UPDATE_DOC),
    D9D_KEY_ENUM(sgd_config, state_dtype, "\"float32\"", d9di_optimizer_state_dtype_names,
                 "type of the momentum buffer; bfloat16 is rounded to nearest"),
    D9D_OPTIMIZER_GROUP_KEYS(sgd_config),
    D9D_KEY_END,
};

static d9d_status sgd_check(const void *value, const char *path)
{
    const sgd_config *c = value;

    if (c->nesterov && (c->momentum <= 0 || c->dampening != 0))
        return D9D_FAIL(D9D_ECONFIG, "%s: nesterov needs a momentum and no dampening", path);
    return D9D_OK;
}

extern const d9d_table d9di_optimizer_sgd_table;
const d9d_table d9di_optimizer_sgd_table = {.name = "sgd",
                                            .size = sizeof(sgd_config),
                                            .keys = sgd_keys,
                                            .doc = "stochastic gradient descent",
                                            .check = sgd_check,
                                            .row = &d9di_optimizer_sgd};

static int sgd_states(const void *config)
{
    return ((const sgd_config *)config)->momentum > 0 ? 1 : 0;
}

static d9d_optimizer_weight_update sgd_weight_update(const void *config)
{
    return ((const sgd_config *)config)->weight_update == 0 ? D9D_UPDATE_MASTER
                                                            : D9D_UPDATE_NEAREST;
}

static d9d_status sgd_update(const void *config, const d9d_optimizer_update *u)
{
    const sgd_config *c = config;
    const d9d_param *p = u->param;
    const int states = sgd_states(config);
    const d9d_sgd_step step = {
        .lr = u->lr,
        .momentum = c->momentum,
        .dampening = c->dampening,
        .weight_decay = c->weight_decay,
        .nesterov = c->nesterov,
        .maximize = c->maximize,
        .first = u->step == 1,
    };

    return u->dev->kernels->optim->sgd(
        u->dev->stream, &step, p->spec.dtype, d9d_tensor_data(&p->shard.data),
        d9di_optimizer_residual(u, sgd_weight_update(config), states), p->spec.grad_dtype,
        d9d_tensor_data(&p->shard.grad), u->scale, u->state_dtype,
        states > 0 ? d9d_tensor_data(&u->state[0]) : NULL, d9d_tensor_numel(&p->shard.data));
}

static d9d_dtype sgd_dtype(const void *config, const d9d_param *p)
{
    (void)p;
    return d9di_optimizer_state_dtype(((const sgd_config *)config)->state_dtype);
}

const d9d_optimizer_kind d9di_optimizer_sgd = {.size = sizeof(d9d_optimizer_kind),
                                               .table = &d9di_optimizer_sgd_table,
                                               .states = {"momentum_buffer", NULL},
                                               .n_states = sgd_states,
                                               .state_dtype = sgd_dtype,
                                               .update = sgd_update,
                                               .weight_update = sgd_weight_update};
