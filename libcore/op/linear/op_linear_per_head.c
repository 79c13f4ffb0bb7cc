/* op_linear_per_head.c - per-head GEMM: each head times a matrix of its own, for generation with
 * MLA. x [B, S, n, X], y [B, S, n, out + extra], w [n step, wide].
 */
#include "op/op_common.h"

d9d_status d9d_op_linear_per_head(d9d_tape *t, d9d_var *x, d9d_param *w,
                                  const d9d_op_linear_per_head_opts *opts, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9d_shape *s = &tx->shape, *m = &w->local.data.shape;
    const int64_t in = opts->in != 0 ? opts->in : s->dim[3],
                  rows = opts->transposed ? opts->out : in, y_cols = opts->out + opts->extra;
    d9d_gemm_per_head_dims n;
    d9d_var *out;

    D9D_TRY(d9di_op_check_real("linear_per_head", "x", tx));
    D9D_TRY(d9di_op_check_param("linear_per_head", w, tx->dtype));
    if (s->ndim != 4 || m->ndim != 2 || m->dim[0] != s->dim[2] * opts->step ||
        m->dim[1] != (opts->transposed ? in : opts->out) || opts->first < 0 || in < 0 ||
        in > s->dim[3] || opts->extra < 0 || opts->first + rows > opts->step)
        return d9di_op_misfit(
            "linear_per_head", "x", s, d9di_op_param_name(w), m,
            "x is [B, S, n, in], a weight [n step, out], or [n step, in] transposed");
    if (w->peft.adapter != NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "linear_per_head: %s has an adapter, which must be merged before",
                        d9di_op_param_name(w));
    if (d9d_tape_should_record(t, &x, 1, &w, 1))
        return D9D_FAIL(D9D_EINVAL, "linear_per_head: has no backward");
    n = (d9d_gemm_per_head_dims){.t = tx->dtype,
                                 .m = s->dim[0] * s->dim[1],
                                 .heads = s->dim[2],
                                 .in = in,
                                 .out = opts->out,
                                 .w_head_rows = opts->step,
                                 .w_first = opts->first,
                                 .trans_w = opts->transposed,
                                 .x_cols = s->dim[3],
                                 .y_cols = y_cols};
    D9D_TRY(
        d9d_tape_output(t, tx->dtype, D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2], y_cols), &out));
    D9D_TRY(D9DI_KERNEL(t, gemm->per_head, &n, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(&w->local.data)));
    *y = out;
    return D9D_OK;
}
