/* param_unit.h - FSDP units: parameters that are unsharded together, and when.
 *
 * Ranks that store shards of a layer's parameters unshard them (all-gather) just before the layer
 * computes and reshard them (free the full copy) just after.  A model marks both places, with a
 * module as the unit:
 *
 *     D9D_TRY(d9d_param_unit_unshard(&layer->module, tape));
 *     ... the layer's forward, also by d9d_tape_recompute() ...
 *     D9D_TRY(d9d_param_unit_reshard(&layer->module, tape));
 *
 * Both calls are recorded on the tape, so backward unshards the unit before the layer's nodes, now
 * with gradients, and reshards it after them:
 *
 *     forward     unshard . compute . reshard  |  unshard . compute . reshard  |
 *     backward    |  unshard(grads) . backward, recompute . reshard(grads) |  ...
 *
 * Where a tape defers wgrad, the reshard is deferred with it, until after the next unit is
 * unsharded.
 *
 * The unit's owner (d9d/parallel/fsdp.h) implements both; in a module without an owner the calls do
 * nothing.  A unit may be unsharded again while it is unsharded (a tied embedding); the outermost
 * pair counts.
 */
#ifndef D9D_NN_PARAM_UNIT_H
#define D9D_NN_PARAM_UNIT_H

#include "d9d/nn/module.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which pass needs the parameters.  A dgrad pass needs no gradients of parameters. */
typedef enum d9d_param_unit_pass {
    D9D_PARAM_UNIT_FORWARD,
    D9D_PARAM_UNIT_DGRAD,
    D9D_PARAM_UNIT_BACKWARD
} d9d_param_unit_pass;

typedef struct d9d_param_unit d9d_param_unit;
typedef struct d9d_param_unit_ops {
    /* From here on `data` of all parameters is needed; for BACKWARD also `grad`, which is
     * accumulated into. */
    d9d_status (*unshard)(d9d_param_unit *u, d9d_param_unit_pass pass);
    /* The parameters are no longer needed; for BACKWARD, their gradients are complete. */
    d9d_status (*reshard)(d9d_param_unit *u, d9d_param_unit_pass pass);
} d9d_param_unit_ops;

/* The base of the owner's own unit struct. */
struct d9d_param_unit {
    const d9d_param_unit_ops *ops;
    bool reshard_deferred; /* a backward has deferred its reshard: see d9d_node_defer() */
};

D9D_API D9D_MUST_USE d9d_status d9d_param_unit_unshard(d9d_module *m, d9d_tape *t);
D9D_API D9D_MUST_USE d9d_status d9d_param_unit_reshard(d9d_module *m, d9d_tape *t);
/* Unshard, run fn to its one output, reshard; with `recompute` through d9d_tape_recompute().  Of
 * the arrays that fn makes, only the output and those that backward saved stay alive. */
D9D_API D9D_MUST_USE d9d_status d9d_param_unit_run(d9d_module *m, d9d_tape *t, bool recompute,
                                                   d9d_tape_forward_fn fn, void *self,
                                                   d9d_var *const *in, size_t n_in, d9d_var **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_PARAM_UNIT_H */
