/* fp8_scale.c - checks of quantised operands.  See fp8_scale.h. */
#include "common/fp8_scale.h"

static d9d_status format_check(const char *op, const char *name, d9d_dtype f)
{
    return f == D9D_F8_E4M3 || f == D9D_F8_E5M2
               ? D9D_OK
               : D9D_FAIL(D9D_EINVAL, "%s: %s is %s, not float8_e4m3fn or float8_e5m2", op, name,
                          d9d_dtype_name(f));
}

static d9d_status row_check(const char *op, int64_t n)
{
    return n % D9D_FP8_ALIGN == 0
               ? D9D_OK
               : D9D_FAIL(D9D_EINVAL, "%s: rows of %lld elements, possible are multiples of %d", op,
                          (long long)n, D9D_FP8_ALIGN);
}

static d9d_status operand_check(const char *op, const char *name, const d9d_fp8_operand *x,
                                int64_t k)
{
    D9D_TRY(format_check(op, name, x->t));
    if (k > x->row_stride || x->row_stride % D9D_FP8_ALIGN != 0)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: rows of %s have %lld elements and are %lld apart, which must be a "
                        "multiple of %d and hold them",
                        op, name, (long long)k, (long long)x->row_stride, D9D_FP8_ALIGN);
    return D9D_OK;
}

d9d_status d9di_args_check_fp8_quantise(d9d_dtype t, int64_t m, int64_t n,
                                        const d9d_fp8_operand *rows, const d9d_fp8_operand *cols)
{
    static const char op[] = "fp8_quantise";

    D9D_TRY(d9di_args_check_float(op, t));
    D9D_TRY(row_check(op, n));
    D9D_TRY(rows != NULL ? operand_check(op, "rows", rows, n) : D9D_OK);
    return cols != NULL ? operand_check(op, "cols", cols, d9d_fp8_padded(m)) : D9D_OK;
}

/* Of two operands of a product. */
static d9d_status pair_check(const char *op, const d9d_fp8_operand *a, int64_t a_k,
                             const d9d_fp8_operand *b, int64_t b_k)
{
    D9D_TRY(operand_check(op, "A", a, a_k));
    D9D_TRY(operand_check(op, "B", b, b_k));
    if (a->t == D9D_F8_E5M2 && b->t == D9D_F8_E5M2)
        return D9D_FAIL(D9D_EINVAL, "%s: A and B are float8_e5m2, at most one may be", op);
    if (a->scale_by_row != b->scale_by_row)
        return D9D_FAIL(D9D_EINVAL, "%s: A and B have scales of two kinds", op);
    return D9D_OK;
}

d9d_status d9di_args_check_fp8_gemm(const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a,
                                    const d9d_fp8_operand *b)
{
    static const char op[] = "fp8_gemm";

    D9D_TRY(d9di_args_check_float(op, g->ct));
    D9D_TRY(pair_check(op, a, g->k, b, g->k));
    if (g->n % D9D_FP8_ALIGN != 0 || g->k % D9D_FP8_ALIGN != 0)
        return D9D_FAIL(D9D_EINVAL, "%s: N %lld and K %lld, possible are multiples of %d", op,
                        (long long)g->n, (long long)g->k, D9D_FP8_ALIGN);
    return D9D_OK;
}

d9di_fp8_grouped_shape d9di_fp8_grouped_shape_of(const d9d_fp8_grouped_dims *g)
{
    switch (g->form) {
    case D9D_FP8_GROUPED_FWD: return (d9di_fp8_grouped_shape){g->rows, g->in, g->out, g->e * g->in};
    case D9D_FP8_GROUPED_DGRAD:
        return (d9di_fp8_grouped_shape){g->rows, g->out, g->e * g->in, g->out};
    default: return (d9di_fp8_grouped_shape){g->in, g->rows, g->out, g->rows};
    }
}

d9d_status d9di_args_check_fp8_grouped_gemm(const d9d_fp8_grouped_dims *g, const d9d_fp8_operand *a,
                                            const d9d_fp8_operand *b)
{
    static const char op[] = "fp8_grouped_gemm";
    const d9di_fp8_grouped_shape shape = d9di_fp8_grouped_shape_of(g);

    D9D_TRY(d9di_args_check_float(op, g->ct));
    D9D_TRY(pair_check(op, a, shape.a_k, b, shape.b_k));
    if (g->in % D9D_FP8_ALIGN != 0 || g->out % D9D_FP8_ALIGN != 0)
        return D9D_FAIL(D9D_EINVAL, "%s: matrices of %lld x %lld, possible are multiples of %d", op,
                        (long long)g->in, (long long)g->out, D9D_FP8_ALIGN);
    if (g->beta != 0.0f && g->beta != 1.0f)
        return D9D_FAIL(D9D_EINVAL, "%s: beta is %g, possible are 0 and 1", op, (double)g->beta);
    return D9D_OK;
}

d9d_status d9di_args_check_fp8_amax(d9d_dtype t, int64_t n, const d9d_fp8_maxima *to)
{
    D9D_TRY(d9di_args_check_float("fp8_amax", t));
    if (to->group < 0 || to->skip < 0)
        return D9D_FAIL(D9D_EINVAL, "fp8_amax: groups of %lld rows, %lld places apart",
                        (long long)to->group, (long long)to->skip);
    return row_check("fp8_amax", n);
}

d9d_status d9di_args_check_fp8_encode(d9d_dtype t, int64_t n, const d9d_fp8_maxima *by, d9d_dtype f)
{
    static const char op[] = "fp8_encode";
    const int kinds = (by->all != NULL) + (by->rows != NULL) + (by->cols != NULL);

    D9D_TRY(d9di_args_check_float(op, t));
    D9D_TRY(format_check(op, "y", f));
    if (kinds != 1)
        return D9D_FAIL(D9D_EINVAL, "%s: maxima of %d kinds, one says the scale of an element", op,
                        kinds);
    return row_check(op, n);
}

d9d_status d9di_args_check_fp8_scales(d9d_dtype f)
{
    return format_check("fp8_scales", "the format", f);
}

d9d_status d9di_args_check_fp8_transpose(int64_t n)
{
    return row_check("fp8_transpose", n);
}
