/* median.h - the median. */
#ifndef D9DI_REPORT_MEDIAN_H
#define D9DI_REPORT_MEDIAN_H

#include <stddef.h>

/* The median of n numbers, which it sorts; none may be NaN.  NaN if n is 0. */
double d9di_report_median(double *v, size_t n);

#endif /* D9DI_REPORT_MEDIAN_H */
