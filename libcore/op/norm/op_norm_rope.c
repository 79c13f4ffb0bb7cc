/* op_norm_rope.c - QK norm and RoPE fused: RMSNorm of each head, then the rotation; see
 * op_rms_norm.c and op_rope.c.
 *
 *     y = rotate(norm(x))        dx, dw = those of the norm at dy rotated back
 */
#include "op/norm/op_qk_heads.h"

typedef struct norm_rope_attr {
    d9d_op_norm_rope_opts opts;
} norm_rope_attr;

enum { SAVED_X, SAVED_INV, SAVED_POSITIONS, SAVED_INV_FREQ };

d9d_qk_norm_rope_dims d9di_op_norm_rope_dims(const d9d_tensor *x, const d9d_op_norm_rope_opts *opts,
                                             const d9d_tensor *positions,
                                             const d9d_tensor *inv_freq)
{
    return (d9d_qk_norm_rope_dims){
        .t = x->dtype,
        .m = x->shape.dim[0] * x->shape.dim[1],
        .heads = x->shape.dim[2],
        .d = x->shape.dim[3],
        .r = 2 * inv_freq->shape.dim[0],
        .eps = opts->eps,
        .mscale = opts->mscale,
        .zero_centred = opts->zero_centred,
        .interleaved = opts->style == D9D_ROPE_INTERLEAVED,
        .positions = d9d_tensor_data(positions),
        .inv_freq = d9d_tensor_data(inv_freq),
    };
}

/* The wanted halves, in one pass. */
static d9d_status norm_rope_bwd(d9d_node *n, unsigned halves)
{
    const norm_rope_attr *a = n->attr;
    const d9d_tensor *x = &n->saved[SAVED_X];
    const d9d_qk_norm_rope_dims dims =
        d9di_op_norm_rope_dims(x, &a->opts, &n->saved[SAVED_POSITIONS], &n->saved[SAVED_INV_FREQ]);
    const bool want_dw = (halves & D9D_NEED_WGRAD) != 0;
    d9d_param *w = n->param[0];
    d9d_tensor dx = {0};
    d9d_status st;

    if (halves & D9D_NEED_DGRAD)
        D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    st = D9DI_KERNEL(
        n->tape, norm->norm_rope_bwd, &dims, d9d_tensor_data(&dx),
        want_dw ? w->local.grad.dtype : D9D_F32, want_dw ? d9d_tensor_data(&w->local.grad) : NULL,
        want_dw ? d9d_param_grad_beta(&w->local) : 0.0f, d9d_tensor_data(&n->dout[0]),
        d9d_tensor_data(x), d9d_tensor_data(&w->local.data), d9d_tensor_data(&n->saved[SAVED_INV]));
    return dx.storage != NULL ? d9di_op_grad_finish(n, 0, &dx, st) : st;
}

D9DI_HALVES(norm_rope_bwd)

static const d9d_node_ops norm_rope_node_ops = {.name = "norm_rope",
                                                .dgrad = norm_rope_bwd_dgrad,
                                                .wgrad = norm_rope_bwd_wgrad,
                                                .bwd = norm_rope_bwd_full};

d9d_status d9di_op_norm_rope_check(const d9d_tensor *x, const d9d_param *w,
                                   const d9d_op_norm_rope_opts *opts)
{
    const d9d_tensor *positions = opts->positions, *inv_freq = opts->inv_freq;
    const d9d_shape *s = &x->shape, *p = &positions->shape, *f = &inv_freq->shape;

    D9D_TRY(d9di_op_check_real("norm_rope", "x", x));
    if (w != NULL)
        D9D_TRY(d9di_op_check_param("norm_rope", w, x->dtype));
    D9D_TRY(d9di_op_check("norm_rope", "positions", positions, D9D_I32));
    D9D_TRY(d9di_op_check("norm_rope", "inv_freq", inv_freq, D9D_F32));
    if (s->ndim != 4 || p->ndim != 2 || s->dim[0] != p->dim[0] || s->dim[1] != p->dim[1])
        return d9di_op_misfit("norm_rope", "positions", p, "x", s,
                              "x is [B, S, heads, D], positions are [B, S]");
    if (w != NULL && !d9d_shape_equal(&w->local.data.shape, &D9D_SHAPE(s->dim[3])))
        return d9di_op_misfit("norm_rope", "x", s, d9di_op_param_name(w), &w->local.data.shape,
                              "x is [B, S, heads, D], a weight [D]");
    if (f->ndim != 1 || f->dim[0] > s->dim[3] / 2)
        return d9di_op_misfit("norm_rope", "inv_freq", f, "x", s,
                              "x is [B, S, heads, D], frequencies are [R/2] with R at most D");
    return D9D_OK;
}

static d9d_status norm_rope_record(d9d_tape *t, d9d_var *x, d9d_param *w, const d9d_tensor *inv,
                                   const d9d_op_norm_rope_opts *opts, d9d_var *out)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, &x, 1, &w, 1))
        return D9D_OK;
    D9D_TRY(
        d9d_tape_record(t, &norm_rope_node_ops, &x, 1, &out, 1, &w, 1, sizeof(norm_rope_attr), &n));
    ((norm_rope_attr *)n->attr)->opts = *opts;
    (void)d9d_node_save(n, d9d_var_tensor(x), D9D_NEED_BOTH);
    (void)d9d_node_save(n, inv, D9D_NEED_BOTH);
    (void)d9d_node_save(n, opts->positions, D9D_NEED_BOTH);
    (void)d9d_node_save(n, opts->inv_freq, D9D_NEED_BOTH);
    return D9D_OK;
}

d9d_status d9d_op_norm_rope(d9d_tape *t, d9d_var *x, d9d_param *w,
                            const d9d_op_norm_rope_opts *opts, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_qk_norm_rope_dims dims;
    d9d_tensor inv = {0};
    d9d_var *out;
    d9d_status st;

    D9D_TRY(d9di_op_norm_rope_check(tx, w, opts));
    dims = d9di_op_norm_rope_dims(tx, opts, opts->positions, opts->inv_freq);
    D9D_TRY_OR(st, d9d_tape_output(t, tx->dtype, tx->shape, &out), out);
    D9D_TRY_OR(st,
               d9d_tensor_alloc(d9d_tape_device(t), D9D_F32, D9D_SHAPE(dims.m * dims.heads), &inv),
               out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(t, norm->norm_rope, &dims, d9d_tensor_data(d9d_var_tensor(out)),
                           d9d_tensor_data(&inv), d9d_tensor_data(tx),
                           d9d_tensor_data(&w->local.data)),
               out);
    D9D_TRY_OR(st, norm_rope_record(t, x, w, &inv, opts, out), out);
    *y = out;
out:
    d9d_tensor_release(&inv);
    return st;
}
