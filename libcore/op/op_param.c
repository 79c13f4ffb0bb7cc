/* op_param.c - y = some elements of a parameter, in order, as an array that other ops read: a copy,
 * so that the parameter may be resharded.
 *
 *     dp = dy
 */
#include "op/op_common.h"

typedef struct param_attr {
    int64_t first;
} param_attr;

static d9d_status param_wgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    const int64_t first = ((const param_attr *)n->attr)->first, some = d9d_tensor_numel(dy);
    d9d_param *p = n->param[0];
    d9d_tensor *grad = &p->local.grad;
    const int64_t all = d9d_tensor_numel(grad);
    const float beta = d9d_param_grad_beta(&p->local);

    if (beta == 0.0f && some < all) /* elements without a gradient */
        D9D_TRY(
            D9DI_KERNEL(n->tape, elementwise->fill, grad->dtype, d9d_tensor_data(grad), all, 0.0f));
    return D9DI_KERNEL(n->tape, elementwise->accumulate, grad->dtype,
                       d9di_op_element_ptr(grad, first), beta, dy->dtype, d9d_tensor_data(dy),
                       some);
}

static const d9d_node_ops param_node_ops = {.name = "param", .wgrad = param_wgrad};

d9d_status d9d_op_param(d9d_tape *t, d9d_param *p, int64_t first, int64_t n, d9d_var **y)
{
    const d9d_tensor *data = &p->local.data;
    d9d_var *out;
    d9d_node *node;

    D9D_TRY(d9di_op_check_param("param", p, p->spec.dtype));
    if (first < 0 || n < 0 || first > d9d_tensor_numel(data) - n)
        return D9D_FAIL(D9D_EINVAL, "param: elements [%lld, %lld + %lld) of %s, which has %lld",
                        (long long)first, (long long)first, (long long)n, d9di_op_param_name(p),
                        (long long)d9d_tensor_numel(data));
    D9D_TRY(d9d_tape_output(t, data->dtype, D9D_SHAPE(n), &out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->cast, data->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        data->dtype, d9di_op_element_ptr(data, first), n));
    if (d9d_tape_should_record(t, NULL, 0, &p, 1)) {
        D9D_TRY(d9d_tape_record(t, &param_node_ops, NULL, 0, &out, 1, &p, 1, sizeof(param_attr),
                                &node));
        ((param_attr *)node->attr)->first = first;
    }
    *y = out;
    return D9D_OK;
}
