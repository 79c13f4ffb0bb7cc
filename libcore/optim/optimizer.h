/* optimizer.h - what a kind of optimizer is; shared inside optim. */
#ifndef D9DI_OPTIM_OPTIMIZER_H
#define D9DI_OPTIM_OPTIMIZER_H

#include "d9d/optim/optim.h"

enum { D9DI_MAX_STATES = 3 };

/* One update of one parameter. */
typedef struct d9di_update {
    const d9d_device *dev;
    const d9d_param *param;
    d9d_tensor *state; /* the kind's arrays, in the order of `states` */
    d9d_dtype state_dtype;
    const float *scale; /* on the device */
    double lr;
    int64_t step; /* from 1 */
    uint64_t seed;
} d9di_update;

/* A row of the registry.  `config` is the section's struct, whose first member is the rate. */
typedef struct d9di_optimizer_kind {
    const d9d_table *table;
    const char *states[D9DI_MAX_STATES + 1]; /* NULL-ended */
    /* How many of `states` this configuration has. */
    int (*n_states)(const void *config);
    d9d_dtype (*state_dtype)(const void *config, const d9d_param *p);
    /* May this parameter be updated so?  NULL: any. */
    d9d_status (*accepts)(const d9d_param *p);
    d9d_status (*update)(const void *config, const d9di_update *u);
} d9di_optimizer_kind;

/* In the order of d9d_optimizer_choices. */
extern const d9di_optimizer_kind *const d9di_optimizer_kinds[];

extern const d9di_optimizer_kind d9di_adamw, d9di_adam, d9di_stochastic_adamw, d9di_sgd;

#endif /* D9DI_OPTIM_OPTIMIZER_H */
