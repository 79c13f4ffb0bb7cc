/* op_gdn_gate.c - log decay of the gated delta rule: g = -exp(rate) log(1 + exp(x + bias)), for
 * each of N heads.  x [..., N], g float32.
 */
#include "op/op_common.h"

enum { RATE, BIAS, PARAMS }; /* parameters */

static d9d_status gdn_gate_dgrad(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[0];
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(n, 0, &dx,
                               D9DI_KERNEL(n->tape, gdn->gate_dgrad, x->dtype, d9d_tensor_data(&dx),
                                           d9d_tensor_data(&n->dout[0]), d9d_tensor_data(x),
                                           d9d_tensor_data(&n->param[RATE]->local.data),
                                           d9d_tensor_data(&n->param[BIAS]->local.data),
                                           d9di_op_rows(&x->shape), d9di_op_last_dim(&x->shape)));
}

static d9d_status gdn_gate_wgrad(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[0];

    for (int i = RATE; i < PARAMS; i++) {
        d9d_param *w = n->param[i];

        if (d9d_param_needs_grad(w))
            D9D_TRY(D9DI_KERNEL(n->tape, gdn->gate_wgrad, x->dtype, w->local.grad.dtype,
                                d9d_tensor_data(&w->local.grad), d9d_param_grad_beta(&w->local),
                                i == BIAS, d9d_tensor_data(&n->dout[0]), d9d_tensor_data(x),
                                d9d_tensor_data(&n->param[RATE]->local.data),
                                d9d_tensor_data(&n->param[BIAS]->local.data),
                                d9di_op_rows(&x->shape), d9di_op_last_dim(&x->shape)));
    }
    return D9D_OK;
}

static const d9d_node_ops gdn_gate_node_ops = {
    .name = "gdn_gate", .dgrad = gdn_gate_dgrad, .wgrad = gdn_gate_wgrad};

static d9d_status gdn_gate_check(const d9d_tensor *x, const d9d_param *w)
{
    D9D_TRY(d9di_op_check_param("gdn_gate", w, x->dtype));
    if (x->shape.ndim < 1 ||
        !d9d_shape_equal(&w->local.data.shape, &D9D_SHAPE(d9di_op_last_dim(&x->shape))))
        return d9di_op_misfit("gdn_gate", "x", &x->shape, d9di_op_param_name(w),
                              &w->local.data.shape, "x is [..., N], rate and bias [N]");
    return D9D_OK;
}

d9d_status d9d_op_gdn_gate(d9d_tape *t, d9d_var *x, d9d_param *rate, d9d_param *bias, d9d_var **g)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_param *param[] = {rate, bias};
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9di_op_check_real("gdn_gate", "x", tx));
    D9D_TRY(gdn_gate_check(tx, rate));
    D9D_TRY(gdn_gate_check(tx, bias));
    D9D_TRY(d9d_tape_output(t, D9D_F32, tx->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, gdn->gate, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(&rate->local.data),
                        d9d_tensor_data(&bias->local.data), d9di_op_rows(&tx->shape),
                        d9di_op_last_dim(&tx->shape)));
    if (d9d_tape_should_record(t, &x, 1, param, PARAMS)) {
        D9D_TRY(d9d_tape_record(t, &gdn_gate_node_ops, &x, 1, &out, 1, param, PARAMS, 0, &n));
        (void)d9d_node_save(n, tx, D9D_NEED_BOTH);
    }
    *g = out;
    return D9D_OK;
}
