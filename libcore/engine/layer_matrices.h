/* layer_matrices.h - the matrices of a model's layers (d9d_param_is_layer_matrix()) on the ranks of
 * a mesh. */
#ifndef D9DI_ENGINE_LAYER_MATRICES_H
#define D9DI_ENGINE_LAYER_MATRICES_H

#include "d9d/nn/module.h"

/* The elements of dimension i of which each of `tp` tensor-parallel ranks has a part. */
int64_t d9di_engine_part_of(const d9d_param *p, int i, int64_t tp);

#endif /* D9DI_ENGINE_LAYER_MATRICES_H */
