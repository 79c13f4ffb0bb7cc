/* op_causal_conv1d.c - depthwise causal convolution over the last W tokens of a document, then
 * SiLU. x y [B, S, N], w [N, W].
 */
#include "op/attention/op_documents.h"

/* Saved; segments, if any, follow: attr points into them. */
enum { X };

typedef struct conv1d_attr {
    d9d_causal_conv1d_dims dims;
} conv1d_attr;

/* The wanted halves, in one pass. */
static d9d_status conv1d_bwd(d9d_node *n, unsigned halves)
{
    const d9d_causal_conv1d_dims *dims = &((const conv1d_attr *)n->attr)->dims;
    const bool want_dw = (halves & D9D_NEED_WGRAD) != 0;
    d9d_param *w = n->param[0];
    d9d_tensor dx = {0};
    d9d_status st;

    if (halves & D9D_NEED_DGRAD)
        D9D_TRY(d9di_op_grad_alloc(n, X, &dx));
    st = D9DI_KERNEL(n->tape, gdn->causal_conv1d_bwd, dims, d9d_tensor_data(&dx),
                     want_dw ? w->local.grad.dtype : D9D_F32,
                     want_dw ? d9d_tensor_data(&w->local.grad) : NULL,
                     want_dw ? d9d_param_grad_beta(&w->local) : 0.0f, d9d_tensor_data(&n->dout[0]),
                     d9d_tensor_data(&n->saved[X]), d9d_tensor_data(&w->local.data));
    return dx.storage != NULL ? d9di_op_grad_finish(n, X, &dx, st) : st;
}

D9DI_HALVES(conv1d_bwd)

static const d9d_node_ops conv1d_node_ops = {.name = "causal_conv1d",
                                             .dgrad = conv1d_bwd_dgrad,
                                             .wgrad = conv1d_bwd_wgrad,
                                             .bwd = conv1d_bwd_full};

static d9d_status conv1d_check(const d9d_tensor *x, const d9d_param *w, const d9d_tensor *segments)
{
    const d9d_shape *s = &w->local.data.shape;

    D9D_TRY(d9di_op_check_real("causal_conv1d", "x", x));
    D9D_TRY(d9di_op_check_param("causal_conv1d", w, x->dtype));
    if (x->shape.ndim != 3 || s->ndim != 2 || s->dim[0] != x->shape.dim[2])
        return d9di_op_misfit("causal_conv1d", "x", &x->shape, d9di_op_param_name(w), s,
                              "x is [B, S, N], a weight [N, W]");
    if (s->dim[1] < 1 || s->dim[1] > D9D_CAUSAL_CONV1D_MAX_WIDTH)
        return D9D_FAIL(D9D_EINVAL,
                        "causal_conv1d: %s has a kernel size of %lld, from 1 to %d are supported",
                        d9di_op_param_name(w), (long long)s->dim[1], D9D_CAUSAL_CONV1D_MAX_WIDTH);
    return d9di_op_documents_check_segments("causal_conv1d", x, segments);
}

static d9d_status conv1d_run(d9d_tape *t, const d9d_causal_conv1d_dims *n,
                             const d9d_op_state_cache *cache, void *y, const void *x, const void *w)
{
    d9d_causal_conv1d_array one;

    if (cache == NULL)
        return D9DI_KERNEL(t, gdn->causal_conv1d, n, y, x, w);
    one = (d9d_causal_conv1d_array){n->n, d9di_op_state_slots(cache), y, x, w};
    return D9DI_KERNEL(t, gdn->causal_conv1d_update, n, 1, &one);
}

d9d_status d9d_op_causal_conv1d(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_tensor *segments,
                                const d9d_op_state_cache *cache, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_causal_conv1d_dims dims;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(conv1d_check(tx, w, segments));
    dims = (d9d_causal_conv1d_dims){tx->dtype, d9di_op_documents(tx, segments), tx->shape.dim[2],
                                    w->local.data.shape.dim[1]};
    D9D_TRY(d9di_op_documents_check_state("causal_conv1d", segments, cache, tx->dtype,
                                          D9D_SHAPE(dims.w - 1, dims.n),
                                          d9d_tape_should_record(t, &x, 1, &w, 1)));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(conv1d_run(t, &dims, cache, d9d_tensor_data(d9d_var_tensor(out)), d9d_tensor_data(tx),
                       d9d_tensor_data(&w->local.data)));
    if (d9d_tape_should_record(t, &x, 1, &w, 1)) {
        D9D_TRY(
            d9d_tape_record(t, &conv1d_node_ops, &x, 1, &out, 1, &w, 1, sizeof(conv1d_attr), &n));
        ((conv1d_attr *)n->attr)->dims = dims;
        (void)d9d_node_save(n, tx, D9D_NEED_BOTH);
        if (segments != NULL)
            (void)d9d_node_save(n, segments, D9D_NEED_BOTH);
    }
    *y = out;
    return D9D_OK;
}

/* Those of a cache, of one kernel size and type, in one kernel. */
static d9d_status multi_run(d9d_tape *t, const d9d_op_causal_conv1d_args *of, size_t n,
                            const d9d_tensor *segments, d9d_var **y)
{
    d9d_causal_conv1d_array list[D9D_OP_CAUSAL_CONV1D_MAX];
    const d9d_tensor *x = d9d_var_tensor(of[0].x);
    const d9d_causal_conv1d_dims dims = {x->dtype, d9di_op_documents(x, segments), 0,
                                         of[0].w->local.data.shape.dim[1]};

    for (size_t i = 0; i < n; i++) {
        const d9d_tensor *tx = d9d_var_tensor(of[i].x);

        D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &y[i]));
        list[i] =
            (d9d_causal_conv1d_array){tx->shape.dim[2], d9di_op_state_slots(of[i].cache),
                                      d9d_tensor_data(d9d_var_tensor(y[i])), d9d_tensor_data(tx),
                                      d9d_tensor_data(&of[i].w->local.data)};
    }
    return D9DI_KERNEL(t, gdn->causal_conv1d_update, &dims, (int)n, list);
}

d9d_status d9d_op_causal_conv1d_multi(d9d_tape *t, const d9d_op_causal_conv1d_args *of, size_t n,
                                      const d9d_tensor *segments, d9d_var **y)
{
    bool alike = n > 0 && n <= D9D_OP_CAUSAL_CONV1D_MAX;

    for (size_t i = 0; i < n; i++) {
        const d9d_tensor *x = d9d_var_tensor(of[i].x), *first = d9d_var_tensor(of[0].x);
        const d9d_shape *w = &of[i].w->local.data.shape;

        D9D_TRY(conv1d_check(x, of[i].w, segments));
        D9D_TRY(d9di_op_documents_check_state("causal_conv1d", segments, of[i].cache, x->dtype,
                                              D9D_SHAPE(w->dim[1] - 1, w->dim[0]),
                                              d9d_tape_should_record(t, &of[i].x, 1, &of[i].w, 1)));
        alike = alike && of[i].cache != NULL && x->dtype == first->dtype &&
                x->shape.dim[0] == first->shape.dim[0] && x->shape.dim[1] == first->shape.dim[1] &&
                w->dim[1] == of[0].w->local.data.shape.dim[1];
    }
    if (alike)
        return multi_run(t, of, n, segments, y);
    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9d_op_causal_conv1d(t, of[i].x, of[i].w, segments, of[i].cache, &y[i]));
    return D9D_OK;
}
