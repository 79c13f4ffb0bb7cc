/* op_rope.c - rotary position embedding.  x [B, S, heads, D], positions [B, S], inv_freq [R/2].
 *
 * A pair (u, v) of features is rotated by a = position * inv_freq:
 *
 *     u' = m (u cos a - v sin a)        v' = m (v cos a + u sin a)
 *
 * The gradient is rotated back by the same angle, with the same factor m.
 */
#include "op/op_common.h"

typedef struct rope_attr {
    d9d_op_rope_style style;
    float mscale;
} rope_attr;

enum { SAVED_POSITIONS, SAVED_INV_FREQ };

static d9d_status rope_rotate(d9d_tape *t, const d9d_tensor *y, const d9d_tensor *x,
                              const d9d_tensor *positions, const d9d_tensor *inv_freq,
                              const rope_attr *attr, float sign)
{
    return D9DI_KERNEL(
        t, norm->rope, x->dtype, d9d_tensor_data(y), d9d_tensor_data(x), d9d_tensor_data(positions),
        d9d_tensor_data(inv_freq), d9d_tensor_numel(positions), x->shape.dim[2], x->shape.dim[3],
        2 * inv_freq->shape.dim[0], attr->style == D9D_ROPE_INTERLEAVED, attr->mscale, sign);
}

static d9d_status rope_dgrad(d9d_node *n)
{
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(n, 0, &dx,
                               rope_rotate(n->tape, &dx, &n->dout[0], &n->saved[SAVED_POSITIONS],
                                           &n->saved[SAVED_INV_FREQ], n->attr, -1.0f));
}

static const d9d_node_ops rope_node_ops = {.name = "rope", .dgrad = rope_dgrad};

static d9d_status rope_check(const d9d_tensor *x, const d9d_tensor *positions,
                             const d9d_tensor *inv_freq)
{
    const d9d_shape *s = &x->shape, *p = &positions->shape, *f = &inv_freq->shape;

    D9D_TRY(d9di_op_check_real("rope", "x", x));
    D9D_TRY(d9di_op_check("rope", "positions", positions, D9D_I32));
    D9D_TRY(d9di_op_check("rope", "inv_freq", inv_freq, D9D_F32));
    if (s->ndim != 4 || p->ndim != 2 || s->dim[0] != p->dim[0] || s->dim[1] != p->dim[1])
        return d9di_op_misfit("rope", "positions", p, "x", s,
                              "x is [B, S, heads, D], positions are [B, S]");
    if (f->ndim != 1 || f->dim[0] > s->dim[3] / 2)
        return d9di_op_misfit("rope", "inv_freq", f, "x", s,
                              "x is [B, S, heads, D], frequencies are [R/2] with R at most D");
    return D9D_OK;
}

d9d_status d9d_op_rope(d9d_tape *t, d9d_var *x, const d9d_tensor *positions,
                       const d9d_tensor *inv_freq, d9d_op_rope_style style, float mscale,
                       d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const rope_attr attr = {style, mscale};
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(rope_check(tx, positions, inv_freq));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(rope_rotate(t, d9d_var_tensor(out), tx, positions, inv_freq, &attr, 1.0f));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &rope_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(attr), &n));
        *(rope_attr *)n->attr = attr;
        (void)d9d_node_save(n, positions, D9D_NEED_DGRAD);
        (void)d9d_node_save(n, inv_freq, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
