/* norm_rope.c - norm of each head, then RoPE; see rms_norm.c and rope.c. Backward rotates dy back,
 * and then computes the norm's gradient. */
#include "cpu/norm.h"

enum { MIN_PART_TOKENS = 16 }; /* fewest tokens of a partial sum of dw */

/* A thread's scratch: the angles of a token, and rows. */
typedef struct norm_rope_rows {
    float *co, *si, *a, *b, *c;
} norm_rope_rows;

static int64_t rows_alloc(const d9d_qk_norm_rope_dims *n)
{
    return n->r + 3 * n->d;
}

static norm_rope_rows rows_load(const d9d_qk_norm_rope_dims *n, float *at, int64_t token,
                                float sign)
{
    norm_rope_rows m = {at, at + n->r / 2, at + n->r, at + n->r + n->d, at + n->r + 2 * n->d};

    d9di_cpu_rope_angles(m.co, m.si, n->inv_freq, (float)n->positions[token], n->mscale, sign,
                         n->r / 2);
    return m;
}

static void row_rotate(const d9d_qk_norm_rope_dims *n, const norm_rope_rows *m, float *y,
                       const float *x)
{
    d9di_cpu_rope_rotate(n->interleaved, y, x, m->co, m->si, n->r / 2);
    memcpy(y + n->r, x + n->r, (size_t)(n->d - n->r) * sizeof(*y));
}

d9d_status d9d_ref_norm_rope(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                             const void *x, const void *w)
{
    float *wf = NULL, *scratch = NULL;
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("norm_rope", n->t));
    if ((wf = d9di_cpu_norm_weights("norm_rope", n->t, w, n->d, n->zero_centred)) == NULL ||
        (scratch = d9di_cpu_scratch_alloc_threads("norm_rope", rows_alloc(n))) == NULL)
        goto out;
#pragma omp parallel for if (n->m * n->heads * n->d > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n->m; i++) {
        const norm_rope_rows m =
            rows_load(n, d9di_cpu_scratch_of_thread(scratch, rows_alloc(n)), i, 1.0f);

        for (int64_t r = i * n->heads; r < (i + 1) * n->heads; r++) {
            const float *row = d9di_cpu_read(n->t, x, r * n->d, n->d, m.a);
            float *o = d9di_cpu_write_ptr(n->t, y, r * n->d, m.c);

            const float scale =
                1.0f / sqrtf(d9di_cpu_row_dot(row, row, n->d) / (float)n->d + n->eps);

            d9di_cpu_norm_scale_row(m.b, row, wf, scale, n->d);
            if (inv != NULL)
                inv[r] = scale;
            row_rotate(n, &m, o, m.b);
            d9di_cpu_write(n->t, y, r * n->d, n->d, o);
        }
    }
    st = D9D_OK;
out:
    free(scratch);
    free(wf);
    return st;
}

/* Backward of a row: adds to dw and writes dx; either may be NULL. */
static void row_bwd(const d9d_qk_norm_rope_dims *n, const norm_rope_rows *m, int64_t r, void *dx,
                    float *dw, const void *dy, const void *x, const float *wf, float inv)
{
    const float *row;

    row_rotate(n, m, m->b, d9di_cpu_read(n->t, dy, r * n->d, n->d, m->a));
    row = d9di_cpu_read(n->t, x, r * n->d, n->d, m->a);
    if (dw != NULL)
        d9di_cpu_norm_dw_row(dw, m->b, row, inv, n->d);
    if (dx == NULL)
        return;
    d9di_cpu_norm_mul_row(m->b, m->b, wf, n->d);
    d9di_cpu_norm_dx_row(m->c, m->b, row, inv,
                         inv * inv * d9di_cpu_row_dot(m->b, row, n->d) / (float)n->d, n->d);
    d9di_cpu_store(n->t, dx, r * n->d, n->d, m->c);
}

d9d_status d9d_ref_norm_rope_bwd(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx,
                                 d9d_dtype gt, void *dw, float beta, const void *dy, const void *x,
                                 const void *w, const float *inv)
{
    const int64_t tokens = d9di_i64_max(MIN_PART_TOKENS, d9di_i64_ceil_div(n->m, D9DI_MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(n->m, tokens), size = n->d + rows_alloc(n);
    float *wf = NULL, *scratch = NULL; /* per part: its sum, then rows */
    d9d_status st = D9D_ENOMEM;

    (void)s;
    D9D_TRY(d9di_args_check_float("norm_rope_bwd", n->t));
    D9D_TRY(d9di_args_check_float("norm_rope_bwd", gt));
    if ((wf = d9di_cpu_norm_weights("norm_rope_bwd", n->t, w, n->d, n->zero_centred)) == NULL ||
        (scratch = d9di_cpu_scratch_alloc("norm_rope_bwd", d9di_i64_max(parts, 1) * size)) == NULL)
        goto out;
    memset(scratch, 0, (size_t)n->d * sizeof(float));
#pragma omp parallel for if (n->m * n->heads * n->d > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++) {
        float *part = scratch + p * size;

        memset(part, 0, (size_t)n->d * sizeof(float));
        for (int64_t i = p * tokens; i < d9di_i64_min(n->m, (p + 1) * tokens); i++) {
            const norm_rope_rows m = rows_load(n, part + n->d, i, -1.0f);

            for (int64_t r = i * n->heads; r < (i + 1) * n->heads; r++)
                row_bwd(n, &m, r, dx, dw != NULL ? part : NULL, dy, x, wf, inv[r]);
        }
    }
    for (int64_t p = 1; p < parts && dw != NULL; p++)
        d9di_cpu_row_axpy(scratch, 1.0f, scratch + p * size, n->d);
    if (dw != NULL)
        d9di_cpu_store_add(gt, dw, 0, n->d, beta, scratch);
    st = D9D_OK;
out:
    free(scratch);
    free(wf);
    return st;
}
