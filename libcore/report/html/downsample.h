/* downsample.h - a long column as few buckets that lose no extreme.
 *
 *     values   3 2 9 2 | 2 2 2 1 | 1 - 1 1      4 values a bucket, "-" is not finite
 *     mean         4       1.75        1
 *     low, high   2 9       1 2       1 1
 *     lost         0         0         1
 */
#ifndef D9DI_REPORT_DOWNSAMPLE_H
#define D9DI_REPORT_DOWNSAMPLE_H

#include <stddef.h>

typedef struct d9di_downsample_bucket {
    double mean, low, high; /* NaN if no value is finite */
    size_t n, lost;         /* values; those that are not finite */
} d9di_downsample_bucket;

/* The number of buckets of n values, at most `max`, which is above 0. */
size_t d9di_downsample_count(size_t n, size_t max);
/* The first value of bucket i of `count`; that of bucket `count` is n.  Sizes differ by 1 at most.
 */
size_t d9di_downsample_begin(size_t i, size_t count, size_t n);
/* Bucket i of the values v[rows[0..n)]. */
d9di_downsample_bucket d9di_downsample_take(const double *v, const size_t *rows, size_t i,
                                            size_t count, size_t n);

#endif /* D9DI_REPORT_DOWNSAMPLE_H */
