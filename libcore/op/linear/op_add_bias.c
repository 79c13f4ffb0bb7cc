/* op_add_bias.c - y = x + b for each row.  x [M, N], b is N elements of a parameter, or [E, N] with
 * a row for each expert.
 *
 *     dx = dy        db = sum of the rows of dy, of those of each expert
 *
 * The sum of all rows is a product with ones: GEMM is fast on every device and sums in one fixed
 * order.
 */
#include "op/linear/op_gemm.h"

enum { SAVED_OFFSET }; /* of experts */

typedef struct bias_attr {
    int64_t first;
} bias_attr;

static d9d_status ones_alloc(d9d_tape *t, d9d_dtype type, int64_t n, d9d_tensor *out)
{
    d9d_tensor ones;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), type, D9D_SHAPE(n), &ones));
    st = D9DI_KERNEL(t, elementwise->fill, type, d9d_tensor_data(&ones), n, 1.0f);
    if (st == D9D_OK)
        *out = ones;
    else
        d9d_tensor_release(&ones);
    return st;
}

static d9d_status add_bias_dgrad(d9d_node *n)
{
    d9d_tensor dy = d9d_tensor_ref(&n->dout[0]);

    return d9d_node_accumulate_grad(n, 0, &dy);
}

static d9d_status grouped_wgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    d9d_param *b = n->param[0];
    const int64_t *d = b->local.data.shape.dim;

    return D9DI_KERNEL(n->tape, gemm->grouped_bias_wgrad, dy->dtype, b->local.grad.dtype,
                       d9d_tensor_data(&b->local.grad), d9d_param_grad_beta(&b->local),
                       d9d_tensor_data(dy), d9d_tensor_data(&n->saved[SAVED_OFFSET]),
                       dy->shape.dim[0], d[0], d[1]);
}

static d9d_status add_bias_wgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    const int64_t first = ((const bias_attr *)n->attr)->first,
                  end = first + d9di_op_last_dim(&dy->shape);
    d9d_param *b = n->param[0];
    const d9d_gemm g = {.t = dy->dtype,
                        .ct = b->local.grad.dtype,
                        .m = 1,
                        .n = end - first,
                        .k = d9di_op_rows(&dy->shape),
                        .beta = d9d_param_grad_beta(&b->local)};
    const int64_t all = b->local.data.shape.dim[0];
    d9d_tensor ones;
    d9d_status st;

    if (g.beta == 0.0f && g.n < all) /* elements without a gradient */
        D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, g.ct, d9d_tensor_data(&b->local.grad), all,
                            0.0f));
    D9D_TRY(ones_alloc(n->tape, g.t, g.k, &ones));
    st = D9DI_KERNEL(n->tape, gemm->dense, &g, d9d_tensor_data(&ones), d9d_tensor_data(dy),
                     d9di_op_element_ptr(&b->local.grad, first));
    d9d_tensor_release(&ones);
    return st;
}

static const d9d_node_ops add_bias_node_ops = {
    .name = "add_bias", .dgrad = add_bias_dgrad, .wgrad = add_bias_wgrad};
static const d9d_node_ops grouped_node_ops = {
    .name = "add_bias", .dgrad = add_bias_dgrad, .wgrad = grouped_wgrad};

d9d_status d9di_op_bias_check(const char *op, const char *name, d9d_dtype t, const d9d_shape *x,
                              const d9d_param *b, int64_t first)
{
    D9D_TRY(d9di_op_check_param(op, b, t));
    if (x->ndim < 1 || b->local.data.shape.ndim != 1 || first < 0 ||
        first > b->local.data.shape.dim[0] - d9di_op_last_dim(x))
        return d9di_op_misfit(op, name, x, d9di_op_param_name(b), &b->local.data.shape,
                              "x is [..., N], a bias has N elements from where it is read");
    return D9D_OK;
}

d9d_status d9d_op_add_bias(d9d_tape *t, d9d_var *x, d9d_param *b, int64_t first, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9di_op_check_real("add_bias", "x", tx));
    D9D_TRY(d9di_op_bias_check("add_bias", "x", tx->dtype, &tx->shape, b, first));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->add_bias, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9di_op_element_ptr(&b->local.data, first), NULL,
                        d9di_op_rows(&tx->shape), 1, d9di_op_last_dim(&tx->shape)));
    if (d9d_tape_should_record(t, &x, 1, &b, 1)) {
        D9D_TRY(
            d9d_tape_record(t, &add_bias_node_ops, &x, 1, &out, 1, &b, 1, sizeof(bias_attr), &n));
        ((bias_attr *)n->attr)->first = first;
    }
    *y = out;
    return D9D_OK;
}

/* --- biases of fused ops, added in place ----------------------------------------------------- */

d9d_status d9di_op_bias_record(d9d_tape *t, d9d_var **y, d9d_param *b, int64_t first,
                               const d9d_routing *r)
{
    d9d_tensor biased = d9d_tensor_ref(d9d_var_tensor(*y));
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9d_tape_output_take(t, &biased, &out));
    if (d9d_tape_should_record(t, y, 1, &b, 1)) {
        D9D_TRY(d9d_tape_record(t, r != NULL ? &grouped_node_ops : &add_bias_node_ops, y, 1, &out,
                                1, &b, 1, sizeof(bias_attr), &n));
        ((bias_attr *)n->attr)->first = first;
        if (r != NULL)
            (void)d9d_node_save(n, &r->offset, D9D_NEED_WGRAD);
    }
    *y = out;
    return D9D_OK;
}

d9d_status d9di_op_bias_add(d9d_tape *t, d9d_var **y, d9d_param *b, int64_t first,
                            const d9d_routing *r)
{
    const d9d_tensor *x = d9d_var_tensor(*y);
    void *data = d9d_tensor_data(x);

    D9D_TRY(D9DI_KERNEL(t, elementwise->add_bias, x->dtype, data, data,
                        d9di_op_element_ptr(&b->local.data, first),
                        r != NULL ? d9d_tensor_data(&r->offset) : NULL, d9di_op_rows(&x->shape),
                        r != NULL ? b->local.data.shape.dim[0] : 1, d9di_op_last_dim(&x->shape)));
    return d9di_op_bias_record(t, y, b, first, r);
}
