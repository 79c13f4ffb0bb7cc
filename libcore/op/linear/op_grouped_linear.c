/* op_grouped_linear.c - grouped GEMM: y_i = x W_ie for the rows of each expert.  x [R, in],
 * w_i [E, in, out].
 *
 *     dx = sum over i of dy_i W_ie^T        dW_ie = x_e^T dy_ie, zero for an expert without rows
 *
 * Where the matrices have a recipe of FP8 all three products are in 8 bits.
 */
#include "op/linear/op_gemm.h"
#include "op/linear/op_linear_fp8.h"

enum { SAVED_OFFSET, SAVED_X, MAX_WEIGHTS = 2 }; /* x, or the two arrays of its copy in 8 bits */

typedef struct grouped_attr {
    d9di_op_fp8_node fp8[MAX_WEIGHTS]; /* of each weight; all have a recipe or none has */
} grouped_attr;

/* dx = (dx +) the products of all output gradients that have arrived. */
static d9d_status gemm_dgrad(d9d_node *n, bool adds, const d9d_tensor *dx)
{
    const int64_t *d = n->param[0]->local.data.shape.dim;
    const void *dy[MAX_WEIGHTS], *w[MAX_WEIGHTS];
    int arrived = 0;

    for (int i = 0; i < n->n_out; i++)
        if (n->dout[i].storage != NULL) {
            dy[arrived] = d9d_tensor_data(&n->dout[i]);
            w[arrived++] = d9d_tensor_data(&n->param[i]->local.data);
        }
    return D9DI_KERNEL(n->tape, gemm->grouped_dgrad, dx->dtype, d9d_tensor_data(dx),
                       adds ? 1.0f : 0.0f, arrived, dy, w, d9d_tensor_data(&n->saved[SAVED_OFFSET]),
                       dx->shape.dim[0], d[0], d[1], d[2]);
}

/* The same in 8 bits: one product after the other, since each has scales of its own. */
static d9d_status fp8_dgrad(d9d_node *n, bool adds, const d9d_tensor *dx)
{
    grouped_attr *a = n->attr;

    for (int i = 0; i < n->n_out; i++)
        if (n->dout[i].storage != NULL) {
            D9D_TRY(d9di_op_fp8_grouped_dgrad(n, i, &n->saved[SAVED_OFFSET], &a->fp8[i], adds, dx));
            adds = true;
        }
    return D9D_OK;
}

static bool is_fp8(const d9d_node *n)
{
    return ((const grouped_attr *)n->attr)->fp8[0].recipe != NULL;
}

static d9d_status grouped_dgrad(d9d_node *n)
{
    d9d_status st = D9D_OK;
    const void *plus;
    d9d_tensor dx;

    D9D_TRY(d9d_node_accumulate_begin(n, 0, &dx, &plus));
    if (plus != NULL && plus != d9d_tensor_data(&dx))
        st = D9DI_KERNEL(n->tape, elementwise->cast, dx.dtype, d9d_tensor_data(&dx), dx.dtype, plus,
                         d9d_tensor_numel(&dx));
    if (st == D9D_OK)
        st = is_fp8(n) ? fp8_dgrad(n, plus != NULL, &dx) : gemm_dgrad(n, plus != NULL, &dx);
    return d9di_op_grad_finish_sum(n, 0, &dx, st);
}

d9d_status d9di_op_grouped_linear_wgrad(d9d_node *n, const d9d_tensor *offset, const d9d_tensor *x,
                                        const d9d_tensor *dy, d9d_param *w)
{
    const int64_t *d = w->local.data.shape.dim;

    if (dy->storage == NULL || !d9d_param_needs_grad(w))
        return D9D_OK;
    return D9DI_KERNEL(n->tape, gemm->grouped_wgrad, x->dtype, w->local.grad.dtype,
                       d9d_tensor_data(&w->local.grad), d9d_param_grad_beta(&w->local),
                       d9d_tensor_data(x), d9d_tensor_data(dy), d9d_tensor_data(offset),
                       x->shape.dim[0], d[0], d[1], d[2]);
}

static d9d_status fp8_wgrad(d9d_node *n, int i)
{
    if (n->dout[i].storage == NULL || !d9d_param_needs_grad(n->param[i]))
        return D9D_OK;
    return d9di_op_fp8_grouped_wgrad(n, i, &n->saved[SAVED_OFFSET], SAVED_X,
                                     &((grouped_attr *)n->attr)->fp8[i]);
}

static d9d_status grouped_wgrad(d9d_node *n)
{
    for (int i = 0; i < n->n_param; i++)
        D9D_TRY(is_fp8(n)
                    ? fp8_wgrad(n, i)
                    : d9di_op_grouped_linear_wgrad(n, &n->saved[SAVED_OFFSET], &n->saved[SAVED_X],
                                                   &n->dout[i], n->param[i]));
    return D9D_OK;
}

static void grouped_release(d9d_node *n)
{
    for (int i = 0; i < MAX_WEIGHTS; i++)
        d9d_quantised_release(&((grouped_attr *)n->attr)->fp8[i].dy);
}

static const d9d_node_ops grouped_node_ops = {.name = "grouped_linear",
                                              .dgrad = grouped_dgrad,
                                              .wgrad = grouped_wgrad,
                                              .release = grouped_release};

d9d_status d9di_op_grouped_linear_check(const d9d_tensor *x, const d9d_param *w,
                                        const d9d_routing *r)
{
    const d9d_shape *s = &w->local.data.shape;

    D9D_TRY(d9di_op_check_real("grouped_linear", "x", x));
    D9D_TRY(d9di_op_check_matrix("grouped_linear", w, x->dtype));
    D9D_TRY(d9di_op_check_routing("grouped_linear", x, r, true));
    if (s->ndim != 3 || x->shape.dim[1] != s->dim[1])
        return d9di_op_misfit("grouped_linear", "x", &x->shape, d9di_op_param_name(w), s,
                              "x is [R, in], a weight [E, in, out]");
    if (!d9d_shape_equal(&r->offset.shape, &D9D_SHAPE(s->dim[0] + 1)))
        return d9di_op_misfit("grouped_linear", "the routing's offsets", &r->offset.shape,
                              d9di_op_param_name(w), s,
                              "offsets are [E + 1], a weight [E, in, out]");
    return w->fp8.recipe != NULL ? d9di_op_fp8_grouped_check(w) : D9D_OK;
}

/* The output of one matrix.  q: the copies of x, for a product in 8 bits; else NULL. */
static d9d_status grouped_gemm_forward(d9d_tape *t, const d9d_tensor *x, d9d_param *w,
                                       const d9d_routing *r, const d9di_op_fp8_input *q,
                                       d9d_var **y)
{
    const int64_t *d = w->local.data.shape.dim;

    D9D_TRY(d9d_tape_output(t, x->dtype, D9D_SHAPE(x->shape.dim[0], d[2]), y));
    if (q != NULL)
        return d9di_op_fp8_grouped_forward(t, q, &r->offset, w, d9d_var_tensor(*y));
    return D9DI_KERNEL(t, gemm->grouped, x->dtype, d9d_tensor_data(d9d_var_tensor(*y)),
                       d9d_tensor_data(x), d9d_tensor_data(&w->local.data),
                       d9d_tensor_data(&r->offset), x->shape.dim[0], d[0], d[1], d[2]);
}

static d9d_status grouped_record(d9d_tape *t, d9d_var *x, d9d_param *const *w, size_t n_w,
                                 const d9d_routing *r, const d9di_op_fp8_input *q,
                                 d9d_var *const *out)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, &x, 1, w, n_w))
        return D9D_OK;
    D9D_TRY(
        d9d_tape_record(t, &grouped_node_ops, &x, 1, out, n_w, w, n_w, sizeof(grouped_attr), &n));
    *(grouped_attr *)n->attr = (grouped_attr){0};
    (void)d9d_node_save(n, &r->offset, D9D_NEED_BOTH);
    if (q == NULL) {
        (void)d9d_node_save(n, d9d_var_tensor(x), D9D_NEED_WGRAD);
        return D9D_OK;
    }
    for (size_t i = 0; i < n_w; i++)
        ((grouped_attr *)n->attr)->fp8[i].recipe = w[i]->fp8.recipe;
    d9di_op_fp8_save(n, q);
    return D9D_OK;
}

d9d_status d9di_op_grouped_linear_record(d9d_tape *t, d9d_var *x, d9d_param *const *w, size_t n_w,
                                         const d9d_routing *r, d9d_var *const *out)
{
    return grouped_record(t, x, w, n_w, r, NULL, out);
}

static d9d_status grouped_run(d9d_tape *t, d9d_var *x, d9d_param *const *w, size_t n_w,
                              const d9d_routing *r, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *out[MAX_WEIGHTS];
    d9di_op_fp8_input q;
    bool in_fp8;
    d9d_status st;

    if (n_w < 1 || n_w > MAX_WEIGHTS)
        return D9D_FAIL(D9D_EINVAL, "grouped_linear: %zu weights, from 1 to %d are supported", n_w,
                        MAX_WEIGHTS);
    for (size_t i = 0; i < n_w; i++) {
        D9D_TRY(d9di_op_grouped_linear_check(tx, w[i], r));
        if (i > 0 && !d9d_shape_equal(&w[i]->local.data.shape, &w[0]->local.data.shape))
            return d9di_op_misfit("grouped_linear", d9di_op_param_name(w[i]),
                                  &w[i]->local.data.shape, d9di_op_param_name(w[0]),
                                  &w[0]->local.data.shape, "weights of one input have one shape");
        if (w[i]->fp8.recipe != w[0]->fp8.recipe)
            return D9D_FAIL(D9D_EINVAL, "grouped_linear: %s and %s have different recipes of FP8",
                            d9di_op_param_name(w[i]), d9di_op_param_name(w[0]));
    }
    in_fp8 = w[0]->fp8.recipe != NULL;
    D9D_TRY(d9di_op_fp8_input_make(t, tx, w, n_w, &q));
    for (size_t i = 0; i < n_w; i++)
        D9D_TRY_OR(st, grouped_gemm_forward(t, tx, w[i], r, in_fp8 ? &q : NULL, &out[i]), out);
    D9D_TRY_OR(st, grouped_record(t, x, w, n_w, r, in_fp8 ? &q : NULL, out), out);
    for (size_t i = 0; i < n_w; i++)
        y[i] = out[i];
out:
    d9di_op_fp8_input_release(&q);
    return st;
}

/* Numbers of the rows for dropout: token times the experts of all ranks, plus the expert. */
static d9d_status rows_number(d9d_tape *t, const d9d_param *w, const d9d_routing *r,
                              d9d_tensor *out)
{
    const int64_t n = d9di_routing_rows(r);

    if (r->number.storage == NULL)
        return D9D_FAIL(D9D_EINVAL,
                        "grouped_linear: %s has dropout, and its tokens have no numbers "
                        "(d9d_op_routing_number())",
                        d9di_op_param_name(w));
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), D9D_I64, D9D_SHAPE(n), out));
    return D9DI_KERNEL(t, moe->expert_numbers, d9d_tensor_data(out), d9d_tensor_data(&r->number),
                       d9d_tensor_data(&r->source), d9d_tensor_data(&r->expert), n,
                       r->expert.shape.dim[0], r->expert.shape.dim[1], w->local.offset[0],
                       w->spec.shape.dim[0]);
}

/* What an adapter's A reads: x with dropout. */
static d9d_status adapter_input(d9d_tape *t, d9d_var *x, const d9d_param_adapter *a,
                                const d9d_routing *r, d9d_var **in)
{
    const d9d_param *down = a->param[D9D_ADAPTER_A];
    d9d_tensor number = {0};
    d9d_status st;

    *in = x;
    if (!d9d_op_dropout_is_active(t, a->dropout))
        return D9D_OK;
    st = rows_number(t, down, r, &number);
    if (st == D9D_OK)
        st = d9d_op_dropout(
            t, x, &(d9d_op_dropout_opts){.p = a->dropout, .site = down, .rows = &number}, in);
    d9d_tensor_release(&number);
    return st;
}

/* Add the adapter's product to y. */
static d9d_status add_adapter(d9d_tape *t, d9d_var *x, const d9d_param_adapter *a,
                              const d9d_routing *r, d9d_var **y)
{
    d9d_var *low;

    D9D_TRY(adapter_input(t, x, a, r, &low));
    D9D_TRY(grouped_run(t, low, &a->param[D9D_ADAPTER_A], 1, r, &low));
    D9D_TRY(d9d_op_scale(t, low, a->scale, &low));
    D9D_TRY(grouped_run(t, low, &a->param[D9D_ADAPTER_B], 1, r, &low));
    return d9d_op_add(t, *y, low, y);
}

d9d_status d9d_op_grouped_linear(d9d_tape *t, d9d_var *x, d9d_param *const *w, size_t n,
                                 const d9d_routing *r, d9d_var **y)
{
    D9D_TRY(grouped_run(t, x, w, n, r, y));
    for (size_t i = 0; i < n; i++)
        if (d9d_tape_adapter(t, w[i]) != NULL)
            D9D_TRY(add_adapter(t, x, d9d_tape_adapter(t, w[i]), r, &y[i]));
    return D9D_OK;
}
