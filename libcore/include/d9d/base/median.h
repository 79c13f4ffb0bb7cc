/* median.h - the median. */
#ifndef D9D_BASE_MEDIAN_H
#define D9D_BASE_MEDIAN_H

#include <stddef.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The median of n numbers: the mean of the two in the middle if n is even, NaN if n is 0. None may
 * be NaN. Sorts v. */
D9D_API double d9d_median(double *v, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_MEDIAN_H */
