/* op_rms_norm.c - RMSNorm (root-mean-square norm) over the last dimension.  x [M, N], w [N],
 * inv [M].
 *
 *     inv = 1 / sqrt(mean(x^2) + eps)        y = x inv w'        w' = w or 1 + w
 *     dx = inv (dy w' - x^ mean(dy w' x^))   dw = sum over rows of dy x^        x^ = x inv
 */
#include "op/op_common.h"

typedef struct rms_attr {
    bool zero_centred;
} rms_attr;

enum { SAVED_X, SAVED_INV };

/* The wanted halves, in one pass. */
static d9d_status rms_norm_bwd(d9d_node *n, unsigned halves)
{
    const rms_attr *a = n->attr;
    const d9d_tensor *x = &n->saved[SAVED_X];
    const bool want_dw = (halves & D9D_NEED_WGRAD) != 0;
    d9d_param *w = n->param[0];
    d9d_tensor dx = {0};
    const void *plus = NULL;
    d9d_status st;

    if (halves & D9D_NEED_DGRAD)
        D9D_TRY(d9d_node_accumulate_begin(n, 0, &dx, &plus));
    st = D9DI_KERNEL(
        n->tape, norm->rms_norm_bwd, x->dtype, d9d_tensor_data(&dx), plus,
        want_dw ? w->local.grad.dtype : D9D_F32, want_dw ? d9d_tensor_data(&w->local.grad) : NULL,
        want_dw ? d9d_param_grad_beta(&w->local) : 0.0f, d9d_tensor_data(&n->dout[0]),
        d9d_tensor_data(x), d9d_tensor_data(&w->local.data), d9d_tensor_data(&n->saved[SAVED_INV]),
        d9di_op_rows(&x->shape), d9di_op_last_dim(&x->shape), a->zero_centred);
    return dx.storage != NULL ? d9di_op_grad_finish_sum(n, 0, &dx, st) : st;
}

D9DI_HALVES(rms_norm_bwd)

static const d9d_node_ops rms_norm_node_ops = {.name = "rms_norm",
                                               .dgrad = rms_norm_bwd_dgrad,
                                               .wgrad = rms_norm_bwd_wgrad,
                                               .bwd = rms_norm_bwd_full};

static d9d_status rms_norm_check(const d9d_tensor *x, const d9d_param *w)
{
    const d9d_shape *s = &w->local.data.shape;

    D9D_TRY(d9di_op_check_real("rms_norm", "x", x));
    D9D_TRY(d9di_op_check_param("rms_norm", w, x->dtype));
    if (x->shape.ndim < 1 || s->ndim != 1 || d9di_op_last_dim(&x->shape) != s->dim[0])
        return d9di_op_misfit("rms_norm", "x", &x->shape, d9di_op_param_name(w), s,
                              "x is [..., N], a weight [N]");
    return D9D_OK;
}

static d9d_status rms_norm_record(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_tensor *inv,
                                  bool zero_centred, d9d_var *out)
{
    d9d_node *n;
    rms_attr *a;

    if (!d9d_tape_should_record(t, &x, 1, &w, 1))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &rms_norm_node_ops, &x, 1, &out, 1, &w, 1, sizeof(*a), &n));
    a = n->attr;
    a->zero_centred = zero_centred;
    (void)d9d_node_save(n, d9d_var_tensor(x), D9D_NEED_BOTH);
    (void)d9d_node_save(n, inv, D9D_NEED_BOTH);
    return D9D_OK;
}

d9d_status d9d_op_rms_norm(d9d_tape *t, d9d_var *x, d9d_param *w, float eps, bool zero_centred,
                           d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_tensor inv = {0};
    d9d_var *out;
    d9d_status st;
    int64_t m;

    D9D_TRY_OR(st, rms_norm_check(tx, w), out);
    m = d9di_op_rows(&tx->shape);
    D9D_TRY_OR(st, d9d_tape_output(t, tx->dtype, tx->shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(m), &inv), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, norm->rms_norm, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                           d9d_tensor_data(&inv), d9d_tensor_data(tx),
                           d9d_tensor_data(&w->local.data), m, d9di_op_last_dim(&tx->shape), eps,
                           zero_centred),
               out);
    D9D_TRY_OR(st, rms_norm_record(t, x, w, &inv, zero_centred, out), out);
    *y = out;
out:
    d9d_tensor_release(&inv);
    return st;
}
