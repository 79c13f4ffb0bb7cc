/* argmax.c - argmax of each row. */
#include <math.h>

#include "cpu/common.h"

enum { LANES = 16, BLOCK = 1024 };

/* True if x is larger than y, or x is NaN and y is not. */
static bool is_larger(float x, float y)
{
    return !isnan(y) && !(x <= y);
}

static int64_t block_argmax(const float *x, int64_t first, int64_t end)
{
    int64_t best = first;

    for (int64_t i = first + 1; i < end; i++)
        if (is_larger(x[i], x[best]))
            best = i;
    return best;
}

/* True if some element of a block is not at most `best`. */
static bool block_has_larger(const float *x, int64_t first, int64_t end, float best)
{
    int lane[LANES] = {0}, any = 0;
    int64_t i = first;

    for (; i + LANES <= end; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] |= !(x[i + j] <= best);
    for (; i < end; i++)
        any |= !(x[i] <= best);
    for (int j = 0; j < LANES; j++)
        any |= lane[j];
    return any;
}

d9d_status d9d_ref_argmax(d9d_stream s, int32_t *at, float *value, const float *x, int64_t m,
                          int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < m; i++) {
        const float *row = x + i * n;
        int64_t best = 0;

        for (int64_t first = 0; first < n; first += BLOCK) {
            const int64_t end = n - first < BLOCK ? n : first + BLOCK;

            if (block_has_larger(row, first, end, row[best])) {
                const int64_t here = block_argmax(row, first, end);

                best = is_larger(row[here], row[best]) ? here : best;
            }
        }
        at[i] = (int32_t)best;
        value[i] = row[best];
    }
    return D9D_OK;
}
