/* math.h - functions of single elements with broadcasting, reductions along an axis, and gather:
 * what losses and models are composed of.
 *
 *     const d9d_pointwise_dims d = {.f = D9D_POINTWISE_MUL, .of = D9D_POINTWISE_VALUE,
 *                                   .ndim = 2, .dim = {T, D}, .yt = D9D_F32,
 *                                   .x = {{D9D_F32, {D, 1}}, {D9D_F32, {0, 1}}}};
 *     D9D_TRY(k->math->pointwise(s, &d, y, (const void *const[4]){a, b}));    // [T, D] by [D]
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/math.
 */
#ifndef D9D_KERNELS_MATH_H
#define D9D_KERNELS_MATH_H

#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of one, two or three elements a, b, c and two constants k. Their formulas and
 * derivatives are in kernels/common/pointwise.h, what each is for in d9d/op/math.h. */
typedef enum d9d_pointwise {
    D9D_POINTWISE_CAST,
    D9D_POINTWISE_AFFINE,
    D9D_POINTWISE_ABS,
    D9D_POINTWISE_SQUARE,
    D9D_POINTWISE_SQRT,
    D9D_POINTWISE_EXP,
    D9D_POINTWISE_LOG,
    D9D_POINTWISE_SIGMOID,
    D9D_POINTWISE_LOG_SIGMOID,
    D9D_POINTWISE_TANH,
    D9D_POINTWISE_SOFTCAP,
    D9D_POINTWISE_RELU,
    D9D_POINTWISE_SILU,
    D9D_POINTWISE_GELU,
    D9D_POINTWISE_GELU_TANH,
    D9D_POINTWISE_CLAMP,
    D9D_POINTWISE_GE,
    D9D_POINTWISE_ADD,
    D9D_POINTWISE_SUB,
    D9D_POINTWISE_MUL,
    D9D_POINTWISE_DIV,
    D9D_POINTWISE_MINIMUM,
    D9D_POINTWISE_MAXIMUM,
    D9D_POINTWISE_EXP_SUB,
    D9D_POINTWISE_MSE,
    D9D_POINTWISE_L1,
    D9D_POINTWISE_HUBER,
    D9D_POINTWISE_BCE_WITH_LOGITS,
    D9D_POINTWISE_KL_DIV,
    D9D_POINTWISE_WHERE,
    D9D_N_POINTWISE
} d9d_pointwise;

/* "mul"; the number of inputs; and the inputs that the value or a derivative reads, bit i for input
 * i, or D9D_POINTWISE_NO_GRAD where the derivative is 0 everywhere. */
enum { D9D_POINTWISE_NO_GRAD = -1 };
D9D_API const char *d9d_pointwise_name(d9d_pointwise f);
D9D_API int d9d_pointwise_inputs(d9d_pointwise f);
D9D_API int d9d_pointwise_reads(d9d_pointwise f, int of);

/* y = f(a, b, c) or, with `of` 0 to 2, y = g df/d(input `of`): inputs 0 to 2 are a, b and c, and
 * input 3 is g, the gradient of f. y has the shape `dim`, dense. Element i of it reads x[j] at the
 * sum of i[d] stride[d]; a stride of 0 broadcasts. The last stride is 0 or 1. Inputs may also be
 * int32. One that the formula does not read may be NULL. y may be an input with the strides of y
 * and its type. */
enum { D9D_POINTWISE_VALUE = -1, D9D_POINTWISE_GRAD = 3, D9D_POINTWISE_INPUTS = 4 };
typedef struct d9d_pointwise_input {
    d9d_dtype t;
    int64_t stride[D9D_MAX_DIMS];
} d9d_pointwise_input;
typedef struct d9d_pointwise_dims {
    d9d_pointwise f;
    int of;
    float k[2];
    int ndim; /* at least 1 */
    int64_t dim[D9D_MAX_DIMS];
    d9d_dtype yt;
    d9d_pointwise_input x[D9D_POINTWISE_INPUTS];
} d9d_pointwise_dims;

/* Reductions. Those of nothing are 0, 0, -inf, -inf. */
typedef enum d9d_reduce_kind {
    D9D_REDUCE_SUM,
    D9D_REDUCE_MEAN,
    D9D_REDUCE_MAX, /* NaN is larger than any number */
    D9D_REDUCE_LOGSUMEXP,
    D9D_N_REDUCE_KINDS
} d9d_reduce_kind;

/* y [M, N] from x [M, R, N]. With offset [M + 1], ascending and on the device, x is [R, N] and row
 * i of y is of the rows offset[i] <= r < offset[i + 1] (varlen). */
typedef struct d9d_reduce_axis_dims {
    d9d_reduce_kind kind;
    d9d_dtype t; /* of x; y is float32 */
    int64_t m, r, n;
    const int32_t *offset;
} d9d_reduce_axis_dims;

typedef struct d9d_math_kernels {
    d9d_status (*pointwise)(d9d_stream s, const d9d_pointwise_dims *d, void *y,
                            const void *const x[D9D_POINTWISE_INPUTS]);
    d9d_status (*reduce_axis)(d9d_stream s, const d9d_reduce_axis_dims *d, float *y, const void *x);
    /* dx, of x's type, from dy, x and y. Equal maxima share the gradient, as torch.amax. Rows that
     * no offsets cover get 0. x and y are read for maxima and logsumexp alone. */
    d9d_status (*reduce_axis_bwd)(d9d_stream s, const d9d_reduce_axis_dims *d, void *dx,
                                  const float *dy, const void *x, const float *y);
    /* y[i][j] = x[i][index[i][j]], x [M, N], index and y [M, K]. A negative index gives 0; one from
     * N on is EINVAL, and NaN on a GPU. */
    d9d_status (*gather)(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *index,
                         int64_t m, int64_t n, int64_t k);
    /* Of the elements that were gathered, in order and in float32; others get 0. */
    d9d_status (*gather_bwd)(d9d_stream s, d9d_dtype t, void *dx, const void *dy,
                             const int32_t *index, int64_t m, int64_t n, int64_t k);
} d9d_math_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_MATH_KERNELS(X)                                                                        \
    X(math, pointwise, pointwise)                                                                  \
    X(math, reduce_axis, reduce_axis)                                                              \
    X(math, reduce_axis_bwd, reduce_axis_bwd)                                                      \
    X(math, gather, gather)                                                                        \
    X(math, gather_bwd, gather_bwd)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_MATH_H */
