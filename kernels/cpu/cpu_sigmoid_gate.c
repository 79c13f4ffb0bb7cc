/* cpu_sigmoid_gate.c - y = x sigmoid(g), one g a row.
 * With s = sigmoid(g): dx = dy s, dg = s (1 - s) sum(dy x). */
#include "cpu_common.h"
#include "cpu_math.h"

static float gate_of(d9d_dtype t, const void *g, int64_t row)
{
    float buf;

    return d9di_sigmoid(*d9di_in(t, g, row, 1, &buf));
}

d9d_status d9d_ref_sigmoid_gate(d9d_stream s, d9d_dtype t, void *y, const void *x, const void *g,
                                int64_t m, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_check_float("sigmoid_gate", t));
#pragma omp parallel for if (m * n > D9DI_SERIAL)
    for (int64_t r = 0; r < m; r++) {
        float gate = gate_of(t, g, r), buf[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
            int64_t c = d9di_min(n - i, D9DI_BLOCK), at = r * n + i;
            float *out = d9di_out(t, y, at, buf);

            d9di_row_scale(out, gate, d9di_in(t, x, at, c, buf), c);
            d9di_put(t, y, at, c, out);
        }
    }
    return D9D_OK;
}

d9d_status d9d_ref_sigmoid_gate_din(d9d_stream s, d9d_dtype t, void *dx, void *dg, const void *dy,
                                    const void *x, const void *g, int64_t m, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_check_float("sigmoid_gate_din", t));
#pragma omp parallel for if (m * n > D9DI_SERIAL)
    for (int64_t r = 0; r < m; r++) {
        float gate = gate_of(t, g, r), dot = 0.0f, bd[D9DI_BLOCK], bx[D9DI_BLOCK];

        for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
            int64_t c = d9di_min(n - i, D9DI_BLOCK), at = r * n + i;
            const float *d = d9di_in(t, dy, at, c, bd);
            float *out = d9di_out(t, dx, at, bd);

            dot += d9di_row_dot(d, d9di_in(t, x, at, c, bx), c);
            d9di_row_scale(out, gate, d, c);
            d9di_put(t, dx, at, c, out);
        }
        dot *= gate * (1.0f - gate);
        d9di_store(t, dg, r, 1, &dot);
    }
    return D9D_OK;
}
