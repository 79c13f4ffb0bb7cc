/* gemm_per_head.c - a product for each head, whose matrices are some rows of one. */
#include "cpu/common.h"

static void load_rows(d9d_dtype t, float *y, const void *x, int64_t first, int64_t step, int64_t m,
                      int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        d9di_load(t, y + i * n, x, first + i * step, n);
}

d9d_status d9d_ref_heads_gemm(d9d_stream s, const d9d_heads_dims *n, void *y, const void *x,
                              const void *w)
{
    const int64_t rows = n->turned ? n->out : n->in, wide = n->turned ? n->in : n->out;
    const int64_t mx = n->m * n->in, my = n->m * n->out, mw = rows * wide;
    const int64_t floats = mx + my + mw + d9di_sgemm_room(n->m, n->out, n->in);
    float *room;

    (void)s;
    D9D_TRY(d9di_check_float("heads_gemm", n->t));
    if ((room = d9di_scratch_threads("heads_gemm", floats)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (n->heads * n->m * mw > D9DI_SERIAL)
    for (int64_t h = 0; h < n->heads; h++) {
        float *a = d9di_mine(room, floats), *c = a + mx, *b = c + my;

        load_rows(n->t, a, x, h * n->in, n->heads * n->in, n->m, n->in);
        load_rows(n->t, b, w, (h * n->step + n->first) * wide, wide, rows, wide);
        d9di_sgemm(false, n->turned, n->m, n->out, n->in, 1.0f, a, n->in, b, wide, 0.0f, c, n->out,
                   b + mw);
        for (int64_t i = 0; i < n->m; i++)
            d9di_store(n->t, y, (i * n->heads + h) * n->out, n->out, c + i * n->out);
    }
    free(room);
    return D9D_OK;
}
