/* moe.h - mixture of experts: the router, its losses and its load, and tokens in expert order.
 *
 *     router          logits [T, E]        ->  prob, expert [T, k]
 *     sort_by_expert  expert [T, k]        ->  offset [E + 1], row [T, k], source [T k]
 *     permute         x [T, H]             ->  y [N, H], in expert order, for gemm->grouped()
 *     unpermute       y [N, H], prob       ->  [T, H]
 *
 * Without a backward pass two entries do all of this:
 *
 *     route           router and sort_by_expert
 *     experts         permute, the experts' feed-forward, unpermute
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/moe.
 */
#ifndef D9D_KERNELS_MOE_H
#define D9D_KERNELS_MOE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/elementwise.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Router: each of T tokens chooses k of E experts. Scores are the softmax of a token's logits, or
 * the sigmoid of each. With groups above 1 the experts form that many groups of equal size. A group
 * is worth the sum of its two largest keys (score + bias), or with group_max its largest key, and
 * only experts of the best top_groups groups are eligible. The weight of a choice is its score,
 * divided by the sum of the token's chosen scores + 1e-20 if `renormalise`, times `scale`. */
enum { D9D_ROUTER_MAX_GROUPS = 32 }; /* limit of `groups` */
typedef struct d9d_router_dims {
    d9d_dtype t; /* of logits */
    int64_t rows, e, k;
    bool sigmoid, renormalise;
    int groups, top_groups; /* 0 or 1 groups: no grouping */
    float scale;
    bool group_max;
} d9d_router_dims;

/* Router losses, which balance the experts' load and keep the logits small. Sequence b of the batch
 * has seq_len tokens; token i of this call is number first + i of the batch. With w the token's
 * weight, load[b] the number of choices per expert of its sequence, and q its scores divided by
 * their sum:
 *
 *     aux   w sum over e of q_e E load[b, e] / (sum over e of load[b, e])
 *     z     w log(sum over e of exp(logit_e))^2
 *
 * each times its coefficient. The choices themselves have no gradient. */
typedef struct d9d_router_balance {
    const float *weight; /* [T]; 0: the token does not count */
    const float *load;   /* [sequences, E]; may be NULL if aux is 0 */
    const void *logits;  /* [T, E]; may be NULL if z is 0 */
    int64_t first, seq_len;
    float aux, z;
} d9d_router_balance;

/* Permutation of tokens into expert order and back (MoE): T tokens with k choices each, N rows in
 * expert order (T k, or fewer if some choices are -1), H columns. */
typedef struct d9d_moe_permute_dims {
    d9d_dtype t;
    int64_t rows, k, n, h;
} d9d_moe_permute_dims;

/* Where choices are in expert order, see sort_by_expert(). */
typedef struct d9d_expert_order {
    int32_t *offset, *row, *source;
} d9d_expert_order;

/* All experts of a mixture, forward only: y = plus + sum over a token's choices of prob times
 *
 *     (act(x Wg + bg) (x Wu + bu)) Wd + bd
 *
 * for T tokens with k choices each, N of them with a row, E experts, H and I columns. Gate and up
 * are [E, H, I], down [E, I, H]; up NULL: no gate, act(x Wg + bg). Biases, [E, I] and [E, H], and
 * plus [T, H] may be NULL. The last four are the caller's scratch, whose content is undefined
 * afterwards. */
typedef struct d9d_experts_args {
    d9d_dtype t;
    int64_t rows, k, n, e, h, i;
    d9d_glu glu;
    const void *x, *plus;
    const float *prob;
    d9d_expert_order order;
    const void *gate, *up, *down;
    const void *b_gate, *b_up, *b_down;
    void *sorted;               /* [N, H] */
    void *gates, *ups, *hidden; /* [N, I] */
} d9d_experts_args;

typedef struct d9d_moe_kernels {
    /* Top-k choice. p [T, E] float32 are the scores of all experts, which the backward pass reads;
     * prob and expert [T, k] the choices; bias [E] or NULL affects the choice only. */
    d9d_status (*router)(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                         int32_t *expert, const void *logits, const float *bias);
    /* balance NULL: the gradient of prob only. */
    d9d_status (*router_bwd)(d9d_stream s, const d9d_router_dims *n, void *dlogits,
                             const float *dprob, const float *p, const float *prob,
                             const int32_t *expert, const d9d_router_balance *balance);
    /* Counts the choices of every token that counts (b->weight above 0): per sequence in b's load,
     * and in total [E]; either may be NULL. */
    d9d_status (*expert_load)(d9d_stream s, const d9d_router_dims *n, float *load, double *total,
                              const int32_t *expert, const d9d_router_balance *b);
    /* Each token's terms of the two losses, [T] each, without their coefficients. */
    d9d_status (*router_losses)(d9d_stream s, const d9d_router_dims *n, float *aux, float *z,
                                const float *p, const d9d_router_balance *b);
    /* Loss-free balancing: bias[i] += rate * sign(mean of load - load[first + i]), i < n, for load
     * [E]. Does nothing if *scale is NaN. */
    d9d_status (*router_bias)(d9d_stream s, float *bias, const double *load, const float *scale,
                              float rate, int64_t first, int64_t n, int64_t e);
    /* Numbers the choices that are not -1 in the order (expert, token). row [T, k] is a choice's
     * number, -1 if it has none; source [T k] the choice of a number, -1 for the unused numbers;
     * offset [E + 1] the first number of each expert. */
    d9d_status (*sort_by_expert)(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                 const int32_t *expert, int64_t rows, int64_t e, int64_t k);
    /* y [N, H], x [T, H], row [T, k] of sort_by_expert(). Rows of y without a choice are not
     * written. */
    d9d_status (*permute)(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                          const int32_t *row);
    d9d_status (*permute_bwd)(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, const void *dy,
                              const int32_t *row);
    /* y[t] = plus[t] + sum over the token's choices of prob times their rows; plus may be NULL. A
     * choice with row -1 adds nothing, and its dprob is 0. */
    d9d_status (*unpermute)(d9d_stream s, const d9d_moe_permute_dims *n, void *y, const void *x,
                            const float *prob, const int32_t *row, const void *plus);
    d9d_status (*unpermute_bwd)(d9d_stream s, const d9d_moe_permute_dims *n, void *dx, float *dprob,
                                const void *dy, const void *x, const float *prob,
                                const int32_t *row);
    /* router(), then sort_by_expert() of its choices, with the bits of both. */
    d9d_status (*route)(d9d_stream s, const d9d_router_dims *n, float *p, float *prob,
                        int32_t *expert, const d9d_expert_order *order, const void *logits,
                        const float *bias);
    d9d_status (*experts)(d9d_stream s, const d9d_experts_args *a, void *y);
    /* Rank d of R owns experts [d per, (d + 1) per). rank [T, R]: d if the token chose one of its
     * experts, else -1. */
    d9d_status (*expert_ranks)(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                               int64_t k, int64_t ranks, int64_t per);
    /* Row i of N is token source[i] / R for rank source[i] % R. local [N, k] are the token's
     * choices in that rank's numbering of experts; -1 for experts of other ranks and for rows of
     * source -1. */
    d9d_status (*expert_local_ids)(d9d_stream s, int32_t *local, const int32_t *source,
                                   const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                   int64_t ranks, int64_t per);
    /* Row i of N in expert order is token t = source[i] / k with the expert expert[source[i]].
     * number[i] = token[t] * all + first + that expert; 0 for rows of source -1. token [T]. */
    d9d_status (*expert_numbers)(d9d_stream s, int64_t *number, const int64_t *token,
                                 const int32_t *source, const int32_t *expert, int64_t n,
                                 int64_t rows, int64_t k, int64_t first, int64_t all);
} d9d_moe_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_MOE_KERNELS(X)                                                                         \
    X(moe, router, router)                                                                         \
    X(moe, router_bwd, router_bwd)                                                                 \
    X(moe, expert_load, expert_load)                                                               \
    X(moe, router_losses, router_losses)                                                           \
    X(moe, router_bias, router_bias)                                                               \
    X(moe, sort_by_expert, sort_by_expert)                                                         \
    X(moe, permute, permute)                                                                       \
    X(moe, permute_bwd, permute_bwd)                                                               \
    X(moe, unpermute, unpermute)                                                                   \
    X(moe, unpermute_bwd, unpermute_bwd)                                                           \
    X(moe, route, route)                                                                           \
    X(moe, experts, experts)                                                                       \
    X(moe, expert_ranks, expert_ranks)                                                             \
    X(moe, expert_local_ids, expert_local_ids)                                                     \
    X(moe, expert_numbers, expert_numbers)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_MOE_H */
