/* position_embedding_block.c - learnt positions.  See d9d/nn/block.h. */
#include "nn/block_init.h"

d9d_status d9d_block_position_embedding_init(d9d_block_position_embedding *b,
                                             const d9d_block_opts *opts, int64_t positions,
                                             int64_t hidden)
{
    const float std = opts->init_std > 0 ? (float)opts->init_std : 1.0f;

    b->groups = opts->groups;
    d9d_module_init(&b->module);
    return d9d_module_param(&b->module, "weight", &b->weight, opts->dtype,
                            D9D_SHAPE(positions, hidden), D9D_INIT_NORMAL, std);
}

d9d_status d9d_block_position_embedding_forward(d9d_block_position_embedding *b, d9d_tape *t,
                                                d9d_var *x, const d9d_tensor *positions,
                                                d9d_var **y)
{
    d9d_tensor ids = d9di_block_tokens_of_rank(positions, d9d_groups_tp(b->groups));
    d9d_param *const table = &b->weight;
    d9d_var *rows;
    d9d_status st = d9d_op_embedding(t, &ids, &table, 1, &rows);

    d9d_tensor_release(&ids);
    return st == D9D_OK ? d9d_op_add(t, x, rows, y) : st;
}
