/* op_scale.c - y = s x, and y = a + s b.
 *
 *     dx = db = s dy        da = dy
 */
#include "op/op_common.h"

typedef struct scale_attr {
    float factor;
} scale_attr;

/* factor x, plus `plus` unless that is NULL. */
static d9d_status axpy_run(d9d_tape *t, float factor, const d9d_tensor *x, const d9d_tensor *plus,
                           const d9d_tensor *y)
{
    return D9DI_KERNEL(t, elementwise->axpy, x->dtype, d9d_tensor_data(y), factor,
                       d9d_tensor_data(x), plus != NULL ? d9d_tensor_data(plus) : NULL,
                       d9d_tensor_numel(x));
}

/* Of the input that is multiplied, the first. */
static d9d_status scale_dgrad(d9d_node *n)
{
    d9d_tensor dx;

    if (!d9d_node_input_needs_grad(n, 0))
        return D9D_OK;
    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(
        n, 0, &dx,
        axpy_run(n->tape, ((const scale_attr *)n->attr)->factor, &n->dout[0], NULL, &dx));
}

static d9d_status add_scaled_dgrad(d9d_node *n)
{
    d9d_tensor dy = d9d_tensor_ref(&n->dout[0]);

    D9D_TRY(d9d_node_accumulate_grad(n, 1, &dy));
    return scale_dgrad(n);
}

static const d9d_node_ops scale_node_ops = {.name = "scale", .dgrad = scale_dgrad};
static const d9d_node_ops add_scaled_node_ops = {.name = "add_scaled", .dgrad = add_scaled_dgrad};

/* in: x, and what is added, if anything. */
static d9d_status scale_run(d9d_tape *t, const d9d_node_ops *ops, d9d_var *const *in, size_t n_in,
                            float factor, d9d_var **y)
{
    const d9d_tensor *x = d9d_var_tensor(in[0]);
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(d9d_tape_output(t, x->dtype, x->shape, &out));
    D9D_TRY(axpy_run(t, factor, x, n_in > 1 ? d9d_var_tensor(in[1]) : NULL, d9d_var_tensor(out)));
    if (d9d_tape_should_record(t, in, n_in, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, ops, in, n_in, &out, 1, NULL, 0, sizeof(scale_attr), &n));
        ((scale_attr *)n->attr)->factor = factor;
    }
    *y = out;
    return D9D_OK;
}

d9d_status d9d_op_scale(d9d_tape *t, d9d_var *x, float s, d9d_var **y)
{
    D9D_TRY(d9di_op_check_real("scale", "x", d9d_var_tensor(x)));
    if (s != 1.0f)
        return scale_run(t, &scale_node_ops, &x, 1, s, y);
    *y = x;
    return D9D_OK;
}

d9d_status d9d_op_add_scaled(d9d_tape *t, d9d_var *a, float s, d9d_var *b, d9d_var **y)
{
    const d9d_tensor *ta = d9d_var_tensor(a), *tb = d9d_var_tensor(b);
    d9d_var *const in[] = {b, a};

    D9D_TRY(d9di_op_check_real("add_scaled", "a", ta));
    D9D_TRY(d9di_op_check("add_scaled", "b", tb, ta->dtype));
    D9D_TRY(d9di_op_check_same("add_scaled", "a", ta, "b", tb));
    return scale_run(t, &add_scaled_node_ops, in, 2, s, y);
}
