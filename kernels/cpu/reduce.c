/* reduce.c - float64 sums, and the search for NaN and infinity.
 *
 * An array is divided into at most D9DI_MAX_PARTS parts by its length. A part is summed in eight
 * lanes, and parts are added in order.
 */
#include "cpu/common.h"
#include "cpu/math.h"

enum { LANES = 8 };

/* Elements per part: a multiple of a block. */
static int64_t part_len(int64_t n)
{
    int64_t blocks = d9di_i64_ceil_div(n, D9DI_BLOCK);

    return D9DI_BLOCK * d9di_i64_max(8, d9di_i64_ceil_div(blocks, D9DI_MAX_PARTS));
}

D9DI_CLONES static void lanes_add_sum(double lane[LANES], const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j];
}

D9DI_CLONES static void lanes_add_squares(double lane[LANES], const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j] * (double)x[i + j];
}

typedef void (*lane_add_fn)(double lane[LANES], const float *x, int64_t n);

static double part_reduce(d9d_dtype t, const void *x, int64_t first, int64_t end, lane_add_fn add)
{
    double lane[LANES] = {0}, sum = 0.0;

    for (int64_t i = first; i < end; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(end - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];

        add(lane, d9di_cpu_read(t, x, i, c, buf), c);
    }
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

static d9d_status reduce_array(const char *op, double *out, double beta, d9d_dtype t, const void *x,
                               int64_t n, lane_add_fn add)
{
    double part[D9DI_MAX_PARTS], sum = 0.0;
    int64_t size = part_len(n), parts = d9di_i64_ceil_div(n, size);

    D9D_TRY(d9di_args_check_float(op, t));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++)
        part[p] = part_reduce(t, x, p * size, d9di_i64_min(n, (p + 1) * size), add);
    for (int64_t p = 0; p < parts; p++)
        sum += part[p];
    out[0] = (beta != 0.0 ? out[0] : 0.0) + sum;
    return D9D_OK;
}

d9d_status d9d_ref_sum_squares(d9d_stream s, double *out, d9d_dtype t,
                               const d9d_sum_squares_array *list, int64_t count)
{
    (void)s;
    for (int64_t i = 0; i < count; i++)
        D9D_TRY(
            reduce_array("sum_squares", &out[i], 0.0, t, list[i].x, list[i].n, lanes_add_squares));
    return D9D_OK;
}

d9d_status d9d_ref_sum_ordered(d9d_stream s, double *out, const double *x, int64_t n)
{
    double sum = 0.0;

    (void)s;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    *out = sum;
    return D9D_OK;
}

d9d_status d9d_ref_sum(d9d_stream s, double *out, double beta, d9d_dtype t, const void *x,
                       int64_t n)
{
    (void)s;
    return reduce_array("sum", out, beta, t, x, n, lanes_add_sum);
}

/* True if any element has all exponent bits set. */
D9DI_CLONES static bool block_has_nonfinite(const float *x, int64_t n)
{
    uint32_t found = 0;

    for (int64_t i = 0; i < n; i++)
        found |= (d9di_cpu_float_to_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return found != 0;
}

static int64_t find_first_nonfinite(d9d_dtype t, const void *x, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i += D9DI_BLOCK) {
        int64_t c = d9di_i64_min(end - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];
        const float *block = d9di_cpu_read(t, x, i, c, buf);

        if (block_has_nonfinite(block, c))
            for (int64_t j = 0; j < c; j++)
                if (block_has_nonfinite(block + j, 1))
                    return i + j;
    }
    return -1;
}

d9d_status d9d_ref_find_nonfinite(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n)
{
    int64_t found[D9DI_MAX_PARTS], size = part_len(n), parts = d9di_i64_ceil_div(n, size);

    (void)s;
    D9D_TRY(d9di_args_check_float("find_nonfinite", t));
#pragma omp parallel for if (n > D9DI_MIN_PARALLEL)
    for (int64_t p = 0; p < parts; p++)
        found[p] = find_first_nonfinite(t, x, p * size, d9di_i64_min(n, (p + 1) * size));
    out[0] = -1;
    for (int64_t p = 0; p < parts && out[0] < 0; p++)
        out[0] = found[p];
    return D9D_OK;
}
