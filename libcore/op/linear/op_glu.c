/* op_glu.c - gated linear unit: y = act(gate) * up, or y = act(gate) without up, elementwise.
 *
 *     dup = dy act(gate)        dgate = dy up act'(gate)
 */
#include "op/op_common.h"

enum { GATE, UP }; /* inputs and saved */

static d9d_status glu_bwd(d9d_node *n)
{
    const d9d_tensor *gate = &n->saved[GATE];
    const bool gated = n->n_in > UP;
    d9d_tensor dgate = {0}, dup = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_grad_alloc(n, GATE, &dgate), out);
    if (gated)
        D9D_TRY_OR(st, d9di_op_grad_alloc(n, UP, &dup), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, elementwise->glu_bwd, n->attr, gate->dtype,
                           d9d_tensor_data(&dgate), gated ? d9d_tensor_data(&dup) : NULL,
                           d9d_tensor_data(&n->dout[0]), d9d_tensor_data(gate),
                           gated ? d9d_tensor_data(&n->saved[UP]) : NULL, d9d_tensor_numel(gate)),
               out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, GATE, &dgate), out);
    st = gated ? d9d_node_accumulate_grad(n, UP, &dup) : D9D_OK;
out:
    d9d_tensor_release(&dgate);
    d9d_tensor_release(&dup);
    return st;
}

static const d9d_node_ops glu_node_ops = {.name = "glu", .dgrad = glu_bwd};

static d9d_status glu_record(d9d_tape *t, const d9d_glu *f, d9d_var *const *in, size_t n_in,
                             d9d_var *y)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, n_in, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &glu_node_ops, in, n_in, &y, 1, NULL, 0, sizeof(*f), &n));
    *(d9d_glu *)n->attr = *f;
    for (size_t i = 0; i < n_in; i++)
        (void)d9d_node_save(n, d9d_var_tensor(in[i]), D9D_NEED_DGRAD);
    return D9D_OK;
}

d9d_status d9d_op_glu(d9d_tape *t, const d9d_glu *f, d9d_var *gate, d9d_var *up, d9d_var **y)
{
    const d9d_tensor *tg = d9d_var_tensor(gate), *tu = up != NULL ? d9d_var_tensor(up) : NULL;
    d9d_var *const in[] = {gate, up};
    d9d_var *out;

    D9D_TRY(d9di_op_check_real("glu", "gate", tg));
    if (up != NULL) {
        D9D_TRY(d9di_op_check("glu", "up", tu, tg->dtype));
        D9D_TRY(d9di_op_check_same("glu", "gate", tg, "up", tu));
    }
    D9D_TRY(d9d_tape_output(t, tg->dtype, tg->shape, &out));
    D9D_TRY(D9DI_KERNEL(t, elementwise->glu, f, tg->dtype, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tg), up != NULL ? d9d_tensor_data(tu) : NULL,
                        d9d_tensor_numel(tg)));
    D9D_TRY(glu_record(t, f, in, up != NULL ? 2 : 1, out));
    *y = out;
    return D9D_OK;
}
