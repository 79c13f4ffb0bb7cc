/* param_groups.h - parameter groups: which values of the optimizer's section each parameter has.
 *
 * A group has the struct of the section with some values replaced, so a kind of optimizer knows
 * nothing of groups: it is called once for each.  The learning rate is a factor of a parameter's
 * own, from its group and from its layer.
 */
#ifndef D9DI_OPTIM_PARAM_GROUPS_H
#define D9DI_OPTIM_PARAM_GROUPS_H

#include "d9d/optim/optim.h"

typedef struct d9di_optimizer_group {
    const d9d_optimizer_group *listed; /* its entry of "groups"; NULL: parameters of no entry */
    const void *config;                /* the section's struct with the entry's values */
    size_t n_params;                   /* trainable parameters of the whole model that are in it */
    int64_t n_elements;                /* of them */
} d9di_optimizer_group;

typedef struct d9di_optimizer_groups {
    d9di_optimizer_group *v; /* [n]: as listed, and the parameters of no entry as the last */
    size_t n;
    size_t *of;       /* [params]: group of each, an index into v */
    double *lr_scale; /* [params]: factor of the learning rate */
    double layer_lr_decay;
    int64_t layers; /* of the whole model; 0 where none was counted */
} d9di_optimizer_groups;

/* Assign `params`, which are some or all of `whole`.  Memory is in the arena.  ECONFIG: a pattern
 * matches no trainable parameter or only those of earlier groups, the optimizer lacks a group's
 * key, or layer_lr_decay and a model without layers. */
d9d_status d9di_optimizer_groups_assign(const d9d_union *section, const d9d_params *params,
                                        const d9d_params *whole, d9d_arena *a,
                                        d9di_optimizer_groups *out);
/* Append what each group has, if there are groups or rates of layers. */
d9d_status d9di_optimizer_groups_describe(const d9di_optimizer_groups *g, d9d_buf *out);

#endif /* D9DI_OPTIM_PARAM_GROUPS_H */
