/* optimizer.h - the built-in optimizers.
 */
#ifndef D9DI_OPTIM_OPTIMIZER_H
#define D9DI_OPTIM_OPTIMIZER_H

#include "d9d/optim/optim.h"

#define D9DI_WEIGHT_UPDATE_DOC                                                                     \
    "how bfloat16 weights are updated: as float32 master weights, stored as the weights and a "    \
    "16-bit residual, or by rounding, stochastically or to nearest, which loses small updates"

#define D9DI_MOMENT_DTYPE_DOC                                                                      \
    "type of the moments; int8: 8 bits and a scale for every 32 elements of a row of a matrix; "   \
    "both are rounded stochastically, and bfloat16 to nearest with weight_update nearest"

/* The residual of a master weight, after the kind's own `states`; NULL if there is none. */
static inline int16_t *d9di_optimizer_residual(const d9d_optimizer_update *u,
                                               d9d_optimizer_weight_update update, int states)
{
    return update == D9D_UPDATE_MASTER ? d9d_tensor_data(&u->state[states]) : NULL;
}

/* The words of d9d_optimizer_weight_update, and an element of the key betas. */
extern const char *const d9di_optimizer_weight_update_names[];
extern const d9d_key d9di_optimizer_beta_elem;

/* The words of the key kind, of muon and of groups. */
enum { D9DI_KIND_MUON, D9DI_KIND_ADAMW };
extern const char *const d9di_optimizer_kind_names[];

/* The values of the key state_dtype, of optimizers without int8 and with it, and their types. */
extern const char *const d9di_optimizer_state_dtype_names[],
    *const d9di_optimizer_moment_dtype_names[];
d9d_dtype d9di_optimizer_state_dtype(int word);
/* The type of a parameter's states: float32 where int8 has no rows to scale. */
d9d_dtype d9di_optimizer_moment_dtype(int word, const d9d_param *p);

extern const d9d_optimizer_kind d9di_optimizer_adamw, d9di_optimizer_adam,
    d9di_optimizer_stochastic_adamw, d9di_optimizer_lion, d9di_optimizer_muon, d9di_optimizer_sgd,
    d9di_optimizer_adafactor, d9di_optimizer_schedule_free;

#endif /* D9DI_OPTIM_OPTIMIZER_H */
