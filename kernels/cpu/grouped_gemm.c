/* grouped_gemm.c - grouped GEMM of all experts, in one pool of tiles. */
#include "cpu/common.h"

/* The GEMM of each expert, and how x, w and dy map to its operands. */
typedef struct grouped_args {
    const char *op;
    d9di_gemm_desc desc;
    int64_t m, n, k; /* the dimension that is the expert's rows is not set */
    const void *a, *b;
    void *c;
    int64_t a_row, b_row; /* elements per row of a and of b; 0: not indexed by rows */
    int64_t w_size;       /* elements of an expert's matrix */
    bool c_is_w;          /* wgrad: the result is an expert's matrix */
    const void *a2, *b2;  /* of a second product to be added, or NULL */
} grouped_args;

d9d_status d9di_cpu_offsets_check(const char *op, const int32_t *offset, int64_t rows, int64_t e)
{
    if (e > 0 && (offset[0] != 0 || offset[e] != rows))
        return D9D_FAIL(D9D_EINVAL, "%s: offsets of %lld experts go from %d to %d, rows are %lld",
                        op, (long long)e, (int)offset[0], (int)offset[e], (long long)rows);
    for (int64_t i = 0; i < e; i++)
        if (offset[i + 1] < offset[i])
            return D9D_FAIL(D9D_EINVAL, "%s: rows of expert %lld go from %d to %d", op,
                            (long long)i, (int)offset[i], (int)offset[i + 1]);
    return D9D_OK;
}

static d9d_status grouped_run(const grouped_args *p, const int32_t *offset, int64_t rows, int64_t e)
{
    const d9di_gemm_desc *g = &p->desc;
    d9di_gemm_job *jobs;
    d9d_status st;

    D9D_TRY(d9di_cpu_offsets_check(p->op, offset, rows, e));
    jobs = calloc((size_t)d9di_i64_max(e, 1), sizeof(*jobs));
    if (jobs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the tiles of %lld experts", p->op,
                        (long long)e);
    for (int64_t i = 0; i < e; i++) {
        d9di_gemm_job *j = &jobs[i];
        int64_t first = offset[i], n = offset[i + 1] - first;

        j->m = p->c_is_w ? p->m : n;
        j->n = p->n;
        j->k = p->c_is_w ? n : p->k;
        j->a = d9di_elem_cat(g->at, p->a, first * p->a_row);
        j->b = d9di_elem_cat(g->bt, p->b, p->c_is_w ? first * p->b_row : i * p->w_size);
        if (p->a2 != NULL) {
            j->a2 = d9di_elem_cat(g->at, p->a2, first * p->a_row);
            j->b2 = d9di_elem_cat(g->bt, p->b2, i * p->w_size);
        }
        j->c = d9di_elem_at(g->ct, p->c, p->c_is_w ? i * p->w_size : first * p->n);
    }
    st = d9di_gemm_run(p->op, g, jobs, e);
    free(jobs);
    return st;
}

d9d_status d9d_ref_grouped_gemm(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *w,
                                const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                                int64_t out)
{
    grouped_args p = {.op = "grouped_gemm",
                      .desc = {.alpha = 1.0f, .at = t, .bt = t, .ct = t},
                      .n = out,
                      .k = in,
                      .a = x,
                      .b = w,
                      .c = y,
                      .a_row = in,
                      .w_size = in * out};

    (void)s;
    return grouped_run(&p, offset, rows, e);
}

d9d_status d9d_ref_grouped_gemm_dgrad(d9d_stream s, d9d_dtype t, void *dx, float beta, int n,
                                      const void *const *dy, const void *const *w,
                                      const int32_t *offset, int64_t rows, int64_t e, int64_t in,
                                      int64_t out)
{
    grouped_args p = {
        .op = "grouped_gemm_dgrad",
        .desc = {.alpha = 1.0f, .at = t, .bt = t, .ct = t, .trans_b = true, .beta = beta},
        .n = in,
        .k = out,
        .a = dy[0],
        .b = w[0],
        .c = dx,
        .a_row = out,
        .w_size = in * out,
        .a2 = n > 1 ? dy[1] : NULL,
        .b2 = n > 1 ? w[1] : NULL};

    (void)s;
    return grouped_run(&p, offset, rows, e);
}

d9d_status d9d_ref_grouped_gemm_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                      const void *x, const void *dy, const int32_t *offset,
                                      int64_t rows, int64_t e, int64_t in, int64_t out)
{
    grouped_args p = {
        .op = "grouped_gemm_wgrad",
        .desc = {.alpha = 1.0f, .at = t, .bt = t, .ct = gt, .trans_a = true, .beta = beta},
        .m = in,
        .n = out,
        .a = x,
        .b = dy,
        .c = dw,
        .a_row = in,
        .b_row = out,
        .w_size = in * out,
        .c_is_w = true};

    (void)s;
    return grouped_run(&p, offset, rows, e);
}
