/* op_layer_norm.c - LayerNorm over the last dimension.  x [M, N], w b [N], mean inv [M].
 *
 *     mean = mean(x)        inv = 1 / sqrt(mean((x - mean)^2) + eps)        y = x^ w + b
 *     dx = inv (g - mean(g) - x^ mean(g x^))        dw = sum over rows of dy x^, db = of dy
 *     x^ = (x - mean) inv        g = dy w
 */
#include "op/op_common.h"

typedef struct layer_norm_attr {
    bool has_w, has_b;
} layer_norm_attr;

enum { SAVED_X, SAVED_MEAN, SAVED_INV };

static d9d_param *weight_of(const d9d_node *n)
{
    return ((const layer_norm_attr *)n->attr)->has_w ? n->param[0] : NULL;
}

static d9d_param *bias_of(const d9d_node *n)
{
    const layer_norm_attr *a = n->attr;

    return a->has_b ? n->param[a->has_w ? 1 : 0] : NULL;
}

static const void *data_of(const d9d_param *p)
{
    return p != NULL ? d9d_tensor_data(&p->local.data) : NULL;
}

/* The wanted gradients of parameters. */
static d9d_layer_norm_grads grads_of(const d9d_node *n, unsigned halves)
{
    d9d_layer_norm_grads g = {.wt = D9D_F32, .bt = D9D_F32};
    const bool want = (halves & D9D_NEED_WGRAD) != 0;
    d9d_param *w = weight_of(n), *b = bias_of(n);

    if (want && w != NULL && d9d_param_needs_grad(w)) {
        g.wt = w->local.grad.dtype;
        g.dw = d9d_tensor_data(&w->local.grad);
        g.beta_w = d9d_param_grad_beta(&w->local);
    }
    if (want && b != NULL && d9d_param_needs_grad(b)) {
        g.bt = b->local.grad.dtype;
        g.db = d9d_tensor_data(&b->local.grad);
        g.beta_b = d9d_param_grad_beta(&b->local);
    }
    return g;
}

/* The wanted halves, in one pass. */
static d9d_status layer_norm_bwd(d9d_node *n, unsigned halves)
{
    const d9d_layer_norm_grads of = grads_of(n, halves);
    const d9d_tensor *x = &n->saved[SAVED_X];
    d9d_tensor dx = {0};
    const void *plus = NULL;
    d9d_status st;

    if (halves & D9D_NEED_DGRAD)
        D9D_TRY(d9d_node_accumulate_begin(n, 0, &dx, &plus));
    st = D9DI_KERNEL(n->tape, norm->layer_norm_bwd, x->dtype, d9d_tensor_data(&dx), plus, &of,
                     d9d_tensor_data(&n->dout[0]), d9d_tensor_data(x), data_of(weight_of(n)),
                     d9d_tensor_data(&n->saved[SAVED_MEAN]), d9d_tensor_data(&n->saved[SAVED_INV]),
                     d9di_op_rows(&x->shape), d9di_op_last_dim(&x->shape));
    return dx.storage != NULL ? d9di_op_grad_finish_sum(n, 0, &dx, st) : st;
}

D9DI_HALVES(layer_norm_bwd)

static const d9d_node_ops layer_norm_node_ops = {.name = "layer_norm",
                                                 .dgrad = layer_norm_bwd_dgrad,
                                                 .wgrad = layer_norm_bwd_wgrad,
                                                 .bwd = layer_norm_bwd_full};

static d9d_status layer_norm_check(const d9d_tensor *x, const d9d_param *p)
{
    if (p == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check_param("layer_norm", p, x->dtype));
    if (!d9d_shape_equal(&p->local.data.shape, &D9D_SHAPE(d9di_op_last_dim(&x->shape))))
        return d9di_op_misfit("layer_norm", "x", &x->shape, d9di_op_param_name(p),
                              &p->local.data.shape, "x is [..., N], a weight or bias [N]");
    return D9D_OK;
}

static d9d_status layer_norm_record(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_param *b,
                                    const d9d_tensor *mean, const d9d_tensor *inv, d9d_var *out)
{
    d9d_param *p[2];
    size_t n_p = 0;
    d9d_node *n;

    if (w != NULL)
        p[n_p++] = w;
    if (b != NULL)
        p[n_p++] = b;
    if (!d9d_tape_should_record(t, &x, 1, p, n_p))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &layer_norm_node_ops, &x, 1, &out, 1, p, n_p,
                            sizeof(layer_norm_attr), &n));
    *(layer_norm_attr *)n->attr = (layer_norm_attr){w != NULL, b != NULL};
    (void)d9d_node_save(n, d9d_var_tensor(x), D9D_NEED_BOTH);
    (void)d9d_node_save(n, mean, D9D_NEED_BOTH);
    (void)d9d_node_save(n, inv, D9D_NEED_BOTH);
    return D9D_OK;
}

d9d_status d9d_op_layer_norm(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_param *b, float eps,
                             d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_tensor mean = {0}, inv = {0};
    d9d_var *out;
    d9d_status st;
    int64_t m;

    D9D_TRY(d9di_op_check_real("layer_norm", "x", tx));
    if (tx->shape.ndim < 1)
        return D9D_FAIL(D9D_EINVAL, "layer_norm: x has no dimensions, it is [..., N]");
    D9D_TRY(layer_norm_check(tx, w));
    D9D_TRY(layer_norm_check(tx, b));
    m = d9di_op_rows(&tx->shape);
    D9D_TRY_OR(st, d9d_tape_output(t, tx->dtype, tx->shape, &out), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(m), &mean), out);
    D9D_TRY_OR(st, d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(m), &inv), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, norm->layer_norm, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                           d9d_tensor_data(&mean), d9d_tensor_data(&inv), d9d_tensor_data(tx),
                           data_of(w), data_of(b), m, d9di_op_last_dim(&tx->shape), eps),
               out);
    D9D_TRY_OR(st, layer_norm_record(t, x, w, b, &mean, &inv, out), out);
    *y = out;
out:
    d9d_tensor_release(&mean);
    d9d_tensor_release(&inv);
    return st;
}
