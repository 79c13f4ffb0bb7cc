/* ffn_block.c - feed-forward.  See d9d/nn/block.h. */
#include "nn/block_init.h"

static d9d_status linear_init(d9d_block_ffn *b, const char *name, d9d_block_linear *linear,
                              d9d_param *bias, const d9d_block_opts *opts, int64_t in, int64_t out)
{
    D9D_TRY(d9d_block_linear_init(linear, opts, in, out));
    if (b->shape.bias)
        D9D_TRY(d9d_module_param(&linear->module, "bias", bias, opts->dtype, D9D_SHAPE(out),
                                 D9D_INIT_ZEROS, 0));
    return d9d_module_child(&b->module, name, &linear->module);
}

d9d_status d9d_block_ffn_init(d9d_block_ffn *b, const d9d_block_opts *opts,
                              const d9d_block_ffn_shape *shape)
{
    const int64_t h = shape->hidden, i = shape->intermediate;
    d9d_param *const wide[] = {&b->gate_proj.weight, &b->gate_bias, &b->up_proj.weight,
                               &b->up_bias};

    b->shape = *shape;
    b->groups = opts->groups;
    if (opts->blocks != NULL)
        opts->blocks->dropout |= shape->dropout > 0 || shape->out_dropout > 0;
    d9d_module_init(&b->module);
    if (!shape->ungated)
        D9D_TRY(linear_init(b, "gate_proj", &b->gate_proj, &b->gate_bias, opts, h, i));
    D9D_TRY(linear_init(b, "up_proj", &b->up_proj, &b->up_bias, opts, h, i));
    D9D_TRY(linear_init(b, "down_proj", &b->down_proj, &b->down_bias, opts, i, h));
    for (size_t w = 0; w < sizeof(wide) / sizeof(wide[0]); w++)
        d9di_block_divide(wide[w], opts, (d9d_param_parallel){.style = D9D_COLWISE});
    d9di_block_divide(&b->down_proj.weight, opts, (d9d_param_parallel){.style = D9D_ROWWISE});
    return D9D_OK;
}

d9d_status d9d_block_ffn_forward(d9d_block_ffn *b, d9d_tape *t, d9d_var *x, d9d_var *plus,
                                 d9d_var **y)
{
    const bool gated = !b->shape.ungated, bias = b->shape.bias;
    const d9d_op_ffn_weights w = {.gate = gated ? &b->gate_proj.weight : NULL,
                                  .up = &b->up_proj.weight,
                                  .down = &b->down_proj.weight,
                                  .gate_bias = gated && bias ? &b->gate_bias : NULL,
                                  .up_bias = bias ? &b->up_bias : NULL,
                                  .down_bias = bias ? &b->down_bias : NULL,
                                  .glu = b->shape.glu,
                                  .dropout = {.p = b->shape.dropout,
                                              .site = &b->up_proj.weight,
                                              .first = b->up_proj.weight.local.offset[0],
                                              .width = b->shape.intermediate}};
    const bool drops = d9d_op_dropout_is_active(t, b->shape.out_dropout);
    d9d_comm *tp = d9d_groups_tp(b->groups);
    d9d_op_pending_rows coming;
    const d9d_op_ffn_tp ranks = {tp, b->down_proj.weight.name, &coming};
    d9d_var *all;

    D9D_TRY(d9d_op_all_gather_rows_start(t, x, tp, b->up_proj.weight.name, &coming, &all));
    D9D_TRY(d9d_op_ffn(t, all, &w, NULL, d9d_comm_size(tp) > 1 ? &ranks : NULL, drops ? NULL : plus,
                       y));
    return drops
               ? d9di_block_dropout_add(t, *y, b->shape.out_dropout, &b->down_proj.weight, plus, y)
               : D9D_OK;
}
