/* optimizer_index.h - the place of each parameter in a list.
 */
#ifndef D9DI_OPTIM_OPTIMIZER_INDEX_H
#define D9DI_OPTIM_OPTIMIZER_INDEX_H

#include "d9d/base/mem.h"
#include "d9d/nn/module.h"

typedef struct d9di_optimizer_index {
    d9d_map of; /* by address; the value is a slot of the list */
    d9d_params params;
} d9di_optimizer_index;

/* The list must outlive the index. */
d9d_status d9di_optimizer_index_make(const d9d_params *params, d9di_optimizer_index *out);
void d9di_optimizer_index_release(d9di_optimizer_index *x);
/* False if the list has no such parameter. */
bool d9di_optimizer_index_find(const d9di_optimizer_index *x, const d9d_param *p, size_t *out);

#endif /* D9DI_OPTIM_OPTIMIZER_INDEX_H */
