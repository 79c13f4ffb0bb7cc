/* npy.h - reads a NumPy array file (NEP 1), which is mapped and not trusted.
 *
 *     "\x93NUMPY" 1 0, u16 length, {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28), }
 */
#ifndef D9DI_DATA_IO_NPY_H
#define D9DI_DATA_IO_NPY_H

#include "d9d/base/dtype.h"
#include "d9d/base/mem.h"

enum { D9DI_NPY_DIMS = 8 };

typedef struct d9di_npy {
    void *map; /* NULL: not a file's */
    size_t bytes;
    const void *data; /* in C order */
    d9d_dtype dtype;  /* F32, I64, I32 or U8 */
    int rank;         /* at least 1 */
    int64_t shape[D9DI_NPY_DIMS];
} d9di_npy; /* zero-initialised may be released */

/* EFORMAT: no such file, of a type or order that is not read, or of another size than its shape. */
d9d_status d9di_npy_open(const char *path, d9di_npy *out);
/* The same for bytes, which are borrowed. */
d9d_status d9di_npy_parse(const char *where, const void *bytes, size_t n, d9di_npy *out);
void d9di_npy_release(d9di_npy *a);

#endif
