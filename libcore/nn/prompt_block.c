/* prompt_block.c - virtual tokens (prompt tuning).  See d9d/nn/block.h. */
#include "nn/block_init.h"

d9d_status d9d_block_prompt_forward(d9d_block_linear *b, const d9d_groups *groups, d9d_tape *t,
                                    d9d_var *x, const d9d_tensor *ids, int64_t first, d9d_var **y)
{
    d9d_tensor own = d9di_block_tokens_of_rank(ids, d9d_groups_tp(groups));
    d9d_var *rows;
    d9d_status st = d9d_op_embedding_from(t, &own, first, &b->weight, &rows);

    d9d_tensor_release(&own);
    D9D_TRY(st);
    D9D_TRY(d9d_op_reshape(t, rows, d9d_var_tensor(x)->shape, &rows));
    return d9d_op_add(t, x, rows, y);
}
