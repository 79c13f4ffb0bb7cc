/* pointwise_table.h - the rows of d9d_pointwise.
 *
 *     X(NAME, name, n, f, r0, df/da, r1, df/db, r2, df/dc)
 *
 * n is the number of inputs, f the value. r0 to r2 are the inputs that a derivative reads: A and B
 * or'ed, 0 for none; NO where the input has no gradient. k0 and k1 are the constants. The
 * functions in the formulas are in common/pointwise.h.
 */
#ifndef D9DI_COMMON_POINTWISE_TABLE_H
#define D9DI_COMMON_POINTWISE_TABLE_H

#include "common/kernel_common.h"

/* clang-format off */
#define D9DI_POINTWISE_TABLE(X)                                                                    \
    D9DI_POINTWISE_UNARY(X) D9DI_POINTWISE_BINARY(X)                                               \
    X(WHERE, where, 3, a != 0.0f ? b : c, NO, 0.0f, A, a != 0.0f ? 1.0f : 0.0f,                    \
      A, a != 0.0f ? 0.0f : 1.0f)

#define D9DI_POINTWISE_UNARY(X)                                                                    \
    X(CAST, cast, 1, a, 0, 1.0f, NO, 0.0f, NO, 0.0f)                                               \
    X(AFFINE, affine, 1, k0 * a + k1, 0, k0, NO, 0.0f, NO, 0.0f)                                   \
    X(ABS, abs, 1, fabsf(a), A, sign_of(a), NO, 0.0f, NO, 0.0f)                                    \
    X(SQUARE, square, 1, a * a, A, 2.0f * a, NO, 0.0f, NO, 0.0f)                                   \
    X(SQRT, sqrt, 1, sqrtf(a), A, 0.5f / sqrtf(a), NO, 0.0f, NO, 0.0f)                             \
    X(EXP, exp, 1, D9DI_POINTWISE_EXP(a), A, D9DI_POINTWISE_EXP(a), NO, 0.0f, NO, 0.0f)            \
    X(LOG, log, 1, D9DI_POINTWISE_LOG(a), A, 1.0f / a, NO, 0.0f, NO, 0.0f)                         \
    X(SIGMOID, sigmoid, 1, D9DI_POINTWISE_SIGMOID(a),                                              \
      A, D9DI_POINTWISE_SIGMOID(a) * D9DI_POINTWISE_SIGMOID(-a), NO, 0.0f, NO, 0.0f)               \
    X(LOG_SIGMOID, log_sigmoid, 1, (a < 0.0f ? a : 0.0f) - log1p_exp_neg(a),                       \
      A, D9DI_POINTWISE_SIGMOID(-a), NO, 0.0f, NO, 0.0f)                                           \
    X(TANH, tanh, 1, D9DI_POINTWISE_TANH(a), A, softcap_prime(a, 1.0f), NO, 0.0f, NO, 0.0f)        \
    X(SOFTCAP, softcap, 1, k0 * D9DI_POINTWISE_TANH(a / k0), A, softcap_prime(a, k0),              \
      NO, 0.0f, NO, 0.0f)                                                                          \
    X(RELU, relu, 1, a < 0.0f ? 0.0f : a, A, a > 0.0f ? 1.0f : 0.0f, NO, 0.0f, NO, 0.0f)           \
    X(SILU, silu, 1, a * D9DI_POINTWISE_SIGMOID(a), A, silu_prime(a), NO, 0.0f, NO, 0.0f)          \
    X(GELU, gelu, 1, a * D9DI_POINTWISE_NORMAL_CDF(a), A, gelu_prime(a), NO, 0.0f, NO, 0.0f)       \
    X(GELU_TANH, gelu_tanh, 1, a * gelu_tanh_sigmoid(a), A, gelu_tanh_prime(a),                    \
      NO, 0.0f, NO, 0.0f)                                                                          \
    X(CLAMP, clamp, 1, clamp_to(a, k0, k1), A, a < k0 || a > k1 ? 0.0f : 1.0f,                     \
      NO, 0.0f, NO, 0.0f)                                                                          \
    X(GE, ge, 1, a >= k0 ? 1.0f : 0.0f, NO, 0.0f, NO, 0.0f, NO, 0.0f)

#define D9DI_POINTWISE_BINARY(X)                                                                   \
    X(ADD, add, 2, a + b, 0, 1.0f, 0, 1.0f, NO, 0.0f)                                              \
    X(SUB, sub, 2, a - b, 0, 1.0f, 0, -1.0f, NO, 0.0f)                                             \
    X(MUL, mul, 2, a * b, B, b, A, a, NO, 0.0f)                                                    \
    X(DIV, div, 2, a / b, B, 1.0f / b, A | B, -a / (b * b), NO, 0.0f)                              \
    X(MINIMUM, minimum, 2, a < b || a != a ? a : b, A | B, larger_share(b, a),                     \
      A | B, larger_share(a, b), NO, 0.0f)                                                         \
    X(MAXIMUM, maximum, 2, a > b || a != a ? a : b, A | B, larger_share(a, b),                     \
      A | B, larger_share(b, a), NO, 0.0f)                                                         \
    X(EXP_SUB, exp_sub, 2, D9DI_POINTWISE_EXP(a - b), A | B, D9DI_POINTWISE_EXP(a - b),            \
      A | B, -D9DI_POINTWISE_EXP(a - b), NO, 0.0f)                                                 \
    X(MSE, mse, 2, (a - b) * (a - b), A | B, 2.0f * (a - b), A | B, 2.0f * (b - a), NO, 0.0f)      \
    X(L1, l1, 2, fabsf(a - b), A | B, sign_of(a - b), A | B, sign_of(b - a), NO, 0.0f)             \
    X(HUBER, huber, 2, huber_of(a - b, k0), A | B, clamp_to(a - b, -k0, k0),                       \
      A | B, clamp_to(b - a, -k0, k0), NO, 0.0f)                                                   \
    X(BCE_WITH_LOGITS, bce_with_logits, 2, (a > 0.0f ? a : 0.0f) - a * b + log1p_exp_neg(a),       \
      A | B, D9DI_POINTWISE_SIGMOID(a) - b, A, -a, NO, 0.0f)                                       \
    X(KL_DIV, kl_div, 2, b > 0.0f ? b * (D9DI_POINTWISE_LOG(b) - a) : b == 0.0f ? 0.0f : NAN,      \
      B, -b, A | B, b > 0.0f ? D9DI_POINTWISE_LOG(b) + 1.0f - a : 0.0f, NO, 0.0f)
/* clang-format on */

#endif /* D9DI_COMMON_POINTWISE_TABLE_H */
