/* op_linear.c - y = x W^T (+ b) (+ plus).  x [M, in], w [out, in]; M is the product of the leading
 * dimensions.
 *
 *     dx = dy W        dW = dy^T x        dplus = dy
 *
 * The product adds the bias, which is a node of its own that shares y's array.
 *
 * W may be some rows of a parameter; the gradient of the others is zero.  op_adapter.c has what an
 * adapter makes of it.  Where W has a recipe of FP8 all three products are in 8 bits.  A quantised
 * W is frozen and read as it is stored (d9d/kernels/quant.h).
 */
#include "op/linear/op_adapter.h"
#include "op/linear/op_gemm.h"
#include "op/linear/op_linear_fp8.h"
#include "op/parallel/op_tp_overlap.h"

typedef struct linear_attr {
    d9di_op_rows_of rows;
    d9di_op_fp8_node fp8;
} linear_attr;

enum { X, PLUS }; /* inputs */

d9d_status d9di_op_weight_gemm(d9d_tape *t, const d9d_gemm *g, const void *a, const d9d_param *w,
                               int64_t first, void *c)
{
    d9d_quant_matrix q;

    if (w->spec.stored == D9D_QUANT_NONE)
        return D9DI_KERNEL(t, gemm->dense, g, a, d9di_op_row_ptr(&w->local.data, first), c);
    q = d9d_param_quant_rows(w, first, g->trans_b ? g->n : g->k);
    return D9DI_KERNEL(t, quant->product, g, a, &q, c);
}

static d9d_status linear_gemm_dgrad(d9d_node *n)
{
    const d9d_param *w = n->param[0];
    const d9d_tensor *dy = &n->dout[0];
    linear_attr *a = n->attr;
    d9d_gemm g = {
        .t = dy->dtype,
        .ct = dy->dtype,
        .m = d9di_op_rows(&dy->shape),
        .n = d9di_op_weight_shape(w)->dim[1],
        .k = a->rows.n,
    };
    d9d_tensor dx;
    d9d_status st;

    D9D_TRY(d9d_node_accumulate_begin(n, X, &dx, &g.addend));
    g.beta = g.addend != NULL ? 1.0f : 0.0f;
    st = a->fp8.recipe != NULL
             ? d9di_op_fp8_dgrad(n, &g, &a->fp8, a->rows.first, d9d_tensor_data(&dx))
             : d9di_op_weight_gemm(n->tape, &g, d9d_tensor_data(dy), w, a->rows.first,
                                   d9d_tensor_data(&dx));
    return d9di_op_grad_finish_sum(n, X, &dx, st);
}

static d9d_status linear_dgrad(d9d_node *n)
{
    d9d_tensor dy;

    if (d9d_node_input_needs_grad(n, X))
        D9D_TRY(linear_gemm_dgrad(n));
    if (n->n_in == 1)
        return D9D_OK;
    dy = d9d_tensor_ref(&n->dout[0]);
    return d9d_node_accumulate_grad(n, PLUS, &dy);
}

/* Clear the rows of a gradient that this op does not write. */
static d9d_status rows_clear(d9d_node *n, const d9d_tensor *grad, int64_t first, int64_t end)
{
    return D9DI_KERNEL(n->tape, elementwise->fill, grad->dtype, d9di_op_row_ptr(grad, first),
                       (end - first) * grad->shape.dim[1], 0.0f);
}

/* fp8: NULL, or of a node that has its x saved in 8 bits. */
static d9d_status rows_wgrad(d9d_node *n, const d9d_tensor *x, const d9d_tensor *dy, d9d_param *w,
                             const d9di_op_rows_of *a, d9di_op_fp8_node *fp8)
{
    const d9d_gemm g = {
        .t = dy->dtype,
        .ct = w->local.grad.dtype,
        .trans_a = true,
        .m = a->n,
        .n = w->local.data.shape.dim[1],
        .k = d9di_op_rows(&dy->shape),
        .beta = d9d_param_grad_beta(&w->local),
    };
    const int64_t out = w->local.data.shape.dim[0];
    void *dw;

    if (g.beta == 0.0f && a->n < out) {
        D9D_TRY(rows_clear(n, &w->local.grad, 0, a->first));
        D9D_TRY(rows_clear(n, &w->local.grad, a->first + a->n, out));
    }
    dw = d9di_op_row_ptr(&w->local.grad, a->first);
    return fp8 != NULL
               ? d9di_op_fp8_wgrad(n, &g, fp8, dw)
               : D9DI_KERNEL(n->tape, gemm->dense, &g, d9d_tensor_data(dy), d9d_tensor_data(x), dw);
}

d9d_status d9di_op_linear_wgrad(d9d_node *n, const d9d_tensor *x, const d9d_tensor *dy,
                                d9d_param *w)
{
    return d9d_param_needs_grad(w)
               ? rows_wgrad(n, x, dy, w, &(d9di_op_rows_of){.n = w->local.data.shape.dim[0]}, NULL)
               : D9D_OK;
}

static d9d_status linear_wgrad(d9d_node *n)
{
    linear_attr *a = n->attr;

    return rows_wgrad(n, &n->saved[0], &n->dout[0], n->param[0], &a->rows,
                      a->fp8.recipe != NULL ? &a->fp8 : NULL);
}

static void linear_release(d9d_node *n)
{
    d9d_quantised_release(&((linear_attr *)n->attr)->fp8.dy);
}

static const d9d_node_ops linear_node_ops = {
    .name = "linear", .dgrad = linear_dgrad, .wgrad = linear_wgrad, .release = linear_release};

d9d_status d9di_op_linear_check(const d9d_tensor *x, const d9d_param *w)
{
    const d9d_shape *s = d9di_op_weight_shape(w);

    D9D_TRY(d9di_op_check_real("linear", "x", x));
    D9D_TRY(d9di_op_check_weight("linear", w, x->dtype));
    if (x->shape.ndim < 1 || s->ndim != 2 || d9di_op_last_dim(&x->shape) != s->dim[1])
        return d9di_op_misfit("linear", "x", &x->shape, d9di_op_param_name(w), s,
                              "x is [..., in], a weight [out, in]");
    return D9D_OK;
}

/* q: the copies of x, for a product in 8 bits; else NULL. */
static d9d_status linear_record(d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_param *w,
                                const d9di_op_rows_of *rows, const d9di_op_fp8_input *q,
                                d9d_var *out)
{
    d9d_node *n;

    if (!d9d_tape_should_record(t, in, n_in, &w, 1))
        return D9D_OK;
    D9D_TRY(
        d9d_tape_record(t, &linear_node_ops, in, n_in, &out, 1, &w, 1, sizeof(linear_attr), &n));
    *(linear_attr *)n->attr =
        (linear_attr){.rows = *rows, .fp8.recipe = q != NULL ? w->fp8.recipe : NULL};
    if (q != NULL)
        d9di_op_fp8_save(n, q);
    else
        (void)d9d_node_save(n, d9d_var_tensor(in[X]), D9D_NEED_WGRAD);
    return D9D_OK;
}

d9d_status d9di_op_linear_record(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var *out)
{
    const d9di_op_rows_of all = {.n = d9di_op_weight_shape(w)->dim[0]};

    return linear_record(t, &x, 1, w, &all, NULL, out);
}

/* The shape of y. */
static d9d_shape output_shape(const d9d_tensor *x, const d9di_op_rows_of *a)
{
    d9d_shape s = x->shape;

    s.dim[s.ndim - 1] = a->n;
    return s;
}

static d9d_gemm linear_gemm(const d9d_tape *t, const d9d_tensor *x, const d9d_param *w,
                            const d9di_op_rows_of *a)
{
    return (d9d_gemm){.t = x->dtype,
                      .ct = x->dtype,
                      .trans_b = true,
                      .m = d9di_op_rows(&x->shape),
                      .n = a->n,
                      .k = d9di_op_weight_shape(w)->dim[1],
                      .b_constant = d9d_tape_is_weight_constant(t, w),
                      .bias = a->bias != NULL ? d9di_op_element_ptr(&a->bias->local.data, a->first)
                                              : NULL};
}

d9d_status d9di_op_linear_rows(d9d_tape *t, d9d_var *x, d9d_param *w, const d9di_op_rows_of *a,
                               const d9di_op_fp8_input *q, d9d_var *plus, bool in_place,
                               d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_var *in[] = {x, plus};
    const size_t n_in = plus == NULL ? 1 : 2;
    const bool separate = q != NULL || w->spec.stored != D9D_QUANT_NONE; /* products without bias */
    d9d_gemm g = linear_gemm(t, tx, w, a);
    d9d_tensor reused = in_place ? d9d_tensor_ref(d9d_var_tensor(plus)) : (d9d_tensor){0};
    d9d_var *out;

    if (separate)
        g.bias = NULL;
    g.beta = plus == NULL ? 0.0f : 1.0f;
    g.addend = plus == NULL || in_place ? NULL : d9d_tensor_data(d9d_var_tensor(plus));
    D9D_TRY(in_place ? d9d_tape_output_take(t, &reused, &out)
                     : d9d_tape_output(t, tx->dtype, output_shape(tx, a), &out));
    D9D_TRY(q != NULL ? d9di_op_fp8_forward(t, &g, q, 0, w, a->first,
                                            d9d_tensor_data(d9d_var_tensor(out)))
                      : d9di_op_weight_gemm(t, &g, d9d_tensor_data(tx), w, a->first,
                                            d9d_tensor_data(d9d_var_tensor(out))));
    D9D_TRY(linear_record(t, in, n_in, w, a, q, out));
    *y = out;
    if (a->bias == NULL)
        return D9D_OK;
    return separate ? d9di_op_bias_add(t, y, a->bias, a->first, NULL)
                    : d9di_op_bias_record(t, y, a->bias, a->first, NULL);
}

/* The same with x quantised first, if w has a recipe, and with the adapter of w. */
static d9d_status linear_run(d9d_tape *t, d9d_var *x, d9d_param *w, const d9di_op_rows_of *a,
                             d9d_var *plus, d9d_var **y)
{
    d9di_op_fp8_input q;
    d9d_status st;

    D9D_TRY(d9di_op_fp8_input_make(t, d9d_var_tensor(x), &w, 1, &q));
    st = d9di_op_linear_adapted(t, x, w, a, &q, plus, NULL, y);
    d9di_op_fp8_input_release(&q);
    return st;
}

static d9d_status slice_check(const d9d_tensor *x, const d9d_param *w, const d9di_op_rows_of *a)
{
    const int64_t first = a->first, n = a->n;

    D9D_TRY(d9di_op_linear_check(x, w));
    if (first < 0 || n < 0 || first > d9di_op_weight_shape(w)->dim[0] - n)
        return D9D_FAIL(D9D_EINVAL, "linear: rows [%lld, %lld + %lld) of %s, which has %lld",
                        (long long)first, (long long)first, (long long)n, d9di_op_param_name(w),
                        (long long)d9di_op_weight_shape(w)->dim[0]);
    if (a->bias != NULL) {
        const d9d_shape y = output_shape(x, a);

        D9D_TRY(d9di_op_bias_check("linear", "y", x->dtype, &y, a->bias, first));
    }
    return w->fp8.recipe != NULL ? d9di_op_fp8_check(w, first, n) : D9D_OK;
}

d9d_status d9d_op_linear_slice(d9d_tape *t, d9d_var *x, d9d_param *w, int64_t first, int64_t n,
                               d9d_var **y)
{
    const d9di_op_rows_of a = {first, n, NULL};

    D9D_TRY(slice_check(d9d_var_tensor(x), w, &a));
    return linear_run(t, x, w, &a, NULL, y);
}

static d9di_op_rows_of rows_of(const d9d_op_weight_slice *of)
{
    return (d9di_op_rows_of){of->first, of->n, of->bias};
}

/* GEMMs of one x, with the same number of rows of each weight. */
typedef struct multi_gemm {
    d9d_tape *t;
    int n;
    d9d_gemm g[D9D_OP_LINEAR_MULTI_MAX];
    const void *w[D9D_OP_LINEAR_MULTI_MAX];
    d9d_quant_matrix quant[D9D_OP_LINEAR_MULTI_MAX]; /* instead, if they are quantised */
    d9d_var *const *y;
} multi_gemm;

static d9d_status multi_gemm_rows(void *arg, const d9di_op_tp_rows *part)
{
    multi_gemm *p = arg;
    void *out[D9D_OP_LINEAR_MULTI_MAX];

    for (int i = 0; i < p->n; i++) {
        p->g[i].m = part->n;
        out[i] = d9di_op_row_ptr(d9d_var_tensor(p->y[i]), part->first);
    }
    return p->quant[0].format != D9D_QUANT_NONE
               ? D9DI_KERNEL(p->t, quant->multi, p->n, p->g, part->x, p->quant, out)
               : D9DI_KERNEL(p->t, gemm->multi, p->n, p->g, part->x, p->w, out);
}

/* For parameters without adapters and recipes, all quantised or none. */
static d9d_status multi_run(d9d_tape *t, d9d_var *x, d9d_op_pending_rows *coming,
                            const d9d_op_weight_slice *of, size_t n, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    multi_gemm p = {.t = t, .n = (int)n, .y = y};

    for (size_t i = 0; i < n; i++) {
        const d9di_op_rows_of a = rows_of(&of[i]);

        p.g[i] = linear_gemm(t, tx, of[i].w, &a);
        D9D_TRY(d9d_tape_output(t, tx->dtype, output_shape(tx, &a), &y[i]));
        if (of[i].w->spec.stored != D9D_QUANT_NONE)
            p.quant[i] = d9d_param_quant_rows(of[i].w, a.first, a.n);
        else
            p.w[i] = d9di_op_row_ptr(&of[i].w->local.data, a.first);
    }
    D9D_TRY(d9di_op_tp_for_each_rank(t, coming, x, multi_gemm_rows, &p));
    for (size_t i = 0; i < n; i++) {
        const d9di_op_rows_of a = rows_of(&of[i]);

        D9D_TRY(linear_record(t, &x, 1, of[i].w, &a, NULL, y[i]));
        if (a.bias != NULL)
            D9D_TRY(d9di_op_bias_record(t, &y[i], a.bias, a.first, NULL));
    }
    return D9D_OK;
}

/* For any parameters: one product after the other, from one quantisation of x. */
static d9d_status each_run(d9d_tape *t, d9d_var *x, const d9d_op_weight_slice *of, size_t n,
                           d9d_var **y)
{
    d9d_param *w[D9D_OP_LINEAR_MULTI_MAX];
    d9d_var *low[D9D_OP_LINEAR_MULTI_MAX];
    d9di_op_fp8_input q;
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n; i++)
        w[i] = of[i].w;
    D9D_TRY(d9di_op_adapters_down(t, x, of, n, low));
    D9D_TRY(d9di_op_fp8_input_make(t, d9d_var_tensor(x), w, n, &q));
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        const d9di_op_rows_of a = rows_of(&of[i]);

        st = d9di_op_linear_adapted(t, x, w[i], &a, &q, NULL, low[i], &y[i]);
    }
    d9di_op_fp8_input_release(&q);
    return st;
}

d9d_status d9d_op_linear_multi(d9d_tape *t, d9d_var *x, d9d_op_pending_rows *coming,
                               const d9d_op_weight_slice *of, size_t n, d9d_var **y)
{
    bool plain = true;

    if (n > D9D_OP_LINEAR_MULTI_MAX)
        return D9D_FAIL(D9D_EINVAL, "linear: %zu GEMMs in one call, at most %d", n,
                        D9D_OP_LINEAR_MULTI_MAX);
    for (size_t i = 0; i < n; i++) {
        const d9di_op_rows_of a = rows_of(&of[i]);

        D9D_TRY(slice_check(d9d_var_tensor(x), of[i].w, &a));
        plain = plain && d9d_tape_adapter(t, of[i].w) == NULL && of[i].w->fp8.recipe == NULL &&
                of[i].w->spec.stored == of[0].w->spec.stored &&
                (of[i].w->spec.stored == D9D_QUANT_NONE || a.bias == NULL);
    }
    if (plain)
        return multi_run(t, x, coming, of, n, y);
    D9D_TRY(d9d_op_all_gather_rows_wait(t, coming, x));
    return each_run(t, x, of, n, y);
}

d9d_status d9d_op_linear(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var **y)
{
    return d9d_op_linear_bias(t, x, w, NULL, NULL, y);
}

d9d_status d9d_op_linear_residual(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var *plus, d9d_var **y)
{
    return d9d_op_linear_bias(t, x, w, NULL, plus, y);
}

d9d_status d9d_op_linear_bias(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_param *b, d9d_var *plus,
                              d9d_var **y)
{
    const d9di_op_rows_of a = {0, d9di_op_weight_shape(w)->dim[0], b};
    const d9d_tensor *tx = d9d_var_tensor(x), *tp = plus != NULL ? d9d_var_tensor(plus) : NULL;
    d9d_shape shape;

    D9D_TRY(slice_check(tx, w, &a));
    if (tp == NULL)
        return linear_run(t, x, w, &a, NULL, y);
    D9D_TRY(d9di_op_check("linear", "plus", tp, tx->dtype));
    shape = output_shape(tx, &a);
    if (!d9d_shape_equal(&tp->shape, &shape))
        return d9di_op_misfit("linear", "plus", &tp->shape, "y", &shape,
                              "a residual has the result's shape");
    return linear_run(t, x, w, &a, plus, y);
}

/* --- GEMM and reduce-scatter ------------------------------------------------------------------ */

typedef struct partial_gemm {
    d9d_tape *t;
    d9d_gemm g;
    const d9d_tensor *x;
    const d9di_op_fp8_input *q; /* or NULL */
    d9d_param *w;
} partial_gemm;

static d9d_status partial_gemm_rows(void *arg, int64_t first, int64_t n, void *y)
{
    partial_gemm *p = arg;

    p->g.m = n;
    return p->q != NULL
               ? d9di_op_fp8_forward(p->t, &p->g, p->q, first, p->w, 0, y)
               : d9di_op_weight_gemm(p->t, &p->g, d9di_op_row_ptr(p->x, first), p->w, 0, y);
}

static d9d_status reduce_scatter_run(d9d_tape *t, d9d_var *x, partial_gemm *arg,
                                     const d9di_op_tp_reduce_scatter_args *sum, d9d_var **y)
{
    const d9di_op_rows_of a = {.n = d9di_op_weight_shape(arg->w)->dim[0]};
    d9d_var *part, *out;

    arg->g = linear_gemm(t, arg->x, arg->w, &a);
    D9D_TRY(
        d9di_op_tp_reduce_scatter(t, sum, arg->x->dtype, output_shape(arg->x, &a), &part, &out));
    D9D_TRY(linear_record(t, &x, 1, arg->w, &a, arg->q, part));
    D9D_TRY(d9di_op_tp_reduce_scatter_record(t, sum, part, out));
    *y = out;
    return D9D_OK;
}

d9d_status d9d_op_linear_reduce_scatter(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_comm *comm,
                                        const char *what, d9d_var *plus, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    partial_gemm arg = {.t = t, .x = tx, .w = w};
    const d9di_op_tp_reduce_scatter_args sum = {comm, what, plus, partial_gemm_rows, &arg};
    d9di_op_fp8_input q;
    d9d_status st;

    D9D_TRY(d9di_op_linear_check(tx, w));
    if (d9d_tape_adapter(t, w) != NULL) {
        D9D_TRY(d9d_op_linear(t, x, w, y));
        D9D_TRY(d9d_op_reduce_scatter_rows(t, *y, comm, what, y));
        return plus == NULL ? D9D_OK : d9d_op_add(t, plus, *y, y);
    }
    D9D_TRY(slice_check(tx, w, &(d9di_op_rows_of){.n = d9di_op_weight_shape(w)->dim[0]}));
    D9D_TRY(d9di_op_fp8_input_make(t, tx, &w, 1, &q));
    arg.q = w->fp8.recipe != NULL ? &q : NULL;
    st = reduce_scatter_run(t, x, &arg, &sum, y);
    d9di_op_fp8_input_release(&q);
    return st;
}
