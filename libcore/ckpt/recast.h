/* recast.h - elements of any dtype as numbers, and between floating types. */
#ifndef D9DI_CKPT_RECAST_H
#define D9DI_CKPT_RECAST_H

#include <stddef.h>

#include "d9d/base/dtype.h"

/* n elements through the listed types, the last of which is the type of `dst`; every type
 * is floating and each step rounds to nearest even. */
void d9di_cast(const void *src, d9d_dtype from, const d9d_dtype *casts, int n_casts, void *dst,
               size_t n);
/* n elements of any type as doubles. */
void d9di_to_double(const void *src, d9d_dtype t, double *dst, size_t n);
/* The first of n elements that is NaN or infinite; n when there is none. */
size_t d9di_first_nonfinite(const void *src, d9d_dtype t, size_t n);

#endif /* D9DI_CKPT_RECAST_H */
