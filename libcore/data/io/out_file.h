/* out_file.h - an output file written sequentially through a buffer and hashed on the way. */
#ifndef D9DI_DATA_IO_OUT_FILE_H
#define D9DI_DATA_IO_OUT_FILE_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"

typedef struct d9di_out_file {
    d9d_file file;
    d9d_buf buf;
    d9d_hasher *hasher;
    bool open;
} d9di_out_file; /* zero-initialised is closed; a closed one may be created again */

d9d_status d9di_out_file_create(d9di_out_file *o, const char *path);
/* The same, with the open options `opts`; the file is emptied. */
d9d_status d9di_out_file_create_with(d9di_out_file *o, const char *path,
                                     d9d_status (*opts)(const char *path, d9d_file *out));
d9d_status d9di_out_file_write(d9di_out_file *o, const void *p, size_t n);
/* After bytes were appended to `buf` directly: write them if there are enough (flush_if_full), or
 * always. */
d9d_status d9di_out_file_flush_if_full(d9di_out_file *o);
d9d_status d9di_out_file_flush(d9di_out_file *o);
/* Writes the rest, syncs and closes.  Does nothing if it is closed. */
d9d_status d9di_out_file_close(d9di_out_file *o);
/* Hash of all bytes, after d9di_out_file_close(). */
d9d_hash d9di_out_file_hash(const d9di_out_file *o);
void d9di_out_file_release(d9di_out_file *o);

#endif
