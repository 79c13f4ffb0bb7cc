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
    b->has_bias = false;
    d9d_module_init(&b->module);
    D9D_TRY(d9d_block_linear_init(&b->gate_proj, opts, hidden, intermediate));
    D9D_TRY(d9d_block_linear_init(&b->up_proj, opts, hidden, intermediate));
    D9D_TRY(d9d_block_linear_init(&b->down_proj, opts, intermediate, hidden));
    d9di_block_divide(&b->gate_proj.weight, opts, (d9d_param_parallel){.style = D9D_COLWISE});
    d9di_block_divide(&b->up_proj.weight, opts, (d9d_param_parallel){.style = D9D_COLWISE});
    d9di_block_divide(&b->down_proj.weight, opts, (d9d_param_parallel){.style = D9D_ROWWISE});
    return d9di_block_children(&b->module, children, 3);
}

d9d_status d9d_block_ffn_add_bias(d9d_block_ffn *b, const d9d_block_opts *opts)
{
    const struct {
        d9d_block_linear *of;
        d9d_param *bias;
    } all[] = {
        {&b->gate_proj, &b->gate_bias}, {&b->up_proj, &b->up_bias}, {&b->down_proj, &b->down_bias}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        D9D_TRY(d9d_module_param(&all[i].of->module, "bias", all[i].bias, opts->dtype,
                                 D9D_SHAPE(all[i].of->weight.spec.shape.dim[0]), D9D_INIT_ZEROS,
                                 0));
    d9di_block_divide(&b->gate_bias, opts, (d9d_param_parallel){.style = D9D_COLWISE});
    d9di_block_divide(&b->up_bias, opts, (d9d_param_parallel){.style = D9D_COLWISE});
    b->has_bias = true;
    return D9D_OK;
}

/* With biases, which the fused op does not have. */
static d9d_status biased_forward(d9d_block_ffn *b, d9d_tape *t, d9d_var *all,
                                 d9d_op_pending_rows *coming, d9d_var *plus, d9d_var **y)
{
    const int64_t width = b->gate_proj.weight.local.shape.dim[0];
    const d9d_op_weight_slice rows[] = {{&b->gate_proj.weight, 0, width},
                                        {&b->up_proj.weight, 0, width}};
    d9d_var *h[2];

    D9D_TRY(d9d_op_linear_multi(t, all, coming, rows, 2, h));
    D9D_TRY(d9d_op_add_bias(t, h[0], &b->gate_bias, 0, &h[0]));
    D9D_TRY(d9d_op_add_bias(t, h[1], &b->up_bias, 0, &h[1]));
    D9D_TRY(d9d_op_swiglu(t, h[0], h[1], &h[0]));
    D9D_TRY(d9di_block_linear_reduce(&b->down_proj, t, h[0], d9d_groups_tp(b->groups), plus, y));
    return d9d_op_add_bias(t, *y, &b->down_bias, 0, y);
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
    if (b->has_bias)
        return biased_forward(b, t, all, &coming, plus, y);
    return d9d_op_ffn(t, all, &w, NULL, d9d_comm_size(tp) > 1 ? &ranks : NULL, plus, y);
}
