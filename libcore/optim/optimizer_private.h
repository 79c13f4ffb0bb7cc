/* optimizer_private.h - an optimizer, for the files that have parts of it.
 */
#ifndef D9DI_OPTIM_OPTIMIZER_PRIVATE_H
#define D9DI_OPTIM_OPTIMIZER_PRIVATE_H

#include "optim/optimizer.h"
#include "optim/optimizer_index.h"
#include "optim/param_groups.h"

/* The moving averages of the weights; without averages `names` is NULL. */
typedef struct d9di_optimizer_ema {
    d9d_ema_opts opts;
    d9d_tensor *state; /* [params.n]; storage NULL for frozen parameters */
    char **names;      /* [params.n]; NULL for frozen parameters */
    size_t n;          /* how many exist */
} d9di_optimizer_ema;

/* The trained weights while averages are in their place. */
typedef struct d9di_optimizer_stash {
    d9d_tensor *weights, *residuals; /* [params.n]; NULL: the weights are in use */
    d9d_arena arena;
} d9di_optimizer_stash;

/* A kind with a configuration, and what it updates. */
typedef struct d9di_optimizer_use {
    d9d_optimizer_choice choice;
    void *self;   /* of its open() */
    int n_states; /* of the kind */
    bool masters; /* it also has the residuals of master weights */
} d9di_optimizer_use;

enum { D9DI_STATE_SCALES = 1 << 30 };

struct d9d_optimizer {
    const d9d_optimizer_kind *kind; /* of the section */
    d9d_device *dev;
    d9d_comm *group;
    d9d_params params;
    d9di_optimizer_groups groups;
    uint64_t seed;
    bool is_offloaded; /* states are in host memory */
    D9D_VEC(d9di_optimizer_use) uses;
    size_t *use_of; /* [params.n]: index into uses; of trainable parameters */
    int n_stored;   /* most states of a parameter: of its kind, a master weight's residual, and the
                       scales of the kind's states */
    d9d_tensor *state; /* [params.n * n_stored]; storage NULL for frozen parameters, and for those
                          without this state */
    d9d_param *
        *reduced;   /* of a state with fewer numbers: a parameter of its shapes, state_param() */
    int *dims;      /* of a state: see state_reduced() of a kind; -1: it does not exist;
                       D9DI_STATE_SCALES: it is of the scales of another */
    int64_t *steps; /* [params.n] */
    d9d_optimizer_update *updates; /* [params.n], of the current call */
    size_t *order;                 /* [params.n]: order of updates, as indices into params */
    size_t *some;                  /* [params.n]: those of d9d_optimizer_step_some() */
    d9di_optimizer_index index_of; /* places in params */
    size_t *end; /* [n_first]: end of each list of parameters that are updated first, in `order` */
    size_t n_first;
    d9d_optimizer_enqueued_fn *enqueued;
    void *enqueued_arg;
    size_t *index; /* the states that exist, as indices into `state` */
    char **names;  /* their names */
    size_t n_index;
    d9di_optimizer_ema ema;
    d9di_optimizer_stash stash;
    d9d_arena arena;
};

/* The update of parameter i; of its kind's state as after the last step. */
d9d_optimizer_update d9di_optimizer_update_make(d9d_optimizer *o, size_t i);

/* Zeroed memory for a state whose type and shape are known. */
d9d_status d9di_optimizer_state_fill(d9d_optimizer *o, d9d_tensor *t);
/* The same for the averages, where the optimizer has them. */
d9d_status d9di_optimizer_ema_fill(d9d_optimizer *o);
/* Before and after the updates of n parameters. */
d9d_status d9di_optimizer_ema_begin(d9d_optimizer *o, const d9d_tensor *scale, const size_t *which,
                                    size_t n);
d9d_status d9di_optimizer_ema_update(d9d_optimizer *o, const d9d_tensor *scale, const size_t *which,
                                     size_t n);
uint64_t d9di_optimizer_ema_bytes(const d9d_optimizer *o);
/* State k of n. */
d9d_optimizer_state d9di_optimizer_ema_state_at(d9d_optimizer *o, size_t k);
void d9di_optimizer_ema_release(d9d_optimizer *o);

#endif /* D9DI_OPTIM_OPTIMIZER_PRIVATE_H */
