/* linear_block.c - linear layers and norms; initialisation of matrices and output projection of
 * every block.
 */
#include <math.h>

#include "nn/block_init.h"

d9d_init_kind d9di_block_init(const d9d_block_opts *opts, int64_t in, float *scale)
{
    if (opts->init_std > 0) {
        *scale = (float)opts->init_std;
        return D9D_INIT_NORMAL;
    }
    *scale = 1.0f / sqrtf((float)in);
    return D9D_INIT_UNIFORM;
}

d9d_status d9di_block_children(d9d_module *m, const struct d9di_block_child *children, size_t n)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9d_module_child(m, children[i].name, children[i].module));
    return D9D_OK;
}

d9d_status d9d_block_linear_init(d9d_block_linear *b, const d9d_block_opts *opts, int64_t in,
                                 int64_t out)
{
    float scale;
    d9d_init_kind kind = d9di_block_init(opts, in, &scale);

    d9d_module_init(&b->module);
    D9D_TRY(d9d_module_param(&b->module, "weight", &b->weight, opts->dtype, D9D_SHAPE(out, in),
                             kind, scale));
    b->weight.spec.adaptable = true;
    return D9D_OK;
}

d9d_status d9d_block_linear_forward(d9d_block_linear *b, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    return d9d_op_linear(t, x, &b->weight, y);
}

d9d_status d9di_block_linear_reduce(d9d_block_linear *b, d9d_param *bias, d9d_tape *t, d9d_var *x,
                                    d9d_comm *tp, d9d_var *plus, d9d_var **y)
{
    if (d9d_comm_size(tp) == 1)
        return d9d_op_linear_bias(t, x, &b->weight, bias, plus, y);
    D9D_TRY(d9d_op_linear_reduce_scatter(t, x, &b->weight, tp, b->weight.name, plus, y));
    return bias != NULL ? d9d_op_add_bias(t, *y, bias, 0, y) : D9D_OK;
}

d9d_tensor d9di_block_tokens_of_rank(const d9d_tensor *x, d9d_comm *tp)
{
    const int ranks = d9d_comm_size(tp);
    const int64_t n = d9d_tensor_numel(x) / ranks;
    d9d_tensor all, own;

    if (ranks == 1)
        return d9d_tensor_ref(x);
    all = d9d_tensor_reshape(x, D9D_SHAPE(n * ranks));
    own = d9d_tensor_rows(&all, n * d9d_comm_rank(tp), n);
    d9d_tensor_release(&all);
    return own;
}

d9d_status d9di_block_dropout_add(d9d_tape *t, d9d_var *x, float p, const d9d_param *site,
                                  d9d_var *plus, d9d_var **y)
{
    D9D_TRY(d9d_op_dropout(t, x, &(d9d_op_dropout_opts){.p = p, .site = site}, y));
    return plus != NULL ? d9d_op_add(t, plus, *y, y) : D9D_OK;
}

d9d_status d9d_block_norm_init(d9d_block_norm *b, const d9d_block_opts *opts, int64_t n, float eps,
                               bool zero_centred)
{
    b->eps = eps;
    b->zero_centred = zero_centred;
    d9d_module_init(&b->module);
    return d9d_module_param(&b->module, "weight", &b->weight, opts->dtype, D9D_SHAPE(n),
                            zero_centred ? D9D_INIT_ZEROS : D9D_INIT_ONES, 0);
}

d9d_status d9d_block_norm_forward(d9d_block_norm *b, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    return d9d_op_rms_norm(t, x, &b->weight, b->eps, b->zero_centred, y);
}

d9d_status d9d_block_layer_norm_init(d9d_block_layer_norm *b, const d9d_block_opts *opts, int64_t n,
                                     float eps, d9d_block_layer_norm_params params)
{
    b->eps = eps;
    b->params = params;
    d9d_module_init(&b->module);
    if (params != D9D_LAYER_NORM_PLAIN)
        D9D_TRY(d9d_module_param(&b->module, "weight", &b->weight, opts->dtype, D9D_SHAPE(n),
                                 D9D_INIT_ONES, 0));
    if (params == D9D_LAYER_NORM_BIAS)
        D9D_TRY(d9d_module_param(&b->module, "bias", &b->bias, opts->dtype, D9D_SHAPE(n),
                                 D9D_INIT_ZEROS, 0));
    return D9D_OK;
}

d9d_status d9d_block_layer_norm_forward(d9d_block_layer_norm *b, d9d_tape *t, d9d_var *x,
                                        d9d_var **y)
{
    return d9d_op_layer_norm(t, x, b->params != D9D_LAYER_NORM_PLAIN ? &b->weight : NULL,
                             b->params == D9D_LAYER_NORM_BIAS ? &b->bias : NULL, b->eps, y);
}
