/* param.h - a trainable array: data, gradient, and its place in the whole.
 *
 * A parameter is declared with its whole shape and no memory.  Placement then says
 * which box of the whole this process holds (all of it, until a plan shards it);
 * allocation and filling come last.  Everything that must not depend on the topology
 * (initial values, checkpoints, norms) reads the box and the whole shape.
 *
 * The gradient is never cleared: while has_grad is false its memory holds anything and
 * it counts as zero.
 */
#ifndef D9D_TAPE_PARAM_H
#define D9D_TAPE_PARAM_H

#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_param {
    const char *name; /* dotted, from the root module once bound; before that local or NULL */
    uint64_t id;      /* d9d_hash64 of the name: the stream of its random numbers */
    d9d_shape whole;  /* shape of the whole parameter */
    d9d_shape box;    /* shape of the part held here */
    int64_t start[D9D_MAX_DIMS]; /* first index of the box in the whole */
    d9d_dtype dtype;             /* of data */
    d9d_dtype grad_dtype;        /* of grad: D9D_F32 by default, whatever dtype is */
    d9d_init_kind init;
    float init_scale;
    bool trainable;  /* false: no gradient is computed or kept */
    bool has_grad;   /* something was accumulated since the gradient was forgotten */
    d9d_tensor data; /* [box]; storage NULL until materialised */
    d9d_tensor grad; /* [box]; storage NULL unless trainable and materialised for training */
} d9d_param;

/* Is a gradient to be computed for it? */
static inline bool d9d_param_wants(const d9d_param *p)
{
    return p->trainable && p->grad.storage != NULL;
}

/* Accumulation rule: the first contribution after a clear overwrites, later ones add, in
 * the order of the backward pass.  Kernels get `beta` 0 or 1 from this and the flag is set. */
static inline float d9d_param_grad_beta(d9d_param *p)
{
    float beta = p->has_grad ? 1.0f : 0.0f;

    p->has_grad = true;
    return beta;
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_TAPE_PARAM_H */
