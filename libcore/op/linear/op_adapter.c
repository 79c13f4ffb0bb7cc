/* op_adapter.c - y = x W^T of a matrix with an adapter: calls the forward of its kind
 * (d9d/op/adapter_forward.h), and has that of the roles of d9d/tape/param.h,
 *
 *     y = n_i / |V_i| * o * ((x * c) V^T) + b, V = W + scale B A
 *
 * of LoRA, DoRA and (IA)^3, or any of their parts.
 *
 * V is never in memory.  A and B add to y in place, in the order x W^T, then (drop(x) A^T) B^T. All
 * factors of y are linear in it, so that a rank of tensor parallelism applies them to its part of a
 * sum.  The norms |V_i| are constants of backward, as in the paper of DoRA (section 4.3).
 */
#include "op/linear/op_adapter.h"

#include "d9d/base/plugin_call.h"
#include "d9d/op/adapter_forward.h"
#include "d9d/op/math.h"

/* What the layer asked for. */
typedef struct adapter_call {
    const d9di_op_rows_of *rows;
    const d9di_op_fp8_input *q; /* of x */
    d9d_var *x, *plus;
    d9d_var *low; /* scale x A^T, or NULL */
    int has;      /* of D9D_OP_ADAPTER_ALL, what y has by now */
} adapter_call;

/* --- the base ----------------------------------------------------------------------------------
 */

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

d9d_status d9d_op_adapter_base(const d9d_op_adapter *a, d9d_var *x, int with, d9d_var **y)
{
    adapter_call *c = a->call;
    const bool biased = (with & D9D_OP_ADAPTER_BIAS) != 0;
    const d9di_op_rows_of rows = {a->first, a->n, biased ? c->rows->bias : NULL};

    c->has = with;
    D9D_TRY(d9di_op_linear_check(d9d_var_tensor(x), a->matrix));
    return base_run(a->tape, x, a->matrix, &rows, x == c->x ? c->q : NULL,
                    (with & D9D_OP_ADAPTER_RESIDUAL) != 0 ? c->plus : NULL, y);
}

d9d_status d9d_op_adapter_add_bias(const d9d_op_adapter *a, d9d_var **y)
{
    adapter_call *c = a->call;

    if (c->rows->bias == NULL || (c->has & D9D_OP_ADAPTER_BIAS) != 0)
        return D9D_OK;
    c->has |= D9D_OP_ADAPTER_BIAS;
    return d9d_op_add_bias(a->tape, *y, c->rows->bias, a->first, y);
}

/* --- arrays ------------------------------------------------------------------------------------
 */

/* A parameter, or its rows that are computed, in its own shape. */
static d9d_status array_of(const d9d_op_adapter *a, d9d_param *p, bool has_rows, d9d_var **v)
{
    d9d_shape s = *d9di_op_weight_shape(p);
    int64_t size = 1;

    for (int d = 1; d < s.ndim; d++)
        size *= s.dim[d];
    if (has_rows)
        s.dim[0] = a->n;
    D9D_TRY(d9d_op_param(a->tape, p, has_rows ? a->first * size : 0, d9d_shape_numel(&s), v));
    return s.ndim == 1 ? D9D_OK : d9d_op_reshape(a->tape, *v, s, v);
}

d9d_status d9d_op_adapter_param(const d9d_op_adapter *a, int i, d9d_var **v)
{
    d9d_param *p = i >= 0 && i < D9D_ADAPTER_PARAMS ? a->adapter->param[i] : NULL;

    if (p == NULL)
        return D9D_FAIL(D9D_EINVAL, "the adapter of %s has no parameter %d",
                        d9di_op_param_name(a->matrix), i);
    return array_of(a, p, (a->adapter->by_output >> i & 1) != 0, v);
}

d9d_status d9d_op_adapter_matrix(const d9d_op_adapter *a, d9d_var **v)
{
    if (!a->adapter->reads_matrix)
        return D9D_FAIL(D9D_EINVAL, "the adapter of %s reads the matrix and does not say so",
                        d9di_op_param_name(a->matrix));
    return array_of(a, a->matrix, true, v);
}

d9d_status d9d_op_adapter_dropout(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    d9d_op_dropout_opts opts = {.p = a->adapter->dropout,
                                .first = a->matrix->local.offset[1],
                                .width = a->matrix->spec.shape.dim[1]};

    for (int i = 0; i < D9D_ADAPTER_PARAMS && opts.site == NULL; i++)
        opts.site = a->adapter->param[i];
    return d9d_op_dropout(a->tape, x, &opts, y);
}

/* --- roles -------------------------------------------------------------------------------------
 */

/* scale * (drop(x) A^T) */
static d9d_status down_run(const d9d_op_adapter *a, d9d_var *x, d9d_var **low)
{
    d9d_var *in;

    D9D_TRY(d9d_op_adapter_dropout(a, x, &in));
    D9D_TRY(d9d_op_linear(a->tape, in, a->adapter->param[D9D_ADAPTER_A], low));
    return d9d_op_scale(a->tape, *low, a->adapter->scale, low);
}

/* *y += scale * (drop(x) A^T) B^T, in place. */
static d9d_status product_add(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    d9d_param *up = a->adapter->param[D9D_ADAPTER_B];
    d9d_var *low = ((const adapter_call *)a->call)->low;

    if (low == NULL)
        D9D_TRY(down_run(a, x, &low));
    D9D_TRY(d9di_op_linear_check(d9d_var_tensor(low), up));
    return d9di_op_linear_rows(a->tape, low, up, &(d9di_op_rows_of){a->first, a->n, NULL}, NULL, *y,
                               true, y);
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
static d9d_status magnitude_scale(const d9d_op_adapter *a, d9d_var **y)
{
    const d9di_op_rows_of rows = {a->first, a->n, NULL};
    d9d_param *p = a->adapter->param[D9D_ADAPTER_MAGNITUDE];
    d9d_tape *t = a->tape;
    d9d_var *magnitude, *norm;
    d9d_tensor norms;
    d9d_status st;

    D9D_TRY(d9d_op_param(t, p, a->first, a->n, &magnitude));
    D9D_TRY(d9di_op_adapter_norms(t, a->matrix, &rows, &norms));
    st = d9d_tape_leaf(t, &norms, false, &norm);
    d9d_tensor_release(&norms);
    D9D_TRY(st);
    D9D_TRY(d9d_op_cast(t, norm, p->spec.dtype, &norm));
    D9D_TRY(d9d_op_div(t, magnitude, norm, &magnitude));
    return d9d_op_mul(t, *y, magnitude, y);
}

/* The forward of a kind that has none of its own. */
static d9d_status roles_forward(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    d9d_param *const *role = a->adapter->param;
    const bool normed = role[D9D_ADAPTER_MAGNITUDE] != NULL,
               scaled = role[D9D_ADAPTER_OUTPUT] != NULL;

    D9D_TRY(columns_scale(a->tape, role[D9D_ADAPTER_INPUT], 0,
                          d9di_op_weight_shape(a->matrix)->dim[1], &x));
    D9D_TRY(d9d_op_adapter_base(a, x,
                                normed   ? D9D_OP_ADAPTER_BARE
                                : scaled ? D9D_OP_ADAPTER_BIAS
                                         : D9D_OP_ADAPTER_ALL,
                                y));
    if (role[D9D_ADAPTER_A] != NULL)
        D9D_TRY(product_add(a, x, y));
    if (normed) {
        D9D_TRY(magnitude_scale(a, y));
        D9D_TRY(d9d_op_adapter_add_bias(a, y));
    }
    return columns_scale(a->tape, role[D9D_ADAPTER_OUTPUT], a->first, a->n, y);
}

/* --- a layer -----------------------------------------------------------------------------------
 */

static d9d_status result_check(const d9d_op_adapter *a, const d9d_tensor *x, const d9d_tensor *y)
{
    d9d_shape want = x->shape;

    want.dim[want.ndim - 1] = a->n;
    if (y->dtype == x->dtype && d9d_shape_equal(&y->shape, &want))
        return D9D_OK;
    return d9di_op_misfit("adapter", "what its forward made", &y->shape,
                          d9di_op_param_name(a->matrix), &want, "y has a column for each row");
}

d9d_status d9di_op_linear_adapted(d9d_tape *t, d9d_var *x, d9d_param *w,
                                  const d9di_op_rows_of *rows, const d9di_op_fp8_input *q,
                                  d9d_var *plus, d9d_var *low, d9d_var **y)
{
    const d9d_param_adapter *ad = d9d_tape_adapter(t, w);
    adapter_call c = {rows, w->fp8.recipe != NULL ? q : NULL, x, plus, low, 0};
    const d9d_op_adapter a = {t, ad, w, rows->first, rows->n, &c};

    if (ad == NULL)
        return d9d_op_adapter_base(&a, x, D9D_OP_ADAPTER_ALL, y);
    if (ad->forward == NULL) {
        D9D_TRY(roles_forward(&a, x, y));
    } else {
        D9D_TRY(D9D_PLUGIN_CALL(ad->name, ad, forward, &a, x, y));
        D9D_TRY(result_check(&a, d9d_var_tensor(x), d9d_var_tensor(*y)));
        D9D_TRY(d9d_op_adapter_add_bias(&a, y));
    }
    return plus != NULL && (c.has & D9D_OP_ADAPTER_RESIDUAL) == 0 ? d9d_op_add(t, plus, *y, y)
                                                                  : D9D_OK;
}

/* --- several layers of one input ---------------------------------------------------------------
 */

/* An A that reads x as it is. */
static bool has_plain_down(const d9d_tape *t, const d9d_param_adapter *ad)
{
    return ad != NULL && ad->forward == NULL && ad->param[D9D_ADAPTER_A] != NULL &&
           ad->param[D9D_ADAPTER_INPUT] == NULL && !d9d_op_dropout_is_active(t, ad->dropout);
}

/* The place of p among n; n if it is not there. */
static size_t param_index(d9d_param *const *list, size_t n, const d9d_param *p)
{
    size_t i = 0;

    while (i < n && list[i] != p)
        i++;
    return i;
}

/* Slices of one matrix share what its A makes. */
d9d_status d9di_op_adapters_down(d9d_tape *t, d9d_var *x, const d9d_op_weight_slice *of, size_t n,
                                 d9d_var **low)
{
    d9d_param *down[D9D_OP_LINEAR_MULTI_MAX];
    float scale[D9D_OP_LINEAR_MULTI_MAX];
    d9d_var *made[D9D_OP_LINEAR_MULTI_MAX];
    size_t at[D9D_OP_LINEAR_MULTI_MAX], count = 0, readers = 0;

    for (size_t i = 0; i < n; i++) {
        const d9d_param_adapter *ad = d9d_tape_adapter(t, of[i].w);

        low[i] = NULL;
        at[i] = D9D_OP_LINEAR_MULTI_MAX;
        if (!has_plain_down(t, ad) ||
            (count > 0 && ad->param[D9D_ADAPTER_A]->spec.grad_dtype != down[0]->spec.grad_dtype))
            continue;
        readers++;
        at[i] = param_index(down, count, ad->param[D9D_ADAPTER_A]);
        if (at[i] < count)
            continue;
        scale[count] = ad->scale;
        down[count++] = ad->param[D9D_ADAPTER_A];
    }
    if (readers < 2 || !d9d_tape_should_record(t, &x, 1, down, count))
        return D9D_OK;
    D9D_TRY(d9di_op_linear_stacked(t, x, down, scale, count, made));
    for (size_t i = 0; i < n; i++)
        if (at[i] < count)
            low[i] = made[at[i]];
    return D9D_OK;
}
