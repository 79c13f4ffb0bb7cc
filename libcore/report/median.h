/* median.h - the middle of numbers. */
#ifndef D9DI_REPORT_MEDIAN_H
#define D9DI_REPORT_MEDIAN_H

#include <stddef.h>

/* Of n numbers, none of them NaN, which are sorted; NaN of none. */
double d9di_report_median(double *v, size_t n);

#endif /* D9DI_REPORT_MEDIAN_H */
