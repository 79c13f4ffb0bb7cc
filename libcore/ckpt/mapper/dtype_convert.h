/* dtype_convert.h - converts elements of any dtype to numbers, and between floating types. */
#ifndef D9DI_CKPT_MAPPER_DTYPE_CONVERT_H
#define D9DI_CKPT_MAPPER_DTYPE_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/dtype.h"

/* Casts n elements through the listed types; the last is the type of `dst`.  All types are
 * floating; each step rounds to nearest even.  True if a result is not finite. */
bool d9di_cast_chain(const void *src, d9d_dtype from, const d9d_dtype *casts, int n_casts,
                     void *dst, size_t n);
/* Converts n elements of any type to double. */
void d9di_cast_to_f64(const void *src, d9d_dtype t, double *dst, size_t n);
/* Index of the first of n elements that is NaN or infinite; n if none is. */
size_t d9di_cast_first_nonfinite(const void *src, d9d_dtype t, size_t n);

/* Statistics of finite numbers that a cast made infinite. */
typedef struct d9di_cast_overflow {
    uint64_t n;
    double largest; /* largest magnitude */
} d9di_cast_overflow;

/* Finds overflows among n elements of type `t` at `cast`, whose values were `exact`.  Unless
 * `limit` is 0, replaces them by +-most. */
d9di_cast_overflow d9di_cast_overflow_find(const double *exact, d9d_dtype t, size_t n, void *cast,
                                           double limit);
/* The largest finite number of a type that can be cast to. */
double d9di_cast_max_finite(d9d_dtype t);

#endif /* D9DI_CKPT_MAPPER_DTYPE_CONVERT_H */
