/* loss.h - losses, element by element or row by row, composed of the operations of math.h.
 *
 *     D9D_TRY(d9d_op_huber(t, prediction, target, 1.0f, &loss));
 *     D9D_TRY(d9d_op_mul(t, loss, weight, &loss));                 // weights of tokens, if any
 *     D9D_TRY(d9d_op_loss_root(t, loss, &out->loss));              // training minimises the sum
 *
 * None is reduced: weigh the losses, reduce them by d9d_op_mean() or d9d_op_sum(), or leave them to
 * the trainer, which divides by the number of targets of the global batch.  Inputs broadcast, types
 * are as in math.h, and a target may need a gradient too.  d9d_op_linear_cross_entropy() (op.h) is
 * the fused loss of a vocabulary.
 */
#ifndef D9D_OP_LOSS_H
#define D9D_OP_LOSS_H

#include "d9d/op/math.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element by element:
 *
 *     d9d_op_mse              (a - b)^2
 *     d9d_op_l1               |a - b|
 *     d9d_op_bce_with_logits  -b log s(a) - (1 - b) log(1 - s(a)): a are logits, b probabilities
 *     d9d_op_kl_div           b (log b - a), 0 where b is 0: a are log-probabilities, b
 *                             probabilities, as in torch.  Sum over the last dimension
 */
#define D9D_OP_LOSS(name, NAME)                                                                    \
    static inline D9D_MUST_USE d9d_status d9d_op_##name(d9d_tape *t, d9d_var *a, d9d_var *b,       \
                                                        d9d_var **loss)                            \
    {                                                                                              \
        d9d_var *const in[] = {a, b};                                                              \
                                                                                                   \
        return d9d_op_pointwise(t, D9D_POINTWISE_##NAME, in, 0, 0, loss);                          \
    }
D9D_OP_LOSS(mse, MSE)
D9D_OP_LOSS(l1, L1)
D9D_OP_LOSS(bce_with_logits, BCE_WITH_LOGITS)
D9D_OP_LOSS(kl_div, KL_DIV)
#undef D9D_OP_LOSS

/* Huber: (a - b)^2 / 2 up to |a - b| = delta, beyond that delta (|a - b| - delta / 2).  Divided by
 * delta it is torch's smooth L1. */
static inline D9D_MUST_USE d9d_status d9d_op_huber(d9d_tape *t, d9d_var *a, d9d_var *b, float delta,
                                                   d9d_var **loss)
{
    d9d_var *const in[] = {a, b};

    return d9d_op_pointwise(t, D9D_POINTWISE_HUBER, in, delta, 0, loss);
}

/* Cross entropy of logits that exist, [..., V].  loss [..., 1] float32.
 *
 *     targets [...] int32     (1 - e) (-log p(target)) + e mean over v of (-log p(v)), with e the
 *                             label smoothing; 0 where the target is negative
 *     probabilities [..., V]  -sum over v of q(v) log p(v): soft labels, as of a teacher
 */
D9D_API D9D_MUST_USE d9d_status d9d_op_cross_entropy(d9d_tape *t, d9d_var *logits,
                                                     const d9d_tensor *targets,
                                                     float label_smoothing, d9d_var **loss);
D9D_API D9D_MUST_USE d9d_status d9d_op_soft_cross_entropy(d9d_tape *t, d9d_var *logits, d9d_var *q,
                                                          d9d_var **loss);
/* The log-probability of a target in its row, [..., 1] float32; 0 where the target is negative.
 * Preference losses and policy gradients are made of these. */
D9D_API D9D_MUST_USE d9d_status d9d_op_target_log_probs(d9d_tape *t, d9d_var *logits,
                                                        const d9d_tensor *targets, d9d_var **y);

/* --- preferences: of log-probabilities of answers (d9d_op_sequence_log_probs()) ----------------
 *
 * c and r are those of a chosen and a rejected answer, c' and r' a reference's, s the sigmoid.
 * Formulas and names are those of TRL.  All arrays [N, 1] float32.
 *
 *     d9d_op_dpo             -(1 - e) log s(beta m) - e log s(-beta m), e the label smoothing, of
 *                            the margin m = (c - c') - (r - r')
 *     d9d_op_ipo             (m - 1 / (2 beta))^2, of means over tokens in place of sums
 *     d9d_op_simpo           as dpo with beta m - gamma in place of beta m, m = c - r of means
 *     d9d_op_orpo            -c - beta log s(log odds(c) - log odds(r)), of means
 *     d9d_op_kto             1 - s(beta sign (ratio - kl)): ratio = c - c', sign 1 for a desirable
 *                            answer and -1 for another, kl [1] an estimate without gradient
 *     d9d_op_bradley_terry   -log s(c - r), of the scores of a reward model
 */
D9D_API D9D_MUST_USE d9d_status d9d_op_dpo(d9d_tape *t, d9d_var *margin, float beta,
                                           float label_smoothing, d9d_var **loss);
D9D_API D9D_MUST_USE d9d_status d9d_op_ipo(d9d_tape *t, d9d_var *margin, float beta,
                                           d9d_var **loss);
D9D_API D9D_MUST_USE d9d_status d9d_op_simpo(d9d_tape *t, d9d_var *margin, float beta, float gamma,
                                             float label_smoothing, d9d_var **loss);
D9D_API D9D_MUST_USE d9d_status d9d_op_orpo(d9d_tape *t, d9d_var *chosen, d9d_var *rejected,
                                            float beta, d9d_var **loss);
D9D_API D9D_MUST_USE d9d_status d9d_op_kto(d9d_tape *t, d9d_var *ratio, d9d_var *kl, d9d_var *sign,
                                           float beta, d9d_var **loss);
D9D_API D9D_MUST_USE d9d_status d9d_op_bradley_terry(d9d_tape *t, d9d_var *chosen,
                                                     d9d_var *rejected, d9d_var **loss);

/* --- policy gradients: of the log-probabilities of sampled tokens, [B, S, 1] float32 -------------
 *
 * Formulas and names are those of TRL's GRPOTrainer.  With own, old and ref the log-probabilities
 * of a token now, when it was sampled and by a reference, and A the advantage of its completion:
 *
 *     c      e^(own - old), or with `sequence` e to the mean of own - old over the completion
 * (GSPO) clip   -min(c A, clamp(c, 1 - epsilon_low, 1 + epsilon_high) A); the first c is at most
 * delta cispo  -min(c, epsilon_high) A own, where the minimum has no gradient kl     e^(ref - own)
 * - (ref - own) - 1 loss   weight (clip or cispo + beta kl)
 */
typedef struct d9d_op_policy_opts {
    bool cispo, sequence;
    float beta, epsilon_low, epsilon_high;
    float delta; /* 0: no limit */
} d9d_op_policy_opts;

typedef struct d9d_op_policy_in {
    d9d_var *own, *old;          /* old NULL: own without gradient, a ratio of 1 */
    d9d_var *ref;                /* NULL where beta is 0 */
    d9d_var *advantage, *weight; /* weight 0: the token is not trained */
    d9d_var *share; /* with `sequence`: 1 / tokens of the completion, 0 where not trained */
    d9d_comm *cp;   /* the ranks that have the other positions, as d9d_op_cp_gather(); NULL: none */
} d9d_op_policy_in;

/* [B, S, 1] each, or [B, 1, 1] of `low` and `high` with `sequence`. */
typedef struct d9d_op_policy_out {
    d9d_var *loss;
    d9d_var *low, *high; /* without gradient: 1 where the ratio was clipped and it mattered */
    d9d_var *kl;         /* NULL without a reference */
} d9d_op_policy_out;

D9D_API D9D_MUST_USE d9d_status d9d_op_policy_gradient(d9d_tape *t, const d9d_op_policy_opts *o,
                                                       const d9d_op_policy_in *in,
                                                       d9d_op_policy_out *out);

/* --- distillation -------------------------------------------------------------------------------
 *
 * Generalised Jensen-Shannon divergence of a student's distribution p and a teacher's q, softmaxes
 * of logits / temperature, over the last dimension; in float32:
 *
 *     beta 0       sum q (log q - log p)                      forward KL
 *     0 < beta < 1 beta KL(q || m) + (1 - beta) KL(p || m)    m = beta q + (1 - beta) p
 *     beta 1       sum p (log p - log q)                      reverse KL
 *
 * Vocabulary parallel over the ranks of comm (NULL: this one), each has its columns; the loss is
 * equal on all.  The backward sums the gradients of all ranks: train on one rank's loss.
 * student teacher [T, V_local], loss [T, 1] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_generalized_jsd(d9d_tape *t, d9d_var *student,
                                                       d9d_var *teacher, float beta,
                                                       float temperature, d9d_comm *comm,
                                                       d9d_var **loss);

#ifdef __cplusplus
}
#endif
#endif /* D9D_OP_LOSS_H */
