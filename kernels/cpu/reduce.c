/* reduce.c - sums in float64, and the search for what is not finite.
 *
 * An array is cut into at most D9DI_PARTS parts by its length; a part is summed in
 * eight lanes, and parts are added in order. */
#include "cpu/common.h"
#include "cpu/math.h"

enum { LANES = 8 };

/* Elements of a part: a multiple of a block. */
static int64_t part_of(int64_t n)
{
    int64_t blocks = d9di_ceil_div(n, D9DI_BLOCK);

    return D9DI_BLOCK * d9di_max(8, d9di_ceil_div(blocks, D9DI_PARTS));
}

D9DI_CLONES static void add_lanes(double lane[LANES], const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j];
}

D9DI_CLONES static void add_squares(double lane[LANES], const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j] * (double)x[i + j];
}

typedef void (*adder)(double lane[LANES], const float *x, int64_t n);

static double part_sum(d9d_dtype t, const void *x, int64_t first, int64_t end, adder add)
{
    double lane[LANES] = {0}, sum = 0.0;

    for (int64_t i = first; i < end; i += D9DI_BLOCK) {
        int64_t c = d9di_min(end - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];

        add(lane, d9di_in(t, x, i, c, buf), c);
    }
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

static d9d_status reduce(const char *op, double *out, double beta, d9d_dtype t, const void *x,
                         int64_t n, adder add)
{
    double part[D9DI_PARTS], sum = 0.0;
    int64_t size = part_of(n), parts = d9di_ceil_div(n, size);

    D9D_TRY(d9di_check_float(op, t));
#pragma omp parallel for if (n > D9DI_SERIAL)
    for (int64_t p = 0; p < parts; p++)
        part[p] = part_sum(t, x, p * size, d9di_min(n, (p + 1) * size), add);
    for (int64_t p = 0; p < parts; p++)
        sum += part[p];
    out[0] = (beta != 0.0 ? out[0] : 0.0) + sum;
    return D9D_OK;
}

d9d_status d9d_ref_sum_squares(d9d_stream s, double *out, d9d_dtype t, const d9d_array *list,
                               int64_t count)
{
    (void)s;
    for (int64_t i = 0; i < count; i++)
        D9D_TRY(reduce("sum_squares", &out[i], 0.0, t, list[i].x, list[i].n, add_squares));
    return D9D_OK;
}

d9d_status d9d_ref_add_up(d9d_stream s, double *out, const double *x, int64_t n)
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
    return reduce("sum", out, beta, t, x, n, add_lanes);
}

/* Whether an element has all bits of the exponent set. */
D9DI_CLONES static bool any_nonfinite(const float *x, int64_t n)
{
    uint32_t found = 0;

    for (int64_t i = 0; i < n; i++)
        found |= (d9di_float_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return found != 0;
}

static int64_t first_nonfinite(d9d_dtype t, const void *x, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i += D9DI_BLOCK) {
        int64_t c = d9di_min(end - i, D9DI_BLOCK);
        float buf[D9DI_BLOCK];
        const float *block = d9di_in(t, x, i, c, buf);

        if (any_nonfinite(block, c))
            for (int64_t j = 0; j < c; j++)
                if (any_nonfinite(block + j, 1))
                    return i + j;
    }
    return -1;
}

d9d_status d9d_ref_find_nonfinite(d9d_stream s, int64_t *out, d9d_dtype t, const void *x, int64_t n)
{
    int64_t found[D9DI_PARTS], size = part_of(n), parts = d9di_ceil_div(n, size);

    (void)s;
    D9D_TRY(d9di_check_float("find_nonfinite", t));
#pragma omp parallel for if (n > D9DI_SERIAL)
    for (int64_t p = 0; p < parts; p++)
        found[p] = first_nonfinite(t, x, p * size, d9di_min(n, (p + 1) * size));
    out[0] = -1;
    for (int64_t p = 0; p < parts && out[0] < 0; p++)
        out[0] = found[p];
    return D9D_OK;
}
