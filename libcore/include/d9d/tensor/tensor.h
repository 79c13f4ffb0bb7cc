/* tensor.h - dense row-major arrays on a device, with shared storage.
 *
 * A d9d_tensor is a small value: a shape, an element type, and a counted reference
 * to storage.  Copying the struct does not count; d9d_tensor_ref() does, and each
 * counted copy ends in d9d_tensor_release().
 *
 *     d9d_tensor x, rows;
 *     D9D_TRY(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(4, 8), &x));
 *     rows = d9d_tensor_rows(&x, 1, 2);        // a view [2, 8]; counted
 *     d9d_tensor_release(&rows);
 *     d9d_tensor_release(&x);
 *
 * Views are reshapes and spans of the first dimension, so data is always dense.  A
 * tensor whose storage is NULL has a shape only.  Zero-sized dimensions are allowed.
 * Reference counts are not atomic: a tensor belongs to one thread at a time.
 */
#ifndef D9D_TENSOR_TENSOR_H
#define D9D_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_shape {
    int ndim;
    int64_t dim[D9D_MAX_DIMS];
} d9d_shape;

/* D9D_SHAPE(4, 8) is a [4, 8] shape; D9D_SCALAR has no dimensions and one element. */
#define D9D_SHAPE(...)                                                                             \
    ((d9d_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define D9D_SCALAR ((d9d_shape){0, {0}})

/* Product of the dimensions; -1 when one is negative or the product does not fit. */
D9D_API int64_t d9d_shape_numel(const d9d_shape *s);
D9D_API bool d9d_shape_equal(const d9d_shape *a, const d9d_shape *b);
/* "[4, 8]", truncated to fit buf; returns buf. */
D9D_API char *d9d_shape_text(const d9d_shape *s, char *buf, size_t n);

typedef struct d9d_storage d9d_storage; /* reference-counted bytes on a device */

typedef struct d9d_tensor {
    d9d_storage *storage; /* NULL: shape only */
    uint64_t offset;      /* bytes from the start of the storage */
    d9d_dtype dtype;
    d9d_shape shape;
} d9d_tensor;

/* Allocate; the memory is not cleared.  EINVAL if the bytes of the shape overflow, EOOM if the
 * device has not enough memory. */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_alloc(d9d_device *dev, d9d_dtype t, d9d_shape shape,
                                                 d9d_tensor *out);
/* The same, in memory of d9d_device_alloc_loose(). */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_alloc_loose(d9d_device *dev, d9d_dtype t,
                                                       d9d_shape shape, d9d_tensor *out);
/* Allocate in pinned host memory (d9d_device_pin()), which kernels read and write over the bus: for
 * what is used once a step, such as optimizer states.  Sleep leaves it there.  EOOM. */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_alloc_pinned(d9d_device *dev, d9d_dtype t,
                                                        d9d_shape shape, d9d_tensor *out);
/* Allocate and upload numel elements of dtype t from host memory. */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_from_host(d9d_device *dev, d9d_dtype t, d9d_shape shape,
                                                     const void *host, d9d_tensor *out);
D9D_API d9d_tensor d9d_tensor_ref(const d9d_tensor *t);
/* Drop the reference and clear the struct; a cleared tensor is fine. */
D9D_API void d9d_tensor_release(d9d_tensor *t);

D9D_API void *d9d_tensor_data(const d9d_tensor *t);
D9D_API d9d_device *d9d_tensor_device(const d9d_tensor *t);
D9D_API int64_t d9d_tensor_numel(const d9d_tensor *t);
D9D_API uint64_t d9d_tensor_bytes(const d9d_tensor *t);
/* True when no other counted reference shares the storage. */
D9D_API bool d9d_tensor_is_unique(const d9d_tensor *t);

/* Views, each a counted reference.  reshape keeps the number of elements; rows() is rows [first,
 * first + n) of the first dimension. */
D9D_API d9d_tensor d9d_tensor_reshape(const d9d_tensor *t, d9d_shape shape);
D9D_API d9d_tensor d9d_tensor_rows(const d9d_tensor *t, int64_t first, int64_t n);

/* Offload the bytes of the storage to the host, and restore them, maybe at another address:
 *
 *     D9D_TRY(d9d_tensor_offload(&x));
 *     d9d_device_trim(dev);
 *     ...
 *     D9D_TRY(d9d_tensor_restore(&x));
 *
 * Every tensor and view of x's storage stays valid but has no data meanwhile: d9d_tensor_data() is
 * NULL.  Offloading is enqueued on the compute stream and does not block; restoring blocks until
 * the bytes have arrived.  Offloading twice, and restoring what is not offloaded, is EINVAL.  After
 * EOOM the storage is as it was. */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_offload(const d9d_tensor *t);
D9D_API D9D_MUST_USE d9d_status d9d_tensor_restore(const d9d_tensor *t);
D9D_API bool d9d_tensor_is_offloaded(const d9d_tensor *t);

/* The same for every tensor on the device that is not offloaded, or that is; those in pinned host
 * memory stay.  If offloading fails,
 * all of them are restored; if restoring fails, some are, and the call may be repeated. */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_offload_all(d9d_device *dev);
D9D_API D9D_MUST_USE d9d_status d9d_tensor_restore_all(d9d_device *dev);

/* Copy all elements to host memory, each converted to the nearest float from any dtype. */
D9D_API D9D_MUST_USE d9d_status d9d_tensor_to_f32(const d9d_tensor *t, float *host);
/* The same for n elements in host memory. */
D9D_API void d9d_tensor_elements_to_f32(d9d_dtype dtype, const void *host, int64_t n, float *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TENSOR_TENSOR_H */
