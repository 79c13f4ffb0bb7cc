/* median.c - see report/median.h. */
#include "report/median.h"

#include <math.h>
#include <stdlib.h>

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double d9di_report_median(double *v, size_t n)
{
    if (n == 0)
        return (double)NAN;
    qsort(v, n, sizeof(*v), compare_double);
    return n % 2 == 1 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}
