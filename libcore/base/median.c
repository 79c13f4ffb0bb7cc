/* median.c - see d9d/base/median.h. */
#include "d9d/base/median.h"

#include <math.h>
#include <stdlib.h>

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double d9d_median(double *v, size_t n)
{
    if (n == 0)
        return (double)NAN;
    qsort(v, n, sizeof(*v), compare_double);
    return n % 2 == 1 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}
