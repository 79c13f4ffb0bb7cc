/* op_sequence_log_probs.c - log-probabilities of whole answers, from the losses of their tokens.
 *
 *     loss [B, S / n] --cp_gather--> [B, S] --sum over the tokens of each document--> y [N, 1]
 *
 * The sum is over whole sequences on every rank, so that its order does not depend on their number.
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

void d9d_op_document_index_release(d9d_op_document_index *d)
{
    d9d_tensor_release(&d->offset);
    d9d_tensor_release(&d->targets);
    d9d_tensor_release(&d->counts);
    d9d_tensor_release(&d->records);
    d9d_tensor_release(&d->labels);
}

d9d_status d9d_op_sequence_log_probs(d9d_tape *t, d9d_var *loss,
                                     const d9d_op_document_index *documents, d9d_comm *cp,
                                     d9d_var **y)
{
    D9D_TRY(d9di_op_check("sequence_log_probs", "loss", d9d_var_tensor(loss), D9D_F32));
    D9D_TRY(d9d_op_cp_gather(t, loss, cp, "losses of answers", &loss));
    D9D_TRY(d9d_op_reshape(t, loss, D9D_SHAPE(d9d_tensor_numel(d9d_var_tensor(loss)), 1), &loss));
    D9D_TRY(d9d_op_segment_reduce(t, D9D_REDUCE_SUM, loss, &documents->offset, &loss));
    return d9d_op_affine(t, loss, -1.0f, 0, y);
}
