/* op_causal_conv1d.c - each channel's sum over the last W tokens of a document, then SiLU.
 * x y [B, S, N], w [N, W]. */
#include "op/attention/op_documents.h"

/* Saved; segments, where given, follow: attr points into them. */
enum { X };

typedef struct conv_attr {
    d9d_conv_dims dims;
} conv_attr;

/* The halves that are wanted, in one pass. */
static d9d_status grad(d9d_node *n, unsigned halves)
{
    const d9d_conv_dims *dims = &((const conv_attr *)n->attr)->dims;
    const bool want_dw = (halves & D9D_NEED_WEIGHT) != 0;
    d9d_param *w = n->param[0];
    d9d_tensor dx = {0};
    d9d_status st;

    if (halves & D9D_NEED_INPUT)
        D9D_TRY(d9di_node_grad(n, X, &dx));
    st = D9DI_KERNEL(n->tape, conv_grad, dims, d9d_tensor_data(&dx),
                     want_dw ? w->grad.dtype : D9D_F32, want_dw ? d9d_tensor_data(&w->grad) : NULL,
                     want_dw ? d9d_param_grad_beta(w) : 0.0f, d9d_tensor_data(&n->dout[0]),
                     d9d_tensor_data(&n->saved[X]), d9d_tensor_data(&w->data));
    return dx.storage != NULL ? d9di_node_finish(n, X, &dx, st) : st;
}

D9DI_HALVES(grad)

static const d9d_node_ops ops = {
    .name = "conv", .input = grad_input, .weight = grad_weight, .full = grad_full};

static d9d_status check(const d9d_tensor *x, const d9d_param *w, const d9d_tensor *segments)
{
    const d9d_shape *s = &w->data.shape;

    D9D_TRY(d9di_op_check_real("conv", "x", x));
    D9D_TRY(d9di_op_check_param("conv", w, x->dtype));
    if (x->shape.ndim != 3 || s->ndim != 2 || s->dim[0] != x->shape.dim[2])
        return d9di_op_misfit("conv", "x", &x->shape, d9di_param_name(w), s,
                              "x is [B, S, N], a weight [N, W]");
    if (s->dim[1] < 1 || s->dim[1] > D9D_CONV_WIDTH)
        return D9D_FAIL(D9D_EINVAL, "conv: %s is %lld tokens wide, from 1 to %d are possible",
                        d9di_param_name(w), (long long)s->dim[1], D9D_CONV_WIDTH);
    return d9di_documents_check_list("conv", x, segments);
}

static d9d_status compute(d9d_tape *t, const d9d_conv_dims *n, const d9d_kept *kept, void *y,
                          const void *x, const void *w)
{
    d9d_past past;

    if (kept == NULL)
        return D9DI_KERNEL(t, conv, n, y, x, w);
    past = d9di_past(kept);
    return D9DI_KERNEL(t, conv_on, n, &past, y, x, w);
}

d9d_status d9d_op_conv(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_tensor *segments,
                       const d9d_kept *kept, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_conv_dims dims;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(check(tx, w, segments));
    dims = (d9d_conv_dims){tx->dtype, d9di_documents_of(tx, segments), tx->shape.dim[2],
                           w->data.shape.dim[1]};
    D9D_TRY(d9di_documents_check_kept("conv", segments, kept, tx->dtype,
                                      D9D_SHAPE(dims.w - 1, dims.n),
                                      d9d_tape_wants(t, &x, 1, &w, 1)));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(compute(t, &dims, kept, d9d_tensor_data(d9d_var_tensor(out)), d9d_tensor_data(tx),
                    d9d_tensor_data(&w->data)));
    if (d9d_tape_wants(t, &x, 1, &w, 1)) {
        D9D_TRY(d9d_tape_record(t, &ops, &x, 1, &out, 1, &w, 1, sizeof(conv_attr), &n));
        ((conv_attr *)n->attr)->dims = dims;
        (void)d9d_node_save(n, tx, D9D_NEED_BOTH);
        if (segments != NULL)
            (void)d9d_node_save(n, segments, D9D_NEED_BOTH);
    }
    *y = out;
    return D9D_OK;
}
