/* mlm_head_block.c - head of a masked language model, without its tables.  See d9d/nn/block.h. */
#include "nn/block_init.h"

d9d_status d9d_block_mlm_head_init(d9d_block_mlm_head *b, const d9d_block_opts *opts,
                                   const d9d_block_mlm_head_shape *shape)
{
    b->shape = *shape;
    d9d_module_init(&b->module);
    D9D_BLOCK_ADD(&b->module, "dense", linear, &b->dense, opts, shape->hidden, shape->hidden);
    if (shape->dense_bias)
        D9D_TRY(d9d_module_param(&b->dense.module, "bias", &b->dense_bias, opts->dtype,
                                 D9D_SHAPE(shape->hidden), D9D_INIT_ZEROS, 0));
    D9D_BLOCK_ADD(&b->module, "norm", layer_norm, &b->norm, opts, shape->hidden, shape->norm_eps,
                  shape->norm);
    if (shape->decoder_bias)
        D9D_TRY(d9d_module_param(&b->module, "decoder.bias", &b->decoder_bias, opts->dtype,
                                 D9D_SHAPE(shape->vocab), D9D_INIT_ZEROS, 0));
    return D9D_OK;
}

d9d_status d9d_block_mlm_head_forward(d9d_block_mlm_head *b, d9d_tape *t, d9d_var *x, d9d_var **h)
{
    D9D_TRY(d9d_block_linear_forward(&b->dense, t, x, &x));
    if (b->shape.dense_bias)
        D9D_TRY(d9d_op_add_bias(t, x, &b->dense_bias, 0, &x));
    D9D_TRY(d9d_op_glu(t, &b->shape.act, x, NULL, &x));
    return d9d_block_layer_norm_forward(&b->norm, t, x, h);
}
