/* safetensors.h - one .safetensors file: 8 bytes of header length (little endian), that many bytes
 * of JSON, then the tensors' bytes without holes.
 *
 *     [u64 n][{"__metadata__": {...}, "a": {"dtype": "F32", "shape": [2, 3],
 *              "data_offsets": [0, 24]}, ...} padded with spaces][bytes]
 *
 * Reading trusts nothing. d9d_safetensors_open() checks everything before any tensor is read.
 * EFORMAT, with one sentence that names file and tensor, for these errors: a header over 100 MB; a
 * duplicate name; an unknown dtype; a product that overflows; a span that differs from shape times
 * dtype; overlaps; holes; bytes past the end; a name with control characters or invalid UTF-8.
 * Memory is a small multiple of the header.
 */
#ifndef D9D_CKPT_SAFETENSORS_SAFETENSORS_H
#define D9D_CKPT_SAFETENSORS_SAFETENSORS_H

#include "d9d/base/dtype.h"
#include "d9d/base/fs.h"
#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_SAFETENSORS_MAX_HEADER 100000000u /* bytes; the format's own limit */

typedef struct d9d_safetensors_tensor {
    const char *name; /* borrowed from the file */
    d9d_dtype dtype;
    int ndim;
    int64_t shape[D9D_MAX_DIMS];
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t bytes;
} d9d_safetensors_tensor;

typedef struct d9d_safetensors_file d9d_safetensors_file;

D9D_API D9D_MUST_USE d9d_status d9d_safetensors_open(const char *path, d9d_safetensors_file **out);
D9D_API void d9d_safetensors_close(d9d_safetensors_file *f);
D9D_API const char *d9d_safetensors_path(const d9d_safetensors_file *f);
/* Tensors in order of offset. */
D9D_API size_t d9d_safetensors_count(const d9d_safetensors_file *f);
D9D_API const d9d_safetensors_tensor *d9d_safetensors_at(const d9d_safetensors_file *f, size_t i);
D9D_API const d9d_safetensors_tensor *d9d_safetensors_find(const d9d_safetensors_file *f,
                                                           const char *name);
/* The value of a __metadata__ key, or NULL. */
D9D_API const char *d9d_safetensors_metadata(const d9d_safetensors_file *f, const char *key);
/* Reads n bytes at byte `at` of the tensor.  Thread-safe. */
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_read(const d9d_safetensors_file *f,
                                                     const d9d_safetensors_tensor *t, uint64_t at,
                                                     void *dst, uint64_t n);
D9D_API int d9d_safetensors_fd(const d9d_safetensors_file *f); /* for posix_fadvise() and fstat() */

/* Bytes of a shape, checked: false if a dimension is negative or a product overflows. */
D9D_API bool d9d_safetensors_shape_bytes(d9d_dtype t, int ndim, const int64_t *shape,
                                         uint64_t *out);
/* "BF16 [151936, 1024]", for messages and tables.  Returns `out`. */
#define D9D_SAFETENSORS_DESCRIBE 160
D9D_API const char *d9d_safetensors_describe(const d9d_safetensors_tensor *t,
                                             char out[D9D_SAFETENSORS_DESCRIBE]);

/* --- writing ------------------------------------------------------------ */

/* Declare every tensor (numbered from 0), then write bytes in any order, then end.  The header is
 * known before the first byte, so the file is written in one pass.  In the file, wider elements
 * come first, otherwise in order of declaration, so that all tensors are aligned. */
typedef struct d9d_safetensors_writer d9d_safetensors_writer;
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_create(d9d_safetensors_writer **out);
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_metadata(d9d_safetensors_writer *w,
                                                                const char *key, const char *value);
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_declare(d9d_safetensors_writer *w,
                                                               const char *name, d9d_dtype t,
                                                               int ndim, const int64_t *shape);
/* Computes the file's layout without creating the file; `path` is for error messages.  No
 * declarations after this. */
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_layout(d9d_safetensors_writer *w,
                                                              const char *path);
/* After layout: the header as it is written, including its length prefix (borrowed); the index of
 * the k-th tensor in the file; the file offset of the i-th declared tensor; and the size of the
 * file. */
D9D_API const char *d9d_safetensors_writer_header(const d9d_safetensors_writer *w, size_t *n);
D9D_API size_t d9d_safetensors_writer_order(const d9d_safetensors_writer *w, size_t k);
D9D_API uint64_t d9d_safetensors_writer_offset(const d9d_safetensors_writer *w, size_t i);
D9D_API uint64_t d9d_safetensors_writer_bytes(const d9d_safetensors_writer *w);
/* Computes the layout, creates the file, writes its header and sets its length. */
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_begin(d9d_safetensors_writer *w,
                                                             const char *path);
/* Writes n bytes at byte `at` of the i-th declared tensor.  Thread-safe for disjoint spans. */
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_write(d9d_safetensors_writer *w, size_t i,
                                                             uint64_t at, const void *src,
                                                             uint64_t n);
/* Makes what was written durable (fsync), for a host that d9d_outdir_commit() does not run on. */
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_sync(d9d_safetensors_writer *w);
/* Closes the file.  Every byte of every tensor must have been written once.  Does not sync. */
D9D_API D9D_MUST_USE d9d_status d9d_safetensors_writer_end(d9d_safetensors_writer *w);
D9D_API void d9d_safetensors_writer_free(d9d_safetensors_writer *w);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_SAFETENSORS_SAFETENSORS_H */
