/* optimizer.h - the optimizers that are built in. */
#ifndef D9DI_OPTIM_OPTIMIZER_H
#define D9DI_OPTIM_OPTIMIZER_H

#include "d9d/optim/optim.h"

extern const d9d_optimizer_kind d9di_adamw, d9di_adam, d9di_stochastic_adamw, d9di_sgd;

#endif /* D9DI_OPTIM_OPTIMIZER_H */
