/* op_swiglu.c - SwiGLU: y = silu(gate) * up, elementwise; s = sigmoid(gate), silu(g) = g s.
 *
 *     dup = dy g s        dgate = dy up s (1 + g (1 - s))
 */
#include "op/op_common.h"

enum { GATE, UP }; /* inputs and saved */

static d9d_status swiglu_bwd(d9d_node *n)
{
    const d9d_tensor *gate = &n->saved[GATE], *up = &n->saved[UP];
    d9d_tensor dgate = {0}, dup = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_grad_alloc(n, GATE, &dgate), out);
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, UP, &dup), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, elementwise->swiglu_bwd, gate->dtype, d9d_tensor_data(&dgate),
                           d9d_tensor_data(&dup), d9d_tensor_data(&n->dout[0]),
                           d9d_tensor_data(gate), d9d_tensor_data(up), d9d_tensor_numel(gate)),
               out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, GATE, &dgate), out);
    st = d9d_node_accumulate_grad(n, UP, &dup);
out:
    d9d_tensor_release(&dgate);
    d9d_tensor_release(&dup);
    return st;
}

static const d9d_node_ops swiglu_node_ops = {.name = "swiglu", .dgrad = swiglu_bwd};

d9d_status d9d_op_swiglu(d9d_tape *t, d9d_var *gate, d9d_var *up, d9d_var **y)
{
    const d9d_tensor *tg = d9d_var_tensor(gate), *tu = d9d_var_tensor(up);
    d9d_var *in[] = {gate, up}, *out;
    d9d_node *n;

    D9D_TRY(d9di_op_check_real("swiglu", "gate", tg));
    D9D_TRY(d9di_op_check("swiglu", "up", tu, tg->dtype));
    D9D_TRY(d9di_op_check_same("swiglu", "gate", tg, "up", tu));
    D9D_TRY(d9d_tape_output(t, tg->dtype, tg->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->swiglu, tg->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tg), d9d_tensor_data(tu), d9d_tensor_numel(tg)));
    if (d9d_tape_should_record(t, in, 2, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &swiglu_node_ops, in, 2, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, tg, D9D_NEED_DGRAD);
        (void)d9d_node_save(n, tu, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
