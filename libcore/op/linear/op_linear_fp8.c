/* op_linear_fp8.c - see op/linear/op_linear_fp8.h. */
#include "op/linear/op_linear_fp8.h"

enum { SAVED_DATA, SAVED_SCALE }; /* of x.cols, the first that a linear op saves */

d9d_status d9di_op_fp8_check(const d9d_param *w, int64_t first, int64_t n)
{
    const int64_t in = w->local.data.shape.dim[1];

    if (first % D9D_FP8_ALIGN != 0 || n % D9D_FP8_ALIGN != 0 || in % D9D_FP8_ALIGN != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "linear: rows [%lld, %lld + %lld) of %s, of %lld elements each: in FP8 all "
                        "are multiples of %d",
                        (long long)first, (long long)first, (long long)n, d9di_op_param_name(w),
                        (long long)in, D9D_FP8_ALIGN);
    return D9D_OK;
}

d9d_status d9di_op_fp8_grouped_check(const d9d_param *w)
{
    const int64_t *d = w->local.data.shape.dim;

    if (d[1] % D9D_FP8_ALIGN != 0 || d[2] % D9D_FP8_ALIGN != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "grouped_linear: matrices of %s are %lld x %lld: in FP8 both are multiples "
                        "of %d",
                        d9di_op_param_name(w), (long long)d[1], (long long)d[2], D9D_FP8_ALIGN);
    return D9D_OK;
}

d9d_status d9di_op_fp8_input_make(d9d_tape *t, const d9d_tensor *x, d9d_param *const *w, size_t n,
                                  d9di_op_fp8_input *out)
{
    const d9d_quantised_recipe *recipe = NULL;
    bool has_wgrad = false;

    for (size_t i = 0; i < n; i++) {
        if (w[i]->fp8.recipe == NULL)
            continue;
        if (recipe != NULL && recipe != w[i]->fp8.recipe)
            return D9D_FAIL(D9D_EINVAL,
                            "linear: %s is multiplied with the same input by another "
                            "recipe of FP8",
                            d9di_op_param_name(w[i]));
        recipe = w[i]->fp8.recipe;
        has_wgrad = has_wgrad || d9d_tape_should_record(t, NULL, 0, &w[i], 1);
    }
    *out = (d9di_op_fp8_input){0};
    return recipe == NULL
               ? D9D_OK
               : d9d_quantise(x, recipe, recipe->format, &out->rows, has_wgrad ? &out->cols : NULL);
}

void d9di_op_fp8_input_release(d9di_op_fp8_input *x)
{
    d9d_quantised_release(&x->rows);
    d9d_quantised_release(&x->cols);
}

static d9d_status product(d9d_tape *t, const d9d_gemm *g, const d9d_quantised_recipe *recipe,
                          const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    const d9d_fp8_gemm_dims dims = {.ct = g->ct,
                                    .m = g->m,
                                    .n = g->n,
                                    .k = g->k,
                                    .beta = g->beta,
                                    .addend = g->addend,
                                    .fast_accum = recipe->fast_accum};

    return D9DI_KERNEL(t, fp8->product, &dims, a, b, c);
}

/* Is there a use of the other copy too?  A weight that is resident until the step ends is quantised
 * both ways at once. */
static bool wants_both(d9d_tape *t, d9d_param *w)
{
    return w->placement.shard_group == NULL && d9d_tape_should_record(t, NULL, 0, &w, 1);
}

d9d_status d9di_op_fp8_forward(d9d_tape *t, const d9d_gemm *g, const d9di_op_fp8_input *x,
                               int64_t row, d9d_param *w, int64_t first, void *y)
{
    d9d_fp8_operand a, b;

    D9D_TRY(d9d_param_quantise(w, true, wants_both(t, w)));
    a = d9d_quantised_operand(&x->rows, row, 0);
    b = d9d_quantised_operand(&w->fp8.rows, first, 0);
    return product(t, g, w->fp8.recipe, &a, &b, y);
}

/* One read of output gradient i makes the copies of both halves. */
static d9d_status gradient_quantise(d9d_node *n, int i, d9di_op_fp8_node *a, d9d_quantised *rows)
{
    return d9d_quantise(&n->dout[i], a->recipe, a->recipe->grad_format, rows,
                        (n->halves & D9D_NEED_WGRAD) != 0 ? &a->dy : NULL);
}

/* For a wgrad whose dgrad has not made the copy. */
static d9d_status gradient_cols(d9d_node *n, int i, d9di_op_fp8_node *a)
{
    return d9d_quantised_is_empty(&a->dy)
               ? d9d_quantise(&n->dout[i], a->recipe, a->recipe->grad_format, NULL, &a->dy)
               : D9D_OK;
}

d9d_status d9di_op_fp8_dgrad(d9d_node *n, const d9d_gemm *g, d9di_op_fp8_node *a, int64_t first,
                             void *dx)
{
    d9d_param *w = n->param[0];
    d9d_quantised rows;
    d9d_fp8_operand dy, by;
    d9d_status st;

    D9D_TRY(gradient_quantise(n, 0, a, &rows));
    D9D_TRY_OR(st, d9d_param_quantise(w, false, true), out);
    dy = d9d_quantised_operand(&rows, 0, 0);
    by = d9d_quantised_operand(&w->fp8.cols, 0, first);
    st = product(n->tape, g, a->recipe, &dy, &by, dx);
out:
    d9d_quantised_release(&rows);
    return st;
}

d9d_status d9di_op_fp8_wgrad(d9d_node *n, const d9d_gemm *g, d9di_op_fp8_node *a, void *dw)
{
    const d9d_quantised x = {n->saved[SAVED_DATA], n->saved[SAVED_SCALE],
                             a->recipe->scaling == D9D_SCALE_ROWWISE};
    d9d_gemm padded = *g;
    d9d_fp8_operand dy, by;
    d9d_status st;

    D9D_TRY(gradient_cols(n, 0, a));
    padded.k = x.data.shape.dim[1];
    dy = d9d_quantised_operand(&a->dy, 0, 0);
    by = d9d_quantised_operand(&x, 0, 0);
    st = product(n->tape, &padded, a->recipe, &dy, &by, dw);
    d9d_quantised_release(&a->dy);
    return st;
}

void d9di_op_fp8_save(d9d_node *n, const d9di_op_fp8_input *x)
{
    if (d9d_quantised_is_empty(&x->cols))
        return;
    (void)d9d_node_save(n, &x->cols.data, D9D_NEED_WGRAD);
    (void)d9d_node_save(n, &x->cols.scale, D9D_NEED_WGRAD);
}

/* --- experts ---------------------------------------------------------------------------------- */

static d9d_status grouped_product(d9d_tape *t, d9d_fp8_grouped_form form, d9d_dtype ct, float beta,
                                  const d9d_tensor *offset, int64_t rows, const d9d_param *w,
                                  const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    const int64_t *d = w->local.data.shape.dim;
    const d9d_fp8_grouped_dims g = {.form = form,
                                    .ct = ct,
                                    .rows = rows,
                                    .e = d[0],
                                    .in = d[1],
                                    .out = d[2],
                                    .offset = d9d_tensor_data(offset),
                                    .beta = beta,
                                    .fast_accum = w->fp8.recipe->fast_accum};

    return D9DI_KERNEL(t, fp8->grouped, &g, a, b, c);
}

d9d_status d9di_op_fp8_grouped_forward(d9d_tape *t, const d9di_op_fp8_input *x,
                                       const d9d_tensor *offset, d9d_param *w, const d9d_tensor *y)
{
    d9d_fp8_operand a, b;

    D9D_TRY(d9d_param_quantise(w, wants_both(t, w), true));
    a = d9d_quantised_operand(&x->rows, 0, 0);
    b = d9d_quantised_operand(&w->fp8.cols, 0, 0);
    return grouped_product(t, D9D_FP8_GROUPED_FWD, y->dtype, 0.0f, offset, y->shape.dim[0], w, &a,
                           &b, d9d_tensor_data(y));
}

d9d_status d9di_op_fp8_grouped_dgrad(d9d_node *n, int i, const d9d_tensor *offset,
                                     d9di_op_fp8_node *a, bool adds, const d9d_tensor *dx)
{
    d9d_param *w = n->param[i];
    d9d_quantised rows;
    d9d_fp8_operand dy, by;
    d9d_status st;

    D9D_TRY(gradient_quantise(n, i, a, &rows));
    D9D_TRY_OR(st, d9d_param_quantise(w, true, false), out);
    dy = d9d_quantised_operand(&rows, 0, 0);
    by = d9d_quantised_operand(&w->fp8.rows, 0, 0);
    st = grouped_product(n->tape, D9D_FP8_GROUPED_DGRAD, dx->dtype, adds ? 1.0f : 0.0f, offset,
                         dx->shape.dim[0], w, &dy, &by, d9d_tensor_data(dx));
out:
    d9d_quantised_release(&rows);
    return st;
}

d9d_status d9di_op_fp8_grouped_wgrad(d9d_node *n, int i, const d9d_tensor *offset, int saved,
                                     d9di_op_fp8_node *a)
{
    const d9d_quantised x = {n->saved[saved + SAVED_DATA], n->saved[saved + SAVED_SCALE],
                             a->recipe->scaling == D9D_SCALE_ROWWISE};
    d9d_param *w = n->param[i];
    d9d_fp8_operand by, dy;
    d9d_status st;

    D9D_TRY(gradient_cols(n, i, a));
    by = d9d_quantised_operand(&x, 0, 0);
    dy = d9d_quantised_operand(&a->dy, 0, 0);
    st = grouped_product(n->tape, D9D_FP8_GROUPED_WGRAD, w->local.grad.dtype,
                         d9d_param_grad_beta(&w->local), offset, n->dout[i].shape.dim[0], w, &by,
                         &dy, d9d_tensor_data(&w->local.grad));
    d9d_quantised_release(&a->dy);
    return st;
}
