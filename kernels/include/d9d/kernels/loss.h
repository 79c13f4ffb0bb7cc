/* loss.h - the linear head with cross entropy, fused, over a whole vocabulary or one rank's part.
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/loss.
 */
#ifndef D9D_KERNELS_LOSS_H
#define D9D_KERNELS_LOSS_H

#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Vocabulary parallelism: the ranks that each own a part of the vocabulary. */
typedef struct d9d_linear_cross_entropy_ranks {
    int64_t n, rank;
    int64_t max_rows; /* rows of the largest part */
    /* Enqueues an in-place all-gather: all [n, count] float32, of which this rank's count floats
     * are at index `rank`. Collective: every rank makes the same calls. */
    d9d_status (*all_gather)(void *arg, float *all, int64_t count);
    void *arg;
} d9d_linear_cross_entropy_ranks;

/* Fused linear head and cross entropy: hidden [T, H], the head in splits w[i] [v[i], H], targets
 * [T]. Without `first` the ids of the splits follow each other from 0. In a part of a vocabulary,
 * row j of split i is id first[i] + j of `vocab`. The logit of a target that this part lacks counts
 * as 0. The lse and loss of a part without rows are -inf. With a bias, z = hidden . w + bias of an
 * id, else hidden . w. With a softcap c, a logit is c tanh(z / c), and dz = dlogit (1 - (logit /
 * c)^2). */
typedef struct d9d_linear_cross_entropy_dims {
    d9d_dtype t;
    int64_t rows, h;
    int n_split;
    const int64_t *v; /* [n_split], on the host */
    int32_t ignore;
    float softcap;        /* 0: none; the same in every call about these tokens */
    int64_t scratch;      /* most bytes of scratch of linear_cross_entropy_fwd_bwd, as long as a few
                             tokens fit; 0: 768 MiB */
    const int64_t *first; /* [n_split], on the host; NULL: this is the whole vocabulary */
    int64_t vocab;        /* size of the whole vocabulary, where this is a part */
    const d9d_linear_cross_entropy_ranks
        *ranks;       /* of linear_cross_entropy_fwd_bwd: the owners of the other parts */
    const void *bias; /* [V] by id, of type t; NULL: none.  linear_cross_entropy_fwd_bwd takes none
                       */
    void *dbias;      /* of linear_cross_entropy_wgrad: [V] of type gt, to which the gradient of the
                         bias of this part's ids is added; NULL: not computed */
} d9d_linear_cross_entropy_dims;

typedef struct d9d_loss_kernels {
    /* loss, lse [T] float32 of any alignment; 0 where the target is `ignore`. token_grad [T, H] of
     * type t, or NULL, is the gradient of each token's loss by its hidden row, which is cheap while
     * the logits are there. */
    d9d_status (*linear_cross_entropy)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                       float *loss, float *lse, void *token_grad,
                                       const void *hidden, const void *const *w,
                                       const int32_t *targets);
    /* Vocabulary parallelism over n ranks: parts [n, 2, T] are the lse and the loss that
     * linear_cross_entropy() computed for each part. loss and lse become those of the whole
     * vocabulary. token_grad, which linear_cross_entropy() computed for this rank's part, becomes
     * that part's share of the gradient; the shares of all parts sum to it. token_grad may be NULL.
     */
    d9d_status (*linear_cross_entropy_combine)(d9d_stream s, const d9d_linear_cross_entropy_dims *d,
                                               float *loss, float *lse, void *token_grad,
                                               const float *parts, int64_t n, int64_t rank,
                                               const void *const *w, const int32_t *targets);
    /* dhidden[t] = dloss[t] token_grad[t]. */
    d9d_status (*linear_cross_entropy_dgrad)(d9d_stream s, d9d_dtype t, void *dhidden,
                                             const float *dloss, const void *token_grad,
                                             int64_t rows, int64_t h);
    /* Recomputes the logits, by blocks. dw[i] NULL: the gradient of that split is not computed. */
    d9d_status (*linear_cross_entropy_wgrad)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                             d9d_dtype gt, void *const *dw, const float *beta,
                                             const float *dloss, const float *lse,
                                             const void *hidden, const void *const *w,
                                             const int32_t *targets);
    /* Loss and both gradients in one pass, for a gradient of 1 by every loss. The logits are
     * computed once, and the softmax of as many tokens as n->scratch allows is kept for both GEMMs.
     * With n->ranks, a vocabulary in parts: loss is that of the whole, token_grad this part's
     * share. Any of token_grad and dw[i] may be NULL. */
    d9d_status (*linear_cross_entropy_fwd_bwd)(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                               d9d_dtype gt, float *loss, void *token_grad,
                                               void *const *dw, const float *beta,
                                               const void *hidden, const void *const *w,
                                               const int32_t *targets);
} d9d_loss_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_LOSS_KERNELS(X)                                                                        \
    X(loss, linear_cross_entropy, linear_cross_entropy)                                            \
    X(loss, linear_cross_entropy_combine, linear_cross_entropy_combine)                            \
    X(loss, linear_cross_entropy_dgrad, linear_cross_entropy_dgrad)                                \
    X(loss, linear_cross_entropy_wgrad, linear_cross_entropy_wgrad)                                \
    X(loss, linear_cross_entropy_fwd_bwd, linear_cross_entropy_fwd_bwd)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_LOSS_H */
