/* gdn_gate.c - gate of the gated delta rule (Gated DeltaNet): g = -exp(rate) p, p = log(1 + exp(x +
 * bias)), for each of N heads.
 *
 *     dx = dbias = -dg exp(rate) sigmoid(x + bias)        drate = dg g
 */
#include "cpu/common.h"
#include "cpu/math.h"

enum { MIN_PART_ROWS = 64 }; /* fewest rows of a partial sum */

static float scalar_load(d9d_dtype t, const void *x, int64_t i)
{
    float v;

    d9di_cpu_load(t, &v, x, i, 1);
    return v;
}

/* log(1 + e^x), for large x as well. */
static float softplus(float x)
{
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

/* What an entry computes for one element. */
typedef float gate_fn(float x, float rate, float bias, float dg);

static float gate_value(float x, float rate, float bias, float dg)
{
    (void)dg;
    return -expf(rate) * softplus(x + bias);
}
static float gate_dx(float x, float rate, float bias, float dg)
{
    return -dg * expf(rate) * d9di_cpu_sigmoid(x + bias);
}
static float gate_drate(float x, float rate, float bias, float dg)
{
    return dg * gate_value(x, rate, bias, dg);
}

static float gate_element(gate_fn *f, d9d_dtype t, const void *x, const void *rate,
                          const void *bias, const float *dg, int64_t i, int64_t n)
{
    return f(scalar_load(t, x, i), scalar_load(t, rate, i % n), scalar_load(t, bias, i % n),
             dg != NULL ? dg[i] : 0.0f);
}

d9d_status d9d_ref_gdn_gate(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                            const void *bias, int64_t m, int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("gdn_gate", t));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < m * n; i++)
        g[i] = gate_element(gate_value, t, x, rate, bias, NULL, i, n);
    return D9D_OK;
}

d9d_status d9d_ref_gdn_gate_dgrad(d9d_stream s, d9d_dtype t, void *dx, const float *dg,
                                  const void *x, const void *rate, const void *bias, int64_t m,
                                  int64_t n)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("gdn_gate_dgrad", t));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < m * n; i++) {
        const float v = gate_element(gate_dx, t, x, rate, bias, dg, i, n);

        d9di_cpu_store(t, dx, i, 1, &v);
    }
    return D9D_OK;
}

d9d_status d9d_ref_gdn_gate_wgrad(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                                  bool of_bias, const float *dg, const void *x, const void *rate,
                                  const void *bias, int64_t m, int64_t n)
{
    const int64_t rows = d9di_i64_max(MIN_PART_ROWS, d9di_i64_ceil_div(m, D9DI_MAX_PARTS));
    const int64_t parts = d9di_i64_ceil_div(m, rows);
    gate_fn *f = of_bias ? gate_dx : gate_drate;
    float *sums;

    (void)s;
    D9D_TRY(d9di_args_check_float("gdn_gate_wgrad", t));
    D9D_TRY(d9di_args_check_float("gdn_gate_wgrad", gt));
    if ((sums = d9di_cpu_scratch_alloc("gdn_gate_wgrad", d9di_i64_max(parts, 1) * n)) == NULL)
        return D9D_ENOMEM;
    memset(sums, 0, (size_t)(d9di_i64_max(parts, 1) * n) * sizeof(*sums));
#pragma omp parallel for if (m * n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = p * rows * n; i < d9di_i64_min(m, (p + 1) * rows) * n; i++)
            sums[p * n + i % n] += gate_element(f, t, x, rate, bias, dg, i, n);
    for (int64_t p = 1; p < parts; p++)
        d9di_cpu_row_axpy(sums, 1.0f, sums + p * n, n);
    d9di_cpu_store_add(gt, dw, 0, n, beta, sums);
    free(sums);
    return D9D_OK;
}
