/* op_linear_fp8.c - see op/linear/op_linear_fp8.h. */
#include "op/linear/op_linear_fp8.h"

enum { SAVED_DATA, SAVED_SCALE }; /* of x.cols */

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

/* A weight that is resident until the step ends is quantised both ways at once. */
static d9d_status weight_quantise(d9d_tape *t, d9d_param *w)
{
    return d9d_param_quantise(
        w, true, w->placement.shard_group == NULL && d9d_tape_should_record(t, NULL, 0, &w, 1));
}

d9d_status d9di_op_fp8_forward(d9d_tape *t, const d9d_gemm *g, const d9di_op_fp8_input *x,
                               int64_t row, d9d_param *w, int64_t first, void *y)
{
    d9d_fp8_operand a, b;

    D9D_TRY(weight_quantise(t, w));
    a = d9d_quantised_operand(&x->rows, row, 0);
    b = d9d_quantised_operand(&w->fp8.rows, first, 0);
    return product(t, g, w->fp8.recipe, &a, &b, y);
}

/* One read of the output gradient makes the copies of both halves. */
d9d_status d9di_op_fp8_dgrad(d9d_node *n, const d9d_gemm *g, d9di_op_fp8_node *a, int64_t first,
                             void *dx)
{
    d9d_param *w = n->param[0];
    d9d_quantised rows;
    d9d_fp8_operand dy, by;
    d9d_status st;

    D9D_TRY(d9d_quantise(&n->dout[0], a->recipe, a->recipe->grad_format, &rows,
                         (n->halves & D9D_NEED_WGRAD) != 0 ? &a->dy : NULL));
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

    if (d9d_quantised_is_empty(&a->dy))
        D9D_TRY(d9d_quantise(&n->dout[0], a->recipe, a->recipe->grad_format, NULL, &a->dy));
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
