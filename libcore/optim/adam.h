/* adam.h - the configuration of Adam, for optimizers that leave some parameters to it.
 */
#ifndef D9DI_OPTIM_ADAM_H
#define D9DI_OPTIM_ADAM_H

#include "optim/optimizer.h"

typedef struct d9di_optimizer_adam_config {
    double lr;
    d9d_list betas;
    double eps, weight_decay;
    bool amsgrad, maximize, decoupled;
    int weight_update; /* a d9d_optimizer_weight_update */
    int state_dtype;
    d9d_list groups;
    double layer_lr_decay;
} d9di_optimizer_adam_config;

#define D9DI_ADAM_MOMENT_KEYS                                                                      \
    D9D_KEY_LIST(d9di_optimizer_adam_config, betas, "[0.9, 0.999]", &d9di_optimizer_beta_elem,     \
                 "decay of the first and the second moment", .min = 2, .max = 2),                  \
        D9D_KEY_REAL(d9di_optimizer_adam_config, eps, "1e-8", 0, 1,                                \
                     "added to the square root of the second moment",                              \
                     .flags = D9D_ABOVE_MIN | D9D_FLOAT32),                                        \
        D9D_KEY_REAL(d9di_optimizer_adam_config, weight_decay, "0.01", 0, 1e6, "weight decay",     \
                     .flags = D9D_FLOAT32),                                                        \
        D9D_KEY_ENUM(d9di_optimizer_adam_config, state_dtype, "\"float32\"",                       \
                     d9di_optimizer_moment_dtype_names, D9DI_MOMENT_DTYPE_DOC)
#define D9DI_ADAM_WEIGHT_UPDATE_KEY                                                                \
    D9D_KEY_ENUM(d9di_optimizer_adam_config, weight_update, "\"master\"",                          \
                 d9di_optimizer_weight_update_names, D9DI_WEIGHT_UPDATE_DOC)

/* The check of a configuration. */
d9d_status d9di_optimizer_adam_check(const void *value, const char *path);

#endif /* D9DI_OPTIM_ADAM_H */
