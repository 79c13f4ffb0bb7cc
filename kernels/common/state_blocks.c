/* state_blocks.c - see state_blocks.h. */
#include "common/state_blocks.h"

d9d_status d9di_args_check_state_box(const char *op, const d9d_optim_arrays *a, int states,
                                     int ndim, const int64_t *box, const int64_t *start,
                                     const int64_t *whole)
{
    const int last = ndim - 1;

    if (ndim < 1 || a->m_scale == NULL || (states > 1 && a->v_scale == NULL))
        return D9D_FAIL(D9D_EINVAL, "%s: states in 8 bits need a row and scales", op);
    if (start[last] % D9D_STATE_BLOCK != 0 ||
        (box[last] % D9D_STATE_BLOCK != 0 && start[last] + box[last] != whole[last]))
        return D9D_FAIL(D9D_EINVAL,
                        "%s: elements %lld to %lld of rows of %lld do not begin and end with "
                        "blocks of %d",
                        op, (long long)start[last], (long long)(start[last] + box[last]),
                        (long long)whole[last], D9D_STATE_BLOCK);
    return D9D_OK;
}
