/* adapter_forward.h - the forward of an adapter: what a method of fine-tuning makes of a linear
 * layer, as operations on arrays.
 *
 * Wherever a model multiplies by a matrix W [out, in] that has an adapter, the forward of its kind
 * (d9d/nn/adapter.h) computes y from x, in place of y = x W^T.  Low-rank Hadamard products (LoHa):
 *
 *     static d9d_status forward(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
 *     {
 *         const d9d_op_matmul_opts plain = {false, false}, rows = {.trans_b = true};
 *         d9d_var *v[4], *first, *second;
 *
 *         for (int i = 0; i < 4; i++)
 *             D9D_TRY(d9d_op_adapter_param(a, i, &v[i]));
 *         D9D_TRY(d9d_op_matmul(a->tape, v[0], v[1], &plain, &first));     // [out, r] [r, in]
 *         D9D_TRY(d9d_op_matmul(a->tape, v[2], v[3], &plain, &second));
 *         D9D_TRY(d9d_op_mul(a->tape, first, second, &first));
 *         D9D_TRY(d9d_op_scale(a->tape, first, a->adapter->scale, &first));
 *         D9D_TRY(d9d_op_matmul(a->tape, x, first, &rows, &second));       // x dW^T
 *         D9D_TRY(d9d_op_adapter_base(a, x, D9D_OP_ADAPTER_ALL, y));       // x W^T + b
 *         return d9d_op_add(a->tape, *y, second, y);
 *     }
 *
 * It records operations, of this library or of its own (d9d/tape/tape.h), so that backward,
 * recomputation and plans follow.  Sizes are those of the arrays that it is given, never of the
 * whole W: they are a rank's parts where tensor parallelism divides W, and some rows where a layer
 * asks for some.  Three rules hold on every mesh:
 *
 * - y may be a rank's term of a sum over the features of x.  Whatever is done to y is linear in it;
 *   so is what is added to it in x.
 * - The bias and the residual are not terms of that sum.  A forward that scales y takes the base
 *   without them; what it did not take is added behind it.
 * - A parameter without the dimension that ranks divide is the same on all of them, and its
 *   gradients are summed.
 *
 * Matrices of dimension 2 have such an adapter: neither stacks of experts nor tables of ids.
 */
#ifndef D9D_OP_ADAPTER_FORWARD_H
#define D9D_OP_ADAPTER_FORWARD_H

#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call of a linear layer. */
typedef struct d9d_op_adapter {
    d9d_tape *tape;
    const d9d_param_adapter *adapter; /* r, alpha, scale = alpha / r */
    d9d_param *matrix;                /* W */
    int64_t first, n;                 /* the rows of this rank's W that y has as columns */
    void *call;                       /* the library's */
} d9d_op_adapter;

/* What the base has besides x W^T: ors of */
enum {
    D9D_OP_ADAPTER_BARE = 0,
    D9D_OP_ADAPTER_BIAS = 1,     /* + b, if the layer has one */
    D9D_OP_ADAPTER_RESIDUAL = 2, /* + the array that the layer adds its result to, if any */
    D9D_OP_ADAPTER_ALL = D9D_OP_ADAPTER_BIAS | D9D_OP_ADAPTER_RESIDUAL
};

/* y = x W^T, in 8 bits or of a quantised W where the layer is so.  x [..., in], which need not be
 * the layer's, y [..., n].  Once in a forward. */
D9D_API D9D_MUST_USE d9d_status d9d_op_adapter_base(const d9d_op_adapter *a, d9d_var *x, int with,
                                                    d9d_var **y);
/* *y += b, unless the base has it or there is none. */
D9D_API D9D_MUST_USE d9d_status d9d_op_adapter_add_bias(const d9d_op_adapter *a, d9d_var **y);

/* Parameter i of the kind as an array: [n] or [n, ...] where dimension 0 is that of outputs,
 * [..., in] where it is that of inputs.  EINVAL if the kind has none. */
D9D_API D9D_MUST_USE d9d_status d9d_op_adapter_param(const d9d_op_adapter *a, int i, d9d_var **v);
/* W itself, [n, in], of a kind that says `reads_matrix`; EINVAL of another. */
D9D_API D9D_MUST_USE d9d_status d9d_op_adapter_matrix(const d9d_op_adapter *a, d9d_var **v);
/* Dropout of a layer's x with the adapter's probability; the same masks on every mesh.  Once in a
 * forward. */
D9D_API D9D_MUST_USE d9d_status d9d_op_adapter_dropout(const d9d_op_adapter *a, d9d_var *x,
                                                       d9d_var **y);

#ifdef __cplusplus
}
#endif
#endif /* D9D_OP_ADAPTER_FORWARD_H */
