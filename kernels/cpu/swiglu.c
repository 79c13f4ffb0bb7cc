/* swiglu.c - y = silu(gate) up, silu(g) = g / (1 + exp(-g)).
 * With s = sigmoid(g): dup = dy g s, dgate = dy up s (1 + g (1 - s)). */
#include "cpu/common.h"
#include "cpu/math.h"

D9DI_CLONES static void forward(float *y, const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + d9di_expf(-gate[i])) * up[i];
}

D9DI_CLONES static void backward(float *dgate, float *dup, const float *dy, const float *gate,
                                 const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], d = dy[i], u = up[i], s = d9di_sigmoid(g);

        dup[i] = d * (g * s);
        dgate[i] = d * u * (s * (1.0f + g * (1.0f - s)));
    }
}

d9d_status d9d_ref_swiglu(d9d_stream s, d9d_dtype t, void *y, const void *gate, const void *up,
                          int64_t n)
{
    (void)s;
    D9D_TRY(d9di_check_float("swiglu", t));
#pragma omp parallel for if (n > D9DI_SERIAL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_min(n - i, D9DI_BLOCK);
        float bg[D9DI_BLOCK], bu[D9DI_BLOCK], *out = d9di_out(t, y, i, bg);

        forward(out, d9di_in(t, gate, i, c, bg), d9di_in(t, up, i, c, bu), c);
        d9di_put(t, y, i, c, out);
    }
    return D9D_OK;
}

d9d_status d9d_ref_swiglu_din(d9d_stream s, d9d_dtype t, void *dgate, void *dup, const void *dy,
                              const void *gate, const void *up, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_check_float("swiglu_din", t));
#pragma omp parallel for if (n > D9DI_SERIAL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_min(n - i, D9DI_BLOCK);
        float bd[D9DI_BLOCK], bg[D9DI_BLOCK], bu[D9DI_BLOCK];
        float *og = d9di_out(t, dgate, i, bg), *ou = d9di_out(t, dup, i, bu);

        backward(og, ou, d9di_in(t, dy, i, c, bd), d9di_in(t, gate, i, c, bg),
                 d9di_in(t, up, i, c, bu), c);
        d9di_put(t, dgate, i, c, og);
        d9di_put(t, dup, i, c, ou);
    }
    return D9D_OK;
}
