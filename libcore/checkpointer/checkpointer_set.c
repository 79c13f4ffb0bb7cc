/* checkpointer_set.c - builds the set of tensors and counts of a run.  See
 * d9d/checkpointer/checkpointer.h. */
#include <string.h>

#include "d9d/checkpointer/checkpointer.h"
#include "d9d/nn/adapter.h"

static d9d_checkpointer_tensor make_item(const char *name, const char *group, d9d_tensor *t,
                                         const d9d_param *p)
{
    d9d_checkpointer_tensor e = {
        .name = name,
        .group = group,
        .tensor = t,
        .global_shape = p->spec.shape,
        .is_remote = !p->placement.is_primary || d9d_shape_numel(&p->shard.shape) == 0,
    };

    memcpy(e.start, p->shard.offset, sizeof(e.start));
    return e;
}

/* The name that parameter i of a matrix's adapter has if no other shares it; NULL: no memory. */
static const char *own_name(const d9d_param *w, int i, d9d_arena *a)
{
    const char *dot = strrchr(w->name, '.');

    return d9d_arena_printf(a, "%.*s.%s", (int)(dot != NULL ? dot - w->name : 0), w->name,
                            w->peft.adapter->kind->params[i].name);
}

static d9d_status former_list(const d9d_params *params, d9d_arena *a, d9d_checkpointer_set *set)
{
    set->former = d9d_arena_alloc(a, (D9D_ADAPTER_PARAMS * params->n + 1) * sizeof(*set->former));
    if (set->former == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for names of %zu tensors", params->n);
    for (size_t k = 0; k < params->n; k++)
        for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
            const char *name;

            if (!d9d_adapter_is_shared(params->p[k], i))
                continue;
            name = own_name(params->p[k], i, a);
            if (name == NULL)
                return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for a name");
            if (strcmp(name, params->p[k]->peft.adapter->param[i]->name) != 0)
                set->former[set->n_former++] = name;
        }
    return D9D_OK;
}

d9d_status d9d_checkpointer_set_make(const d9d_params *params, d9d_optimizer *opt,
                                     bool trainable_only, d9d_arena *a, d9d_checkpointer_set *out)
{
    const size_t n_states = opt != NULL ? d9d_optimizer_state_count(opt) : 0;
    size_t n_steps = 0;
    int64_t *steps = opt != NULL ? d9d_optimizer_steps(opt, &n_steps) : NULL;
    d9d_checkpointer_set set = {.partial = trainable_only,
                                .optimizer = opt != NULL ? d9d_optimizer_name(opt) : NULL};

    set.items = d9d_arena_alloc(a, (params->n + n_states + 1) * sizeof(*set.items));
    set.counts = d9d_arena_alloc(a, (n_steps + 1) * sizeof(*set.counts));
    if (set.items == NULL || set.counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %zu tensors",
                        params->n + n_states);
    for (size_t i = 0; i < params->n; i++)
        if (params->p[i]->spec.trainable || params->p[i]->spec.is_mutable_buffer || !trainable_only)
            set.items[set.n++] =
                make_item(params->p[i]->name, "model", &params->p[i]->shard.data, params->p[i]);
    for (size_t i = 0; i < n_states; i++) {
        const d9d_optimizer_state s = d9d_optimizer_state_at(opt, i);

        set.items[set.n] = make_item(s.name, "optimizer", s.tensor, s.param);
        set.items[set.n].residual = s.residual;
        set.items[set.n++].widens = s.tensor->dtype == D9D_F32;
    }
    for (size_t i = 0; i < n_steps; i++)
        if (params->p[i]->spec.trainable)
            set.counts[set.n_counts++] = (d9d_checkpointer_count){params->p[i]->name, &steps[i]};
    D9D_TRY(former_list(params, a, &set));
    *out = set;
    return D9D_OK;
}

d9d_status d9d_checkpointer_set_local(const d9d_checkpointer_set *set, d9d_arena *a,
                                      d9d_checkpointer_set *out)
{
    d9d_checkpointer_set here = *set;

    here.n = 0;
    here.items = d9d_arena_alloc(a, (set->n + 1) * sizeof(*here.items));
    if (here.items == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for records of %zu tensors", set->n);
    for (size_t i = 0; i < set->n; i++)
        if (!set->items[i].is_remote)
            here.items[here.n++] = set->items[i];
    *out = here;
    return D9D_OK;
}
