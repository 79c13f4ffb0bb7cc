/* dtype_convert.h - elements of any dtype as numbers, and between floating types. */
#ifndef D9DI_CKPT_MAPPER_DTYPE_CONVERT_H
#define D9DI_CKPT_MAPPER_DTYPE_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/dtype.h"

/* n elements through the listed types, the last of which is the type of `dst`; every type
 * is floating and each step rounds to nearest even.  True where a result is not finite. */
bool d9di_cast_chain(const void *src, d9d_dtype from, const d9d_dtype *casts, int n_casts,
                     void *dst, size_t n);
/* n elements of any type as doubles. */
void d9di_cast_to_f64(const void *src, d9d_dtype t, double *dst, size_t n);
/* The first of n elements that is NaN or infinite; n when there is none. */
size_t d9di_cast_first_nonfinite(const void *src, d9d_dtype t, size_t n);

/* Finite numbers that became infinite. */
typedef struct d9di_cast_overflow {
    uint64_t n;
    double largest; /* of their magnitudes */
} d9di_cast_overflow;

/* Of n elements of type `t` at `cast`, which were `exact`; they become +-most, unless that is 0. */
d9di_cast_overflow d9di_cast_overflow_find(const double *exact, d9d_dtype t, size_t n, void *cast,
                                           double most);
/* The largest number of a type that can be cast to. */
double d9di_cast_max_finite(d9d_dtype t);

#endif /* D9DI_CKPT_MAPPER_DTYPE_CONVERT_H */
