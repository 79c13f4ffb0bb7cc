/* soft_labels.h - next-token prediction of a distribution in place of one token.
 *
 *     q_v           probability of token v: in a field [V], or of k tokens in fields [k] of their
 *                   ids and probabilities; what they lack of 1 has no loss
 *     target_v      (1 - e) ((1 - w) [v is the next token] + w q_v) + e / V
 *     loss          -sum over v of target_v log p_v
 *
 * with e the label smoothing and w the weight of the soft labels; e / V as in torch.  The losses
 * are the fused ones of the next token, which have the logsumexp, and differences of few logits:
 *
 *     loss = s CE(next) + s z_next - sum over v of target_v z_v,    s = sum over v of target_v
 *
 * Logits z_v of given ids are products of rows; sums of q_v z_v over the vocabulary and the mean of
 * z_v are products of h with sums of rows of the head.  So no logits of the vocabulary exist.
 */
#ifndef D9DI_TASKS_SOFT_LABELS_H
#define D9DI_TASKS_SOFT_LABELS_H

#include "d9d/model/model.h"

typedef struct d9di_soft_labels {
    const char *ids;           /* field of the ids; NULL: probabilities are of the vocabulary */
    const char *probabilities; /* field; NULL: no soft labels, label smoothing alone */
    float weight, smoothing;
    d9d_block_vocab *head; /* of the newest model */
} d9di_soft_labels;

/* True if there is anything beside the next token. */
static inline bool d9di_soft_labels_are_on(const d9di_soft_labels *s)
{
    return s->probabilities != NULL || s->smoothing > 0;
}
/* Before adapters are added: ENOTSUP for a head that cannot, and tables whose rows are summed
 * refuse adapters. */
d9d_status d9di_soft_labels_extend(d9di_soft_labels *s, d9d_model *m);
/* The losses [T] of a last stage from d9d_model_out.hidden of a forward without labels.  On
 * tensor-parallel ranks but the first they are parts of a sum that is trained, and no losses.  `s`
 * outlives the backward.  Collective over tp. */
d9d_status d9di_soft_labels_loss(d9di_soft_labels *s, d9d_model *m, d9d_tape *t,
                                 const d9d_model_in *in, d9d_var *hidden, d9d_var **loss);

#endif /* D9DI_TASKS_SOFT_LABELS_H */
