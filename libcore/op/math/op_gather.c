/* op_gather.c - y[i, j] = x[i, index[i, j]].  x [M, N], index and y [M, K].
 *
 *     dx[i, index[i, j]] = dy[i, j], summed over equal indices; 0 elsewhere
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

static d9d_status gather_dgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];
    const d9d_shape *x = &d9di_op_input(n, 0)->shape;
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(n, 0, &dx,
                               D9DI_KERNEL(n->tape, math->gather_bwd, dy->dtype,
                                           d9d_tensor_data(&dx), d9d_tensor_data(dy),
                                           d9d_tensor_data(&n->saved[0]), d9di_op_rows(x),
                                           d9di_op_last_dim(x), d9di_op_last_dim(&dy->shape)));
}

static const d9d_node_ops gather_node_ops = {.name = "gather", .dgrad = gather_dgrad};

static d9d_status gather_check(const d9d_tensor *x, const d9d_tensor *index)
{
    d9d_shape fits = x->shape;

    D9D_TRY(d9di_op_check_real("gather", "x", x));
    D9D_TRY(d9di_op_check("gather", "index", index, D9D_I32));
    if (fits.ndim > 0 && index->shape.ndim == fits.ndim)
        fits.dim[fits.ndim - 1] = d9di_op_last_dim(&index->shape);
    if (fits.ndim == 0 || !d9d_shape_equal(&fits, &index->shape))
        return d9di_op_misfit("gather", "index", &index->shape, "x", &x->shape,
                              "x is [..., N], the index [..., K]");
    return D9D_OK;
}

d9d_status d9d_op_gather(d9d_tape *t, d9d_var *x, const d9d_tensor *index, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(gather_check(tx, index));
    D9D_TRY(d9d_tape_output(t, tx->dtype, index->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, math->gather, tx->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(index), d9di_op_rows(&tx->shape),
                        d9di_op_last_dim(&tx->shape), d9di_op_last_dim(&index->shape)));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &gather_node_ops, &x, 1, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, index, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
