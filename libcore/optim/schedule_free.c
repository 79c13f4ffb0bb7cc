/* schedule_free.c - schedule-free AdamW, for float32 and bfloat16 weights.  Formulas:
 * d9d/optim/optim.h. */
#include <math.h>
#include <stdlib.h>

#include "optim/update_lists.h"

typedef struct schedule_free_config {
    double lr;
    d9d_list betas;
    double eps, weight_decay, r, weight_lr_power;
    int64_t warmup_steps;
    int weight_update;
    d9d_list groups;
    double layer_lr_decay;
} schedule_free_config;

static const char *const update_names[] = {"master", "nearest", NULL};

static const d9d_key beta_elem = {.kind = D9D_KIND_REAL,
                                  .flags = D9D_ABOVE_MIN | D9D_BELOW_MAX | D9D_FLOAT32,
                                  .min = 0,
                                  .max = 1,
                                  .doc = "a weight"};

static const d9d_key schedule_free_keys[] = {
    D9D_KEY_REAL(schedule_free_config, lr, D9D_REQUIRED, 0, 1e6,
                 "learning rate: one to ten times AdamW's", .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_LIST(schedule_free_config, betas, "[0.9, 0.999]", &beta_elem,
                 "weight of the average in the trained weights, and decay of the second moment",
                 .min = 2, .max = 2),
    D9D_KEY_REAL(schedule_free_config, eps, "1e-8", 0, 1,
                 "added to the square root of the second moment",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(schedule_free_config, weight_decay, "0", 0, 1e6, "weight decay",
                 .flags = D9D_FLOAT32),
    D9D_KEY_INT(schedule_free_config, warmup_steps, "0", 0, INT64_C(1) << 40,
                "steps over which the learning rate rises linearly, in place of a schedule"),
    D9D_KEY_REAL(schedule_free_config, r, "0", 0, 100,
                 "step n weighs n to this power in the average"),
    D9D_KEY_REAL(schedule_free_config, weight_lr_power, "2", 0, 100,
                 "and its learning rate in the warmup to this power"),
    D9D_OPTIMIZER_GROUP_KEYS(schedule_free_config),
    D9D_KEY_ENUM(schedule_free_config, weight_update, "\"master\"", update_names,
                 D9DI_WEIGHT_UPDATE_DOC),
    D9D_KEY_END,
};

extern const d9d_table d9di_optimizer_schedule_free_table;
const d9d_table d9di_optimizer_schedule_free_table =
    D9D_TABLE(schedule_free_config, "schedule_free_adamw", schedule_free_keys,
              "schedule-free AdamW: an average of the weights in place of a schedule",
              .row = &d9di_optimizer_schedule_free);

/* --- the average's weights -------------------------------------------------------------------- */

/* The sum of the weights of the steps so far over the last one's, whose powers may be beyond a
 * double.  Numbers of steps alone decide it. */
typedef struct weight_sum {
    int64_t step;
    double relative;
} weight_sum;

/* The learning rate of a step as a part of the largest. */
static double warmup_factor(const schedule_free_config *c, int64_t step)
{
    return step < c->warmup_steps ? (double)step / (double)c->warmup_steps : 1;
}

/* The weight of the step before as a part of the step's. */
static double weight_ratio(const schedule_free_config *c, int64_t step)
{
    return pow((double)(step - 1) / (double)step, c->r) *
           pow(warmup_factor(c, step - 1) / warmup_factor(c, step), c->weight_lr_power);
}

/* The step's part of the sum.  Sums are made step after step, so that a run that goes on has the
 * bits of one that was not interrupted. */
static double average_weight(const schedule_free_config *c, weight_sum *s, int64_t step)
{
    if (step < s->step)
        *s = (weight_sum){0};
    while (s->step < step)
        s->relative = 1 + s->relative * weight_ratio(c, ++s->step);
    return 1 / s->relative;
}

/* Groups may have other weights: each has a sum of its own.  `self`: of open(), for all. */
typedef struct schedule_free_call {
    const schedule_free_config *config;
    weight_sum *sum;
} schedule_free_call;

static d9d_status schedule_free_open(const d9d_optimizer_open_opts *opts, void **self)
{
    weight_sum *s = calloc(1, sizeof(*s));

    (void)opts;
    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: %zu bytes", sizeof(*s));
    *self = s;
    return D9D_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

static d9d_status schedule_free_list(const void *arg, const d9d_optimizer_update *u,
                                     const d9d_optim_arrays *list, int64_t n)
{
    const schedule_free_call *call = arg;
    const schedule_free_config *c = call->config;
    const double *betas = c->betas.items;
    const d9d_schedule_free_step step = {
        .lr = u->lr * warmup_factor(c, u->step),
        .beta1 = betas[0],
        .beta2 = betas[1],
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .bias_correction2 = 1.0 - pow(betas[1], (double)u->step),
        .weight = average_weight(c, call->sum, u->step),
        .first = u->step == 1,
    };

    return u->dev->kernels->optim->schedule_free(
        u->dev->stream, &step, u->scale, u->param->spec.dtype, u->param->spec.grad_dtype, list, n);
}

static d9d_optimizer_weight_update weight_update(const void *config)
{
    return ((const schedule_free_config *)config)->weight_update == 0 ? D9D_UPDATE_MASTER
                                                                      : D9D_UPDATE_NEAREST;
}

static d9d_status schedule_free_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    const schedule_free_call call = {config, n > 0 ? u->self : NULL};
    const d9di_optimizer_rule rule = {.arg = &call,
                                      .list = schedule_free_list,
                                      .states = 2,
                                      .weight_update = weight_update(config)};

    return d9di_optimizer_update_lists(&rule, u, n);
}

/* x = y + (1 - 1 / beta1) (z - y) */
static d9d_status schedule_free_average(const void *config, const d9d_optimizer_update *u)
{
    const schedule_free_config *c = config;
    const d9d_average_step step = {.to_state = 1 - 1 / *(const double *)c->betas.items};
    const d9d_param *p = u->param;
    const d9d_optim_arrays a = {
        .p = d9d_tensor_data(&p->shard.data),
        .g = d9d_tensor_data(&p->shard.data),
        .m = d9d_tensor_data(&u->state[0]),
        .n = d9d_tensor_numel(&p->shard.data),
        .residual = d9di_optimizer_residual(u, weight_update(config), 2),
    };

    return u->dev->kernels->optim->average(u->dev->stream, &step, u->scale, p->spec.dtype, D9D_F32,
                                           &a, 1);
}

static d9d_dtype schedule_free_dtype(const void *config, const d9d_param *p)
{
    (void)config, (void)p;
    return D9D_F32;
}

const d9d_optimizer_kind d9di_optimizer_schedule_free = {.size = sizeof(d9d_optimizer_kind),
                                                         .table =
                                                             &d9di_optimizer_schedule_free_table,
                                                         .states = {"z", "exp_avg_sq", NULL},
                                                         .state_dtype = schedule_free_dtype,
                                                         .update_list = schedule_free_update,
                                                         .partial_lists_ok = true,
                                                         .weight_update = weight_update,
                                                         .average = schedule_free_average,
                                                         .open = schedule_free_open,
                                                         .close = free};
