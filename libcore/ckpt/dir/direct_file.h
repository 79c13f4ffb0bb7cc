/* direct_file.h - a file written in large blocks with direct I/O (O_DIRECT), where possible.
 *
 * Direct writes bypass the page cache: no copy, no memory afterwards, and the data are on the
 * device when the call returns.  They need whole blocks, a page-aligned buffer and an aligned
 * offset.  The rest, and everything on a file system without O_DIRECT, goes through the page cache,
 * and writeback is started at once. */
#ifndef D9DI_CKPT_DIR_DIRECT_FILE_H
#define D9DI_CKPT_DIR_DIRECT_FILE_H

#include "d9d/base/fs.h"

typedef struct d9di_direct_file {
    d9d_file file;
    int direct; /* second descriptor with O_DIRECT, plus 1; 0: none */
} d9di_direct_file;

enum { D9DI_DIRECT_FILE_BLOCK = 4096 }; /* buffers and offsets are aligned to it */

/* Opens an existing file. */
d9d_status d9di_direct_file_open(const char *path, d9di_direct_file *out);
/* Writes n bytes at offset `at`.  `p` and `at` must be aligned, n need not be. */
d9d_status d9di_direct_file_write(d9di_direct_file *f, const void *p, size_t n, uint64_t at);
d9d_status d9di_direct_file_read(const d9di_direct_file *f, void *p, size_t n, uint64_t at);
d9d_status d9di_direct_file_close(d9di_direct_file *f);
void d9di_direct_file_release(d9di_direct_file *f);

#endif /* D9DI_CKPT_DIR_DIRECT_FILE_H */
