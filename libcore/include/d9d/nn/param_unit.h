/* param_unit.h - parameters that are needed at one time, and who has them whole by then.
 *
 * Ranks that keep parts of a layer's parameters put them together just before the layer computes
 * and let go of them just after.  A model says where, with a module for a unit:
 *
 *     D9D_TRY(d9d_param_unit_unshard(&layer->module, tape));
 *     ... the layer's forward, also by d9d_tape_recompute() ...
 *     D9D_TRY(d9d_param_unit_reshard(&layer->module, tape));
 *
 * Both calls stand in the tape's record, so that backward opens the unit before the layer's nodes,
 * now also for gradients, and closes it behind them:
 *
 *     forward     open . compute . close  |  open . compute . close  |
 *     backward                            |  open(grads) . backward, replay . close(grads) |  ...
 *
 * Where a tape puts weight halves off, a close comes with them, behind the opening of the next
 * unit.
 *
 * The unit's keeper (d9d/parallel/fsdp.h) does it; in a module without one the calls do nothing.
 * Units may be opened again while they are open (a tied embedding); the outermost counts.
 */
#ifndef D9D_NN_PARAM_UNIT_H
#define D9D_NN_PARAM_UNIT_H

#include "d9d/nn/module.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What passes through a model.  An input half needs no gradients of parameters. */
typedef enum d9d_param_unit_pass {
    D9D_PARAM_UNIT_FORWARD,
    D9D_PARAM_UNIT_DGRAD,
    D9D_PARAM_UNIT_BACKWARD
} d9d_param_unit_pass;

typedef struct d9d_param_unit d9d_param_unit;
typedef struct d9d_param_unit_ops {
    /* From here on `data` of all parameters is needed; BACKWARD: and `grad`, to be added to. */
    d9d_status (*unshard)(d9d_param_unit *u, d9d_param_unit_pass pass);
    /* They are not needed any more; BACKWARD: and their gradients are what they will be. */
    d9d_status (*reshard)(d9d_param_unit *u, d9d_param_unit_pass pass);
} d9d_param_unit_ops;

/* What a keeper's own unit begins with. */
struct d9d_param_unit {
    const d9d_param_unit_ops *ops;
    bool reshard_deferred; /* a backward has put its close off: see d9d_node_defer() */
};

D9D_API D9D_MUST_USE d9d_status d9d_param_unit_unshard(d9d_module *m, d9d_tape *t);
D9D_API D9D_MUST_USE d9d_status d9d_param_unit_reshard(d9d_module *m, d9d_tape *t);
/* Open, fn to its one output, close; with `recompute` by d9d_tape_recompute().  Of what fn makes
 * the output alone is kept, and what backward saved. */
D9D_API D9D_MUST_USE d9d_status d9d_param_unit_run(d9d_module *m, d9d_tape *t, bool recompute,
                                                   d9d_tape_forward_fn fn, void *self,
                                                   d9d_var *const *in, size_t n_in, d9d_var **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_PARAM_UNIT_H */
