/* layer_matrices.c - see engine/layer_matrices.h. */
#include "engine/layer_matrices.h"

int64_t d9di_engine_part_of(const d9d_param *p, int i, int64_t tp)
{
    const d9d_param_parallel *by = &p->spec.parallel;
    const int dim = by->style == D9D_COLWISE ? 0 : 1;
    const bool is_shared = by->shared && by->units < tp;

    if (i != dim || (by->style != D9D_COLWISE && by->style != D9D_ROWWISE))
        return p->spec.shape.dim[i];
    return p->spec.shape.dim[i] / (is_shared ? by->units : tp);
}
