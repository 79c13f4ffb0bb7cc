/* param_unit.c - unshard and reshard of FSDP units: directly in forward, by the tape in backward.
 * See d9d/nn/param_unit.h.
 *
 * Backward meets a forward's reshard first, so there it unshards.  A dgrad pass unshards and
 * reshards data only; the later wgrad pass is a backward of its own.
 */
#include "d9d/nn/param_unit.h"

static d9d_param_unit *unit_of(const d9d_node *n)
{
    return *(d9d_param_unit *const *)n->attr;
}

#define UNIT_HOOK(name, call, pass)                                                                \
    static d9d_status name(d9d_node *n)                                                            \
    {                                                                                              \
        return unit_of(n)->ops->call(unit_of(n), pass);                                            \
    }
UNIT_HOOK(unshard_for_dgrad, unshard, D9D_PARAM_UNIT_DGRAD)
UNIT_HOOK(unshard_now, unshard, D9D_PARAM_UNIT_BACKWARD)
UNIT_HOOK(reshard_after_dgrad, reshard, D9D_PARAM_UNIT_DGRAD)
UNIT_HOOK(reshard_now, reshard, D9D_PARAM_UNIT_BACKWARD)

static d9d_status unshard_for_grads(d9d_node *n)
{
    if (unit_of(n)->reshard_deferred)
        D9D_TRY(d9d_tape_run_deferred(n->tape));
    return unshard_now(n);
}

static d9d_status reshard_deferred(d9d_node *n)
{
    unit_of(n)->reshard_deferred = false;
    return reshard_now(n);
}

static d9d_status reshard_defer(d9d_node *n)
{
    unit_of(n)->reshard_deferred = true;
    return d9d_node_defer(n, reshard_deferred);
}

static const d9d_node_ops reshard_node_ops = {.name = "unshard",
                                              .dgrad = unshard_for_dgrad,
                                              .wgrad = unshard_for_grads,
                                              .bwd = unshard_for_grads};
static const d9d_node_ops unshard_node_ops = {.name = "reduce_scatter",
                                              .dgrad = reshard_after_dgrad,
                                              .wgrad = reshard_defer,
                                              .bwd = reshard_defer};

static d9d_status node_record(d9d_param_unit *u, d9d_tape *t, const d9d_node_ops *ops)
{
    d9d_node *n;

    D9D_TRY(d9d_tape_record_hook(t, ops, sizeof(u), &n));
    if (n != NULL)
        *(d9d_param_unit **)n->attr = u;
    return D9D_OK;
}

d9d_status d9d_param_unit_unshard(d9d_module *m, d9d_tape *t)
{
    if (m->unit == NULL)
        return D9D_OK;
    D9D_TRY(m->unit->ops->unshard(m->unit, D9D_PARAM_UNIT_FORWARD));
    return node_record(m->unit, t, &unshard_node_ops);
}

d9d_status d9d_param_unit_reshard(d9d_module *m, d9d_tape *t)
{
    if (m->unit == NULL)
        return D9D_OK;
    D9D_TRY(node_record(m->unit, t, &reshard_node_ops));
    return m->unit->ops->reshard(m->unit, D9D_PARAM_UNIT_FORWARD);
}

d9d_status d9d_param_unit_run(d9d_module *m, d9d_tape *t, bool recompute, d9d_tape_forward_fn fn,
                              void *self, d9d_var *const *in, size_t n_in, d9d_var **out)
{
    const size_t mark = d9d_tape_mark(t);

    D9D_TRY(d9d_param_unit_unshard(m, t));
    D9D_TRY(recompute ? d9d_tape_recompute(t, fn, self, in, n_in, out, 1)
                      : fn(self, t, in, n_in, out, 1));
    D9D_TRY(d9d_param_unit_reshard(m, t));
    d9d_tape_release_since(t, mark, out, 1);
    return D9D_OK;
}
