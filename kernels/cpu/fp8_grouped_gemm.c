/* fp8_grouped_gemm.c - products of quantised rows and matrices of experts: both are dequantised to
 * float32, which is exact, and multiplied in one pool of tiles.  Sums keep all bits, also with
 * fast_accum. */
#include "common/fp8_scale.h"
#include "cpu/common.h"

/* The part of an operand that an expert's product reads. */
typedef struct part {
    int64_t first, rows; /* rows */
    int64_t from, k;     /* elements of each */
} part;

/* Those of expert i, whose rows are [first, first + n). */
static void parts_of(const d9d_fp8_grouped_dims *g, int64_t i, int64_t first, int64_t n, part *a,
                     part *b)
{
    switch (g->form) {
    case D9D_FP8_GROUPED_FWD:
        *a = (part){first, n, 0, g->in};
        *b = (part){0, g->out, i * g->in, g->in};
        return;
    case D9D_FP8_GROUPED_DGRAD:
        *a = (part){first, n, 0, g->out};
        *b = (part){i * g->in, g->in, 0, g->out};
        return;
    default: *a = (part){0, g->in, first, n}; *b = (part){0, g->out, first, n};
    }
}

/* The values of a part, which follow those at *next. */
static const float *part_read(const d9d_fp8_operand *x, const part *p, float **next)
{
    float *const y = *next;

    d9di_cpu_fp8_dequantise(x, p->first, p->rows, p->from, p->k, y);
    *next += p->rows * p->k;
    return y;
}

d9d_status d9d_ref_fp8_grouped_gemm(d9d_stream s, const d9d_fp8_grouped_dims *g,
                                    const d9d_fp8_operand *a, const d9d_fp8_operand *b, void *c)
{
    const d9di_gemm_desc desc = {
        .at = D9D_F32, .bt = D9D_F32, .ct = g->ct, .trans_b = true, .alpha = 1.0f, .beta = g->beta};
    const d9di_fp8_grouped_shape shape = d9di_fp8_grouped_shape_of(g);
    const int64_t e = d9di_i64_max(g->e, 1);
    d9di_gemm_job *jobs = NULL;
    float *x = NULL, *next;
    int64_t at = 0; /* elements of C before the expert's */
    d9d_status st;

    (void)s;
    D9D_TRY(d9di_args_check_fp8_grouped_gemm(g, a, b));
    D9D_TRY(d9di_cpu_offsets_check("fp8_grouped_gemm", g->offset, g->rows, g->e));
    x = d9di_cpu_scratch_alloc("fp8_grouped_gemm",
                               shape.a_rows * shape.a_k + shape.b_rows * shape.b_k);
    D9D_TRY(x == NULL ? D9D_ENOMEM : D9D_OK);
    jobs = calloc((size_t)e, sizeof(*jobs));
    if (jobs == NULL)
        D9D_TRY_OR(st,
                   D9D_FAIL(D9D_ENOMEM, "fp8_grouped_gemm: no memory for the tiles of %lld experts",
                            (long long)e),
                   out);
    next = x;
    for (int64_t i = 0; i < g->e; i++) {
        part pa, pb;

        parts_of(g, i, g->offset[i], g->offset[i + 1] - g->offset[i], &pa, &pb);
        jobs[i] = (d9di_gemm_job){.a = part_read(a, &pa, &next),
                                  .b = part_read(b, &pb, &next),
                                  .c = d9di_elem_at(g->ct, c, at),
                                  .m = pa.rows,
                                  .n = pb.rows,
                                  .k = pa.k};
        at += pa.rows * pb.rows;
    }
    st = d9di_gemm_run("fp8_grouped_gemm", &desc, jobs, g->e);
out:
    free(jobs);
    free(x);
    return st;
}
