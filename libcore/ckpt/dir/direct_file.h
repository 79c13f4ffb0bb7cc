/* direct_file.h - a file that is written by large pieces, past the page cache where it can.
 *
 * What is written so is not in memory afterwards and costs no copy, and is on the device when
 * the call returns.  Whole blocks of a page-aligned piece at an aligned offset go that way; the
 * rest, and everything on a file system that refuses, goes through the page cache, from where
 * its way to the device begins at once. */
#ifndef D9DI_CKPT_DIR_DIRECT_FILE_H
#define D9DI_CKPT_DIR_DIRECT_FILE_H

#include "d9d/base/fs.h"

typedef struct d9di_direct_file {
    d9d_file file;
    int direct; /* another descriptor of it, plus 1; 0: none */
} d9di_direct_file;

enum { D9DI_DIRECT_FILE_BLOCK = 4096 }; /* pieces and their offsets are multiples of it */

/* Open a file that is there. */
d9d_status d9di_direct_file_open(const char *path, d9di_direct_file *out);
/* n bytes at `at`; `p` and `at` are aligned, n is what it is. */
d9d_status d9di_direct_file_write(d9di_direct_file *f, const void *p, size_t n, uint64_t at);
d9d_status d9di_direct_file_read(const d9di_direct_file *f, void *p, size_t n, uint64_t at);
d9d_status d9di_direct_file_close(d9di_direct_file *f);
void d9di_direct_file_release(d9di_direct_file *f);

#endif /* D9DI_CKPT_DIR_DIRECT_FILE_H */
