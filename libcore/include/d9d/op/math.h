/* math.h - operations that losses and models are composed of: functions of elements with
 * broadcasting, reductions, softmax, gather, products of activations.
 *
 *     d9d_var *p, *error, *loss;                             // p [T, D], target [T, D], w [T, 1]
 *
 *     D9D_TRY(d9d_op_sigmoid(t, x, &p));
 *     D9D_TRY(d9d_op_mse(t, p, target, &error));             // (p - target)^2, element by element
 *     D9D_TRY(d9d_op_mul(t, error, w, &error));              // a weight of each token
 *     D9D_TRY(d9d_op_mean(t, error, -1, &loss));             // [T, 1] float32
 *
 * Each has both halves of the backward, on every device, and is planned by `--plan`.  What an array
 * without a gradient (a target, a weight, a mask) is multiplied with costs nothing in backward.
 *
 * Broadcasting is that of NumPy and PyTorch: shapes are aligned at their last dimension, and a
 * dimension of 1 or none is repeated: [T, D] with [D], [T, 1], [1].  The gradient of a repeated
 * input is summed in float32.
 *
 * Types: inputs are float32 or bfloat16, also mixed; those without a gradient may be int32.
 * A result is bfloat16 if all inputs are, else float32.  Arithmetic is float32, rounded once.
 */
#ifndef D9D_OP_MATH_H
#define D9D_OP_MATH_H

#include "d9d/kernels/math.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = f(in[0], ...), of as many inputs as f has; k0 and k1 are its constants.  The functions below
 * are this one under a name. */
D9D_API D9D_MUST_USE d9d_status d9d_op_pointwise(d9d_tape *t, d9d_pointwise f, d9d_var *const *in,
                                                 float k0, float k1, d9d_var **y);

/* Of one input:
 *
 *     d9d_op_abs          |x|; its gradient at 0 is 0
 *     d9d_op_square       x^2
 *     d9d_op_sqrt         x^(1/2)
 *     d9d_op_exp          e^x
 *     d9d_op_log          natural logarithm
 *     d9d_op_sigmoid      s(x) = 1 / (1 + e^-x)
 *     d9d_op_log_sigmoid  log s(x), accurate for any x
 *     d9d_op_tanh         hyperbolic tangent
 *     d9d_op_relu         max(x, 0)
 *     d9d_op_silu         x s(x)
 *     d9d_op_gelu         x P(X <= x), X of N(0, 1): with erf
 *     d9d_op_gelu_tanh    its approximation by tanh
 */
#define D9D_OP_UNARY(name, NAME)                                                                   \
    static inline D9D_MUST_USE d9d_status d9d_op_##name(d9d_tape *t, d9d_var *x, d9d_var **y)      \
    {                                                                                              \
        return d9d_op_pointwise(t, D9D_POINTWISE_##NAME, &x, 0, 0, y);                             \
    }
D9D_OP_UNARY(abs, ABS)
D9D_OP_UNARY(square, SQUARE)
D9D_OP_UNARY(sqrt, SQRT)
D9D_OP_UNARY(exp, EXP)
D9D_OP_UNARY(log, LOG)
D9D_OP_UNARY(sigmoid, SIGMOID)
D9D_OP_UNARY(log_sigmoid, LOG_SIGMOID)
D9D_OP_UNARY(tanh, TANH)
D9D_OP_UNARY(relu, RELU)
D9D_OP_UNARY(silu, SILU)
D9D_OP_UNARY(gelu, GELU)
D9D_OP_UNARY(gelu_tanh, GELU_TANH)
#undef D9D_OP_UNARY

/* Of two inputs, which broadcast.  d9d_op_add() is in op.h and broadcasts too.
 *
 *     d9d_op_sub      a - b
 *     d9d_op_mul      a b
 *     d9d_op_div      a / b
 *     d9d_op_minimum  the smaller; equal ones share the gradient, and NaN stays NaN
 *     d9d_op_maximum  the larger
 *     d9d_op_exp_sub  e^(a - b), as in a ratio of probabilities
 */
#define D9D_OP_BINARY(name, NAME)                                                                  \
    static inline D9D_MUST_USE d9d_status d9d_op_##name(d9d_tape *t, d9d_var *a, d9d_var *b,       \
                                                        d9d_var **y)                               \
    {                                                                                              \
        d9d_var *const in[] = {a, b};                                                              \
                                                                                                   \
        return d9d_op_pointwise(t, D9D_POINTWISE_##NAME, in, 0, 0, y);                             \
    }
D9D_OP_BINARY(sub, SUB)
D9D_OP_BINARY(mul, MUL)
D9D_OP_BINARY(div, DIV)
D9D_OP_BINARY(minimum, MINIMUM)
D9D_OP_BINARY(maximum, MAXIMUM)
D9D_OP_BINARY(exp_sub, EXP_SUB)
#undef D9D_OP_BINARY

/* y = s x + b, with constants. */
static inline D9D_MUST_USE d9d_status d9d_op_affine(d9d_tape *t, d9d_var *x, float s, float b,
                                                    d9d_var **y)
{
    return d9d_op_pointwise(t, D9D_POINTWISE_AFFINE, &x, s, b, y);
}
/* y = x within [low, high], as torch.clamp: its gradient at a bound is 1. */
static inline D9D_MUST_USE d9d_status d9d_op_clamp(d9d_tape *t, d9d_var *x, float low, float high,
                                                   d9d_var **y)
{
    return d9d_op_pointwise(t, D9D_POINTWISE_CLAMP, &x, low, high, y);
}
/* y = cap tanh(x / cap). */
static inline D9D_MUST_USE d9d_status d9d_op_softcap(d9d_tape *t, d9d_var *x, float cap,
                                                     d9d_var **y)
{
    return d9d_op_pointwise(t, D9D_POINTWISE_SOFTCAP, &x, cap, 0, y);
}
/* y = 1 where x >= k, else 0: a mask, without gradient. */
static inline D9D_MUST_USE d9d_status d9d_op_ge(d9d_tape *t, d9d_var *x, float k, d9d_var **y)
{
    return d9d_op_pointwise(t, D9D_POINTWISE_GE, &x, k, 0, y);
}
/* y = a where mask is not 0, else b. */
static inline D9D_MUST_USE d9d_status d9d_op_where(d9d_tape *t, d9d_var *mask, d9d_var *a,
                                                   d9d_var *b, d9d_var **y)
{
    d9d_var *const in[] = {mask, a, b};

    return d9d_op_pointwise(t, D9D_POINTWISE_WHERE, in, 0, 0, y);
}

/* The same numbers as float32 or bfloat16; y is x itself if it has that type. */
D9D_API D9D_MUST_USE d9d_status d9d_op_cast(d9d_tape *t, d9d_var *x, d9d_dtype dtype, d9d_var **y);
/* The same array without a gradient (stop-gradient). */
static inline D9D_MUST_USE d9d_status d9d_op_detach(d9d_tape *t, d9d_var *x, d9d_var **y)
{
    return d9d_tape_leaf(t, d9d_var_tensor(x), false, y);
}

/* Reductions along dimension `dim`, which becomes 1; -1 is the last one, D9D_DIM_ALL all of them.
 * y is float32, since it is a statistic.
 *
 *     d9d_op_sum, d9d_op_mean, d9d_op_max, d9d_op_logsumexp
 *
 * Equal maxima share the gradient. */
enum { D9D_DIM_ALL = -128 };
D9D_API D9D_MUST_USE d9d_status d9d_op_reduce(d9d_tape *t, d9d_reduce_kind kind, d9d_var *x,
                                              int dim, d9d_var **y);
/* Over segments of rows, such as the documents of a batch: x [T, ...], offset [N + 1] int32,
 * ascending; row i of y [N, ...] is of the rows offset[i] <= r < offset[i + 1].  Of no rows, the
 * sum and the mean are 0. */
D9D_API D9D_MUST_USE d9d_status d9d_op_segment_reduce(d9d_tape *t, d9d_reduce_kind kind, d9d_var *x,
                                                      const d9d_tensor *offset, d9d_var **y);
#define D9D_OP_REDUCTION(name, NAME)                                                               \
    static inline D9D_MUST_USE d9d_status d9d_op_##name(d9d_tape *t, d9d_var *x, int dim,          \
                                                        d9d_var **y)                               \
    {                                                                                              \
        return d9d_op_reduce(t, D9D_REDUCE_##NAME, x, dim, y);                                     \
    }
D9D_OP_REDUCTION(sum, SUM)
D9D_OP_REDUCTION(mean, MEAN)
D9D_OP_REDUCTION(max, MAX)
D9D_OP_REDUCTION(logsumexp, LOGSUMEXP)
#undef D9D_OP_REDUCTION

/* Over the last dimension, float32.  x y [..., N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_softmax(d9d_tape *t, d9d_var *x, d9d_var **y);
D9D_API D9D_MUST_USE d9d_status d9d_op_log_softmax(d9d_tape *t, d9d_var *x, d9d_var **y);

/* y[..., j] = x[..., index[..., j]], as torch.gather along the last dimension.  A negative index
 * gives 0 and has no gradient; one from N on is EINVAL on the CPU and NaN on a GPU.
 * x [..., N], index [..., K] int32, y [..., K]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_gather(d9d_tape *t, d9d_var *x, const d9d_tensor *index,
                                              d9d_var **y);

/* y = op(a) op(b) for each matrix, op(x) = x or its transpose: the product of two activations.
 * op(a) [..., M, K], op(b) [..., K, N], y [..., M, N]; leading dimensions are equal, or b has none
 * and is used for all.  Of one type. */
typedef struct d9d_op_matmul_opts {
    bool trans_a, trans_b; /* a is [..., K, M], b is [..., N, K] */
} d9d_op_matmul_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_matmul(d9d_tape *t, d9d_var *a, d9d_var *b,
                                              const d9d_op_matmul_opts *opts, d9d_var **y);

/* y = x times a block-diagonal matrix: columns [i N, (i + 1) N) of y are those of x times block i.
 * x y [..., B N], block [B, N, N].  Of one type. */
D9D_API D9D_MUST_USE d9d_status d9d_op_block_matmul(d9d_tape *t, d9d_var *x, d9d_var *block,
                                                    d9d_var **y);

/* y = U - U' for each row of x, which has the upper triangle of U without the diagonal, row by row:
 * skew-symmetric matrices.  x [..., N (N - 1) / 2], y [..., N, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_skew(d9d_tape *t, d9d_var *x, int64_t n, d9d_var **y);

#ifdef __cplusplus
}
#endif
#endif /* D9D_OP_MATH_H */
