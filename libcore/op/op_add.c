/* op_add.c - elementwise sum y = a + b (residual).  Both gradients are dy itself.  Operands of
 * other shapes or types broadcast: op/math/op_pointwise.c.
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

static d9d_status add_dgrad(d9d_node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        d9d_tensor dy = d9d_tensor_ref(&n->dout[0]);

        D9D_TRY(d9d_node_accumulate_grad(n, i, &dy));
    }
    return D9D_OK;
}

static const d9d_node_ops add_node_ops = {.name = "add", .dgrad = add_dgrad};

d9d_status d9d_op_add(d9d_tape *t, d9d_var *a, d9d_var *b, d9d_var **y)
{
    const d9d_tensor *ta = d9d_var_tensor(a), *tb = d9d_var_tensor(b);
    const void *const both[] = {d9d_tensor_data(ta), d9d_tensor_data(tb)};
    d9d_var *in[] = {a, b}, *out;
    d9d_node *n;

    if (!d9d_shape_equal(&ta->shape, &tb->shape) || ta->dtype != tb->dtype)
        return d9d_op_pointwise(t, D9D_POINTWISE_ADD, in, 0, 0, y);
    D9D_TRY(d9di_op_check_real("add", "a", ta));
    D9D_TRY(d9di_op_check("add", "b", tb, ta->dtype));
    D9D_TRY(d9d_tape_output(t, ta->dtype, ta->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->add, ta->dtype, d9d_tensor_data(d9d_var_tensor(out)), both,
                        2, d9d_tensor_numel(ta)));
    if (d9d_tape_should_record(t, in, 2, NULL, 0))
        D9D_TRY(d9d_tape_record(t, &add_node_ops, in, 2, &out, 1, NULL, 0, 0, &n));
    *y = out;
    return D9D_OK;
}
