/* ffn_block.c - SwiGLU feed-forward.  See d9d/nn/block.h. */
#include "nn/block_init.h"

d9d_status d9d_block_ffn_init(d9d_block_ffn *b, const d9d_block_opts *opts, int64_t hidden,
                              int64_t intermediate)
{
    const struct d9di_block_child children[] = {
        {"gate_proj", &b->gate_proj.module},
        {"up_proj", &b->up_proj.module},
        {"down_proj", &b->down_proj.module},
    };

    b->groups = opts->groups;
    d9d_module_init(&b->module);
    D9D_TRY(d9d_block_linear_init(&b->gate_proj, opts, hidden, intermediate));
    D9D_TRY(d9d_block_linear_init(&b->up_proj, opts, hidden, intermediate));
    D9D_TRY(d9d_block_linear_init(&b->down_proj, opts, intermediate, hidden));
    d9di_block_divide(&b->gate_proj.weight, opts, (d9d_param_parallel){.style = D9D_COLWISE});
    d9di_block_divide(&b->up_proj.weight, opts, (d9d_param_parallel){.style = D9D_COLWISE});
    d9di_block_divide(&b->down_proj.weight, opts, (d9d_param_parallel){.style = D9D_ROWWISE});
    return d9di_block_children(&b->module, children, 3);
}

d9d_status d9d_block_ffn_forward(d9d_block_ffn *b, d9d_tape *t, d9d_var *x, d9d_var *plus,
                                 d9d_var **y)
{
    const d9d_op_ffn_weights w = {&b->gate_proj.weight, &b->up_proj.weight, &b->down_proj.weight};
    d9d_comm *tp = d9d_groups_tp(b->groups);
    d9d_op_pending_rows coming;
    const d9d_op_ffn_tp ranks = {tp, b->down_proj.weight.name, &coming};
    d9d_var *all;

    D9D_TRY(d9d_op_all_gather_rows_start(t, x, tp, b->gate_proj.weight.name, &coming, &all));
    return d9d_op_ffn(t, all, &w, NULL, d9d_comm_size(tp) > 1 ? &ranks : NULL, plus, y);
}
