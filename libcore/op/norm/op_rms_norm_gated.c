/* op_rms_norm_gated.c - RMSNormGated: y = x / sqrt(mean(x^2) + eps) * w * silu(z), over the last
 * dimension.
 */
#include "op/op_common.h"

enum { X, Z, INV }; /* inputs, then saved */

/* The wanted halves, in one pass. */
static d9d_status rms_norm_gated_bwd(d9d_node *n, unsigned halves)
{
    const d9d_tensor *x = &n->saved[X];
    const bool want_dw = (halves & D9D_NEED_WGRAD) != 0;
    d9d_param *w = n->param[0];
    d9d_tensor d[2] = {{0}, {0}};
    d9d_status st = D9D_OK;

    for (int i = X; i <= Z && (halves & D9D_NEED_DGRAD); i++)
        D9D_TRY_OR(st, d9di_op_grad_alloc(n, i, &d[i]), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, norm->rms_norm_gated_bwd, x->dtype, d9d_tensor_data(&d[X]),
                           d9d_tensor_data(&d[Z]), want_dw ? w->local.grad.dtype : D9D_F32,
                           want_dw ? d9d_tensor_data(&w->local.grad) : NULL,
                           want_dw ? d9d_param_grad_beta(&w->local) : 0.0f,
                           d9d_tensor_data(&n->dout[0]), d9d_tensor_data(x),
                           d9d_tensor_data(&n->saved[Z]), d9d_tensor_data(&w->local.data),
                           d9d_tensor_data(&n->saved[INV]), d9di_op_rows(&x->shape),
                           d9di_op_last_dim(&x->shape)),
               out);
    for (int i = X; i <= Z && (halves & D9D_NEED_DGRAD); i++)
        D9D_TRY_OR(st, d9d_node_accumulate_grad(n, i, &d[i]), out);
out:
    d9d_tensor_release(&d[X]);
    d9d_tensor_release(&d[Z]);
    return st;
}

D9DI_HALVES(rms_norm_gated_bwd)

static const d9d_node_ops rms_norm_gated_node_ops = {.name = "rms_norm_gated",
                                                     .dgrad = rms_norm_gated_bwd_dgrad,
                                                     .wgrad = rms_norm_gated_bwd_wgrad,
                                                     .bwd = rms_norm_gated_bwd_full};

static d9d_status rms_norm_gated_check(const d9d_tensor *x, const d9d_tensor *z, const d9d_param *w)
{
    D9D_TRY(d9di_op_check_real("rms_norm_gated", "x", x));
    D9D_TRY(d9di_op_check("rms_norm_gated", "z", z, x->dtype));
    D9D_TRY(d9di_op_check_param("rms_norm_gated", w, x->dtype));
    if (x->shape.ndim < 1 ||
        !d9d_shape_equal(&w->local.data.shape, &D9D_SHAPE(d9di_op_last_dim(&x->shape))))
        return d9di_op_misfit("rms_norm_gated", "x", &x->shape, d9di_op_param_name(w),
                              &w->local.data.shape, "x is [..., N], a weight [N]");
    return d9di_op_check_same("rms_norm_gated", "x", x, "z", z);
}

static d9d_status rms_norm_gated_record(d9d_tape *t, d9d_var *const in[2], d9d_param *w,
                                        const d9d_tensor *inv, d9d_var *out)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, 2, &w, 1))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &rms_norm_gated_node_ops, in, 2, &out, 1, &w, 1, 0, &n));
    (void)d9d_node_save(n, d9d_var_tensor(in[X]), D9D_NEED_BOTH);
    (void)d9d_node_save(n, d9d_var_tensor(in[Z]), D9D_NEED_BOTH);
    (void)d9d_node_save(n, inv, D9D_NEED_BOTH);
    return D9D_OK;
}

d9d_status d9d_op_rms_norm_gated(d9d_tape *t, d9d_var *x, d9d_var *z, d9d_param *w, float eps,
                                 d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x), *tz = d9d_var_tensor(z);
    d9d_var *in[] = {x, z}, *out;
    d9d_tensor inv = {0};
    d9d_status st;

    D9D_TRY(rms_norm_gated_check(tx, tz, w));
    D9D_TRY_OR(st, d9d_tape_output(t, tx->dtype, tx->shape, &out), out);
    D9D_TRY_OR(
        st,
        d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(d9di_op_rows(&tx->shape)), &inv),
        out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, norm->rms_norm_gated, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                           d9d_tensor_data(&inv), d9d_tensor_data(tx), d9d_tensor_data(tz),
                           d9d_tensor_data(&w->local.data), d9di_op_rows(&tx->shape),
                           d9di_op_last_dim(&tx->shape), eps),
               out);
    D9D_TRY_OR(st, rms_norm_gated_record(t, in, w, &inv, out), out);
    *y = out;
out:
    d9d_tensor_release(&inv);
    return st;
}
