/* downsample.c - see report/html/downsample.h. */
#include "report/html/downsample.h"

#include <math.h>
#include <stdint.h>

size_t d9di_downsample_count(size_t n, size_t max)
{
    return n < max ? n : max;
}

size_t d9di_downsample_begin(size_t i, size_t count, size_t n)
{
    const size_t each = n / count, longer = n % count; /* the first ones have one value more */

    return i * each + (i < longer ? i : longer);
}

d9di_downsample_bucket d9di_downsample_take(const double *v, const size_t *rows, size_t i,
                                            size_t count, size_t n)
{
    const size_t begin = d9di_downsample_begin(i, count, n);
    const size_t end = d9di_downsample_begin(i + 1, count, n);
    d9di_downsample_bucket b = {(double)NAN, (double)NAN, (double)NAN, end - begin, 0};
    double sum = 0;

    for (size_t k = begin; k < end; k++) {
        const double x = v[rows[k]];

        if (!isfinite(x)) {
            b.lost++;
            continue;
        }
        /* Divided first: the sum of values near the largest stays finite. */
        sum += x / (double)(end - begin);
        b.low = fmin(b.low, x);
        b.high = fmax(b.high, x);
    }
    if (b.lost < b.n)
        b.mean = sum * ((double)b.n / (double)(b.n - b.lost));
    return b;
}
