/* st_index.h - model.safetensors.index.json: maps tensors to files. */
#ifndef D9DI_CKPT_SAFETENSORS_ST_INDEX_H
#define D9DI_CKPT_SAFETENSORS_ST_INDEX_H

#include "d9d/base/mem.h"

enum {
    D9DI_SAFETENSORS_INDEX_MAX = 100000000
}; /* bytes of an index; the same limit as for a header */

typedef struct d9di_safetensors_index {
    d9d_arena arena;
    const char *path;
    d9d_map map;  /* tensor name to file name */
    char **files; /* distinct, sorted */
    size_t n_files;
} d9di_safetensors_index;

/* Reads an index.  File names must be plain; a tensor listed twice is EFORMAT.  *out must be
 * zeroed. */
d9d_status d9di_safetensors_index_read(const char *path, d9di_safetensors_index *out);
d9d_status d9di_safetensors_index_parse(const char *path, const char *text, size_t n,
                                        d9di_safetensors_index *out);
void d9di_safetensors_index_release(d9di_safetensors_index *x);

/* Writes the text of an index: begin, one entry per tensor, end. */
d9d_status d9di_safetensors_index_begin(d9d_buf *b, uint64_t total_bytes);
d9d_status d9di_safetensors_index_add(d9d_buf *b, const char *name, const char *file, bool last);
d9d_status d9di_safetensors_index_end(d9d_buf *b);

#endif /* D9DI_CKPT_SAFETENSORS_ST_INDEX_H */
