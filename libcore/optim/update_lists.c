/* update_lists.c - as many updates as one kernel call can make.  See update_lists.h. */
#include "optim/update_lists.h"

#include "d9d/base/hash.h"

bool d9di_optimizer_rounds_stochastically(d9d_optimizer_weight_update update, d9d_dtype states)
{
    return update == D9D_UPDATE_STOCHASTIC || (update == D9D_UPDATE_MASTER && states != D9D_F32);
}

d9d_status d9di_optimizer_check_rounding(d9d_optimizer_weight_update update, d9d_dtype states,
                                         const char *path)
{
    if (update == D9D_UPDATE_NEAREST && states == D9D_I8)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: state_dtype int8 rounds stochastically: it needs weight_update master "
                        "or stochastic, not nearest",
                        path);
    return D9D_OK;
}

/* Can one kernel call make both updates? */
static bool same_batch(const d9d_optimizer_update *a, const d9d_optimizer_update *b)
{
    return a->step == b->step && a->lr == b->lr && a->param->spec.dtype == b->param->spec.dtype &&
           a->param->spec.grad_dtype == b->param->spec.grad_dtype &&
           a->state_dtype == b->state_dtype;
}

static void *state_data(const d9di_optimizer_rule *rule, const d9d_optimizer_update *u, int state)
{
    return state < rule->states ? d9d_tensor_data(&u->state[state]) : NULL;
}

static uint16_t *scale_data(const d9di_optimizer_rule *rule, const d9d_optimizer_update *u,
                            int state)
{
    return state < rule->states ? d9d_tensor_data(&u->state_scale[state]) : NULL;
}

static d9d_optim_arrays arrays_make(const d9di_optimizer_rule *rule, const d9d_optimizer_update *u)
{
    const d9d_param *p = u->param;

    return (d9d_optim_arrays){
        .p = d9d_tensor_data(&p->shard.data),
        .g = d9d_tensor_data(&p->shard.grad),
        .m = state_data(rule, u, 0),
        .v = state_data(rule, u, 1),
        .vmax = state_data(rule, u, 2),
        .n = d9d_tensor_numel(&p->shard.data),
        .residual = d9di_optimizer_residual(u, rule->weight_update, rule->states),
        .m_scale = scale_data(rule, u, 0),
        .v_scale = scale_data(rule, u, 1),
    };
}

/* Make as many of the first updates as one kernel call can (multi-tensor apply). */
static d9d_status update_batch(const d9di_optimizer_rule *rule, const d9d_optimizer_update *u,
                               size_t n, size_t *done)
{
    d9d_optim_arrays list[D9DI_OPTIMIZER_LIST_MAX];
    size_t count = 0;

    while (count < n && count < D9DI_OPTIMIZER_LIST_MAX && same_batch(u, &u[count])) {
        list[count] = arrays_make(rule, &u[count]);
        count++;
    }
    *done += count;
    return rule->list(rule->arg, u, list, (int64_t)count);
}

/* Stochastic rounding: one Philox stream for each parameter and step. */
static d9d_status update_stochastic(const d9di_optimizer_rule *rule, const d9d_optimizer_update *u)
{
    const d9d_optim_arrays arrays = arrays_make(rule, u);
    const uint64_t key[2] = {u->param->id, (uint64_t)u->step};
    const d9d_rng rng = {u->seed, d9d_hash_u64(key, sizeof(key))};

    return rule->stochastic(rule->arg, u, &arrays, rng);
}

d9d_status d9di_optimizer_update_lists(const d9di_optimizer_rule *rule,
                                       const d9d_optimizer_update *u, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (d9di_optimizer_rounds_stochastically(rule->weight_update, u[i].state_dtype))
            D9D_TRY(update_stochastic(rule, &u[i++]));
        else
            D9D_TRY(update_batch(rule, &u[i], n - i, &i));
    }
    return D9D_OK;
}
