/* registry.c - the table of built-in optimizers.  See d9d/optim/optim.h.
 */
#include "optim/optimizer.h"

extern const d9d_table d9di_optimizer_adamw_table, d9di_optimizer_adam_table,
    d9di_optimizer_stochastic_adamw_table, d9di_optimizer_sgd_table;

const char *const d9d_optimizer_tag[] = {"name", NULL};

const char *const d9di_optimizer_state_dtype_names[] = {"float32", "bfloat16", NULL};

d9d_dtype d9di_optimizer_state_dtype(int word)
{
    return word == 0 ? D9D_F32 : D9D_BF16;
}

const d9d_table *const d9d_optimizer_choices[] = {
    &d9di_optimizer_adamw_table,
    &d9di_optimizer_adam_table,
    &d9di_optimizer_stochastic_adamw_table,
    &d9di_optimizer_sgd_table,
    NULL,
};
