/* strided.h - strided copy: copies a box of elements between two layouts. */
#ifndef D9DI_CKPT_MAPPER_STRIDED_H
#define D9DI_CKPT_MAPPER_STRIDED_H

#include <stddef.h>
#include <stdint.h>

/* For every index x of the box `size`: dst[sum x * dst_stride] = src[sum x * src_stride].  Elements
 * have `width` bytes (1, 2, 4 or 8); strides are in elements; up to D9D_MAX_DIMS dimensions, the
 * last being the innermost of dst.  Transposes are tiled. */
void d9di_strided_copy(int ndim, const int64_t *size, size_t width, const void *src,
                       const int64_t *src_stride, void *dst, const int64_t *dst_stride);

#endif /* D9DI_CKPT_MAPPER_STRIDED_H */
