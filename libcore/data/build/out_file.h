/* out_file.h - a file that is written from its beginning to its end through a buffer, and
 * hashed on the way. */
#ifndef D9DI_DATA_BUILD_OUT_FILE_H
#define D9DI_DATA_BUILD_OUT_FILE_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"

typedef struct d9di_out_file {
    d9d_file file;
    d9d_buf buf;
    d9d_hasher *hasher;
    bool open;
} d9di_out_file; /* zero-initialised is closed; it may be created again when it is */

d9d_status d9di_out_file_create(d9di_out_file *o, const char *path);
/* The same as `how` opens it, empty. */
d9d_status d9di_out_file_create_with(d9di_out_file *o, const char *path,
                                     d9d_status (*how)(const char *path, d9d_file *out));
d9d_status d9di_out_file_write(d9di_out_file *o, const void *p, size_t n);
/* What was put into `buf` directly: write it if it is enough, or in any case. */
d9d_status d9di_out_file_flush_if_full(d9di_out_file *o);
d9d_status d9di_out_file_flush(d9di_out_file *o);
/* Write what is left, sync and close; fine when it is closed. */
d9d_status d9di_out_file_close(d9di_out_file *o);
/* Of all bytes, behind d9di_out_file_close(). */
d9d_hash d9di_out_file_hash(const d9di_out_file *o);
void d9di_out_file_release(d9di_out_file *o);

#endif
