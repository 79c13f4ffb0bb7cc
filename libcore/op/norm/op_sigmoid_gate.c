/* op_sigmoid_gate.c - y = x * sigmoid(gate), one gate for each row.  x [M, N], gate [M, 1];
 * elementwise gates are the case of M N rows of one element.
 *
 *     dx = dy s        dgate = s (1 - s) * sum over the row of dy x
 */
#include "op/op_common.h"

enum { X, GATE }; /* inputs and saved */

/* Elements that share a gate. */
static int64_t gate_width(const d9d_tensor *x, const d9d_tensor *gate)
{
    return d9di_op_last_dim(&gate->shape) == 1 ? d9di_op_last_dim(&x->shape) : 1;
}

static d9d_status sigmoid_gate_bwd(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[X], *gate = &n->saved[GATE];
    d9d_tensor dx = {0}, dgate = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_grad_alloc(n, X, &dx), out);
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, GATE, &dgate), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, elementwise->sigmoid_gate_bwd, x->dtype, d9d_tensor_data(&dx),
                           d9d_tensor_data(&dgate), d9d_tensor_data(&n->dout[0]),
                           d9d_tensor_data(x), d9d_tensor_data(gate), d9d_tensor_numel(gate),
                           gate_width(x, gate)),
               out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, X, &dx), out);
    st = d9d_node_accumulate_grad(n, GATE, &dgate);
out:
    d9d_tensor_release(&dx);
    d9d_tensor_release(&dgate);
    return st;
}

static const d9d_node_ops sigmoid_gate_node_ops = {.name = "sigmoid_gate",
                                                   .dgrad = sigmoid_gate_bwd};

static d9d_status sigmoid_gate_check(const d9d_tensor *x, const d9d_tensor *gate)
{
    d9d_shape rows = x->shape;

    D9D_TRY(d9di_op_check_real("sigmoid_gate", "x", x));
    D9D_TRY(d9di_op_check("sigmoid_gate", "gate", gate, x->dtype));
    if (rows.ndim > 0)
        rows.dim[rows.ndim - 1] = 1;
    if (rows.ndim == 0 ||
        (!d9d_shape_equal(&rows, &gate->shape) && !d9d_shape_equal(&x->shape, &gate->shape)))
        return d9di_op_misfit("sigmoid_gate", "gate", &gate->shape, "x", &x->shape,
                              "x is [..., H], a gate [..., 1] or as x");
    return D9D_OK;
}

d9d_status d9d_op_sigmoid_gate(d9d_tape *t, d9d_var *x, d9d_var *gate, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x), *tg = d9d_var_tensor(gate);
    d9d_var *in[] = {x, gate}, *out;
    d9d_node *n;

    D9D_TRY(sigmoid_gate_check(tx, tg));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->sigmoid_gate, tx->dtype,
                        d9d_tensor_data(d9d_var_tensor(out)), d9d_tensor_data(tx),
                        d9d_tensor_data(tg), d9d_tensor_numel(tg), gate_width(tx, tg)));
    if (d9d_tape_should_record(t, in, 2, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &sigmoid_gate_node_ops, in, 2, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, tx, D9D_NEED_DGRAD);
        (void)d9d_node_save(n, tg, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
