/* swiglu.c - y = silu(gate) up, silu(g) = g / (1 + exp(-g)).
 * With s = sigmoid(g): dup = dy g s, dgate = dy up s (1 + g (1 - s)). */
#include "cpu/common.h"
#include "cpu/math.h"

D9DI_CLONES static void block_forward(float *y, const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + d9di_cpu_expf(-gate[i])) * up[i];
}

D9DI_CLONES static void block_bwd(float *dgate, float *dup, const float *dy, const float *gate,
                                  const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], d = dy[i], u = up[i], s = d9di_cpu_sigmoid(g);

        dup[i] = d * (g * s);
        dgate[i] = d * u * (s * (1.0f + g * (1.0f - s)));
    }
}

d9d_status d9d_ref_swiglu(d9d_stream s, d9d_dtype t, void *y, const void *gate, const void *up,
                          int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("swiglu", t));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float bg[D9DI_BLOCK], bu[D9DI_BLOCK], *out = d9di_cpu_write_ptr(t, y, i, bg);

        block_forward(out, d9di_cpu_read(t, gate, i, c, bg), d9di_cpu_read(t, up, i, c, bu), c);
        d9di_cpu_write(t, y, i, c, out);
    }
    return D9D_OK;
}

d9d_status d9d_ref_swiglu_bwd(d9d_stream s, d9d_dtype t, void *dgate, void *dup, const void *dy,
                              const void *gate, const void *up, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("swiglu_bwd", t));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(n - i, D9DI_BLOCK);
        float bd[D9DI_BLOCK], bg[D9DI_BLOCK], bu[D9DI_BLOCK];
        float *og = d9di_cpu_write_ptr(t, dgate, i, bg), *ou = d9di_cpu_write_ptr(t, dup, i, bu);

        block_bwd(og, ou, d9di_cpu_read(t, dy, i, c, bd), d9di_cpu_read(t, gate, i, c, bg),
                  d9di_cpu_read(t, up, i, c, bu), c);
        d9di_cpu_write(t, dgate, i, c, og);
        d9di_cpu_write(t, dup, i, c, ou);
    }
    return D9D_OK;
}
