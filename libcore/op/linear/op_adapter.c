/* op_adapter.c - y = n_i / |V_i| * o * ((x * c) V^T) + b, V = W + scale B A: the adapters of LoRA,
 * DoRA and (IA)^3, or any of their parts (d9d/tape/param.h).
 *
 * V is never in memory.  A and B add to y in place, in the order x W^T, then (drop(x) A^T) B^T. All
 * factors of y are linear in it, so that a rank of tensor parallelism applies them to its part of a
 * sum.  The norms |V_i| are constants of backward, as in the paper of DoRA (section 4.3).
 */
#include "op/linear/op_adapter.h"

#include "d9d/op/math.h"

/* *y += scale * (drop(x) A^T) B^T, the rows `a` of B; in place. */
static d9d_status product_add(d9d_tape *t, d9d_var *x, const d9d_param_adapter *adapter,
                              const d9di_op_rows_of *a, d9d_var **y)
{
    d9d_param *down = adapter->param[D9D_ADAPTER_A], *up = adapter->param[D9D_ADAPTER_B];
    const d9d_op_dropout_opts dropout = {.p = adapter->dropout,
                                         .site = down,
                                         .first = down->local.offset[1],
                                         .width = down->spec.shape.dim[1]};
    d9d_var *in, *low;

    D9D_TRY(d9d_op_dropout(t, x, &dropout, &in));
    D9D_TRY(d9d_op_linear(t, in, down, &low));
    D9D_TRY(d9d_op_scale(t, low, adapter->scale, &low));
    D9D_TRY(d9di_op_linear_check(d9d_var_tensor(low), up));
    return d9di_op_linear_rows(t, low, up, &(d9di_op_rows_of){a->first, a->n, NULL}, NULL, *y, true,
                               y);
}

/* *y *= elements [first, first + n) of a parameter, for each row; NULL: 1. */
static d9d_status columns_scale(d9d_tape *t, d9d_param *p, int64_t first, int64_t n, d9d_var **y)
{
    d9d_var *factor;

    if (p == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_param(t, p, first, n, &factor));
    return d9d_op_mul(t, *y, factor, y);
}

/* *y *= n_i / |V_i|.  The norm is rounded as n is: at the beginning the factor is 1. */
static d9d_status magnitude_scale(d9d_tape *t, d9d_param *w, const d9di_op_rows_of *a, d9d_var **y)
{
    d9d_param *p = d9d_tape_adapter(t, w)->param[D9D_ADAPTER_MAGNITUDE];
    d9d_var *magnitude, *norm;
    d9d_tensor norms;
    d9d_status st;

    D9D_TRY(d9d_op_param(t, p, a->first, a->n, &magnitude));
    D9D_TRY(d9di_op_adapter_norms(t, w, a, &norms));
    st = d9d_tape_leaf(t, &norms, false, &norm);
    d9d_tensor_release(&norms);
    D9D_TRY(st);
    D9D_TRY(d9d_op_cast(t, norm, p->spec.dtype, &norm));
    D9D_TRY(d9d_op_div(t, magnitude, norm, &magnitude));
    return d9d_op_mul(t, *y, magnitude, y);
}

/* x W^T of an x that may not be the quantised one. */
static d9d_status base_run(d9d_tape *t, d9d_var *x, d9d_param *w, const d9di_op_rows_of *a,
                           const d9di_op_fp8_input *q, d9d_var *plus, d9d_var **y)
{
    d9di_op_fp8_input own;
    d9d_status st;

    if (q != NULL || w->fp8.recipe == NULL)
        return d9di_op_linear_rows(t, x, w, a, q, plus, false, y);
    D9D_TRY(d9di_op_fp8_input_make(t, d9d_var_tensor(x), &w, 1, &own));
    st = d9di_op_linear_rows(t, x, w, a, &own, plus, false, y);
    d9di_op_fp8_input_release(&own);
    return st;
}

d9d_status d9di_op_linear_adapted(d9d_tape *t, d9d_var *x, d9d_param *w, const d9di_op_rows_of *a,
                                  const d9di_op_fp8_input *q, d9d_var *plus, d9d_var **y)
{
    static const d9d_param_adapter none = {0};
    const d9d_param_adapter *applied = d9d_tape_adapter(t, w),
                            *ad = applied != NULL ? applied : &none;
    const bool normed = ad->param[D9D_ADAPTER_MAGNITUDE] != NULL;
    const bool scaled = normed || ad->param[D9D_ADAPTER_OUTPUT] != NULL;
    d9di_op_rows_of base = *a;
    d9d_var *in = x;

    if (normed)
        base.bias = NULL;
    D9D_TRY(
        columns_scale(t, ad->param[D9D_ADAPTER_INPUT], 0, d9di_op_weight_shape(w)->dim[1], &in));
    D9D_TRY(base_run(t, in, w, &base, in == x && w->fp8.recipe != NULL ? q : NULL,
                     scaled ? NULL : plus, y));
    if (ad->param[D9D_ADAPTER_A] != NULL)
        D9D_TRY(product_add(t, in, ad, a, y));
    if (normed)
        D9D_TRY(magnitude_scale(t, w, a, y));
    if (normed && a->bias != NULL)
        D9D_TRY(d9d_op_add_bias(t, *y, a->bias, a->first, y));
    D9D_TRY(columns_scale(t, ad->param[D9D_ADAPTER_OUTPUT], a->first, a->n, y));
    return scaled && plus != NULL ? d9d_op_add(t, plus, *y, y) : D9D_OK;
}
