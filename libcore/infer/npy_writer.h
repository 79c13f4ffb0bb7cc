/* npy_writer.h - the header of a .npy file: numpy's format 1.0, little endian, C order. */
#ifndef D9DI_INFER_NPY_WRITER_H
#define D9DI_INFER_NPY_WRITER_H

#include "d9d/base/mem.h"

/* Appends the header of a float32 array of this shape, a multiple of 64 bytes; the elements follow
 * it. */
d9d_status d9di_npy_writer_header(int ndim, const int64_t *shape, d9d_buf *out);

#endif /* D9DI_INFER_NPY_WRITER_H */
