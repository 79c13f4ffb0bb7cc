/* sigmoid_gate.c - y = x sigmoid(g), one g per row; rows of one element are processed in blocks.
 * With s = sigmoid(g): dx = dy s, dg = s (1 - s) sum(dy x). */
#include "cpu/common.h"
#include "cpu/math.h"

D9DI_CLONES static void block_forward(float *y, const float *x, const float *g, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * d9di_cpu_sigmoid(g[i]);
}

D9DI_CLONES static void block_bwd(float *dx, float *dg, const float *dy, const float *x,
                                  const float *g, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float d = dy[i], s = d9di_cpu_sigmoid(g[i]);

        dg[i] = d * x[i] * (s * (1.0f - s));
        dx[i] = d * s;
    }
}

static void gate_elementwise(d9d_dtype t, void *y, const void *x, const void *g, int64_t n)
{
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float bx[D9DI_BLOCK], bg[D9DI_BLOCK], *out = d9di_cpu_write_ptr(t, y, i, bx);

        block_forward(out, d9di_cpu_read(t, x, i, c, bx), d9di_cpu_read(t, g, i, c, bg), c);
        d9di_cpu_write(t, y, i, c, out);
    }
}

static void gate_elementwise_bwd(d9d_dtype t, void *dx, void *dg, const void *dy, const void *x,
                                 const void *g, int64_t n)
{
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        const int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float bd[D9DI_BLOCK], bx[D9DI_BLOCK], bg[D9DI_BLOCK];
        float *ox = d9di_cpu_write_ptr(t, dx, i, bd), *og = d9di_cpu_write_ptr(t, dg, i, bg);

        block_bwd(ox, og, d9di_cpu_read(t, dy, i, c, bd), d9di_cpu_read(t, x, i, c, bx),
                  d9di_cpu_read(t, g, i, c, bg), c);
        d9di_cpu_write(t, dx, i, c, ox);
        d9di_cpu_write(t, dg, i, c, og);
    }
}

static float row_gate(d9d_dtype t, const void *g, int64_t row)
{
    float buf;

    return d9di_cpu_sigmoid(*d9di_cpu_read(t, g, row, 1, &buf));
}

d9d_status d9d_ref_sigmoid_gate(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                                int64_t m, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("sigmoid_gate", t));
    if (n == 1) {
        gate_elementwise(t, y, x, g, m);
        return D9D_OK;
    }
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        float gate = row_gate(t, g, r), buf[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
            int64_t c = d9di_i64_min(n - i, D9DI_BLOCK), at = r * n + i;
            float *out = d9di_cpu_write_ptr(t, y, at, buf);

            d9di_cpu_row_scale(out, gate, d9di_cpu_read(t, x, at, c, buf), c);
            d9di_cpu_write(t, y, at, c, out);
        }
    }
    return D9D_OK;
}

d9d_status d9d_ref_sigmoid_gate_bwd(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                    const void *x, const void *g, int64_t m, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("sigmoid_gate_bwd", t));
    if (n == 1) {
        gate_elementwise_bwd(t, dx, dg, dy, x, g, m);
        return D9D_OK;
    }
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t r = 0; r < m; r++) {
        float gate = row_gate(t, g, r), dot = 0.0f, bd[D9DI_BLOCK], bx[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
            int64_t c = d9di_i64_min(n - i, D9DI_BLOCK), at = r * n + i;
            const float *d = d9di_cpu_read(t, dy, at, c, bd);
            float *out = d9di_cpu_write_ptr(t, dx, at, bd);

            dot += d9di_cpu_row_dot(d, d9di_cpu_read(t, x, at, c, bx), c);
            d9di_cpu_row_scale(out, gate, d, c);
            d9di_cpu_write(t, dx, at, c, out);
        }
        dot *= gate * (1.0f - gate);
        d9di_cpu_store(t, dg, r, 1, &dot);
    }
    return D9D_OK;
}
