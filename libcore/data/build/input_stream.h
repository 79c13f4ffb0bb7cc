/* input_stream.h - the bytes of an input: a file or stdin, decompressed as it is read.
 *
 * gzip and zstd are told by their first bytes, which no UTF-8 text begins with. */
#ifndef D9DI_DATA_BUILD_INPUT_STREAM_H
#define D9DI_DATA_BUILD_INPUT_STREAM_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "d9d/base/mem.h"

typedef struct d9di_input_stream d9di_input_stream;

/* What an input was when it was looked at.  Of what is not known all is zero. */
typedef struct d9di_input_stat {
    bool is_file;  /* a plain file; what is known of others is that they can be opened */
    bool known;    /* all below: of a file, and of standard input where that is one */
    int64_t bytes; /* 0 but of a file by its name */
    dev_t device;
    ino_t inode;
    struct timespec changed;
} d9di_input_stat;
/* What opening says of an input, but for its content.  ENOTFOUND, EIO, and EPATH for a directory.
 */
d9d_status d9di_input_stream_stat(const char *path, d9di_input_stat *out);
/* Look again: EIO, with both sizes, unless it is the same file, unchanged.  Fine where nothing is
 * known. */
d9d_status d9di_input_stream_check(const char *path, const d9di_input_stat *seen);

/* "-" is stdin.  ENOTFOUND, EIO, and EFORMAT for a directory or a kind of file that is known and
 * not read.  With `seen`, which may be NULL, EIO unless it is that file, unchanged. */
d9d_status d9di_input_stream_open(const char *path, const d9di_input_stat *seen,
                                  d9di_input_stream **out);
/* Up to n bytes; 0 only at the end.  EFORMAT when compressed data is damaged or cut off; EIO at the
 * end of a file that is not what it was when it was opened. */
d9d_status d9di_input_stream_read(d9di_input_stream *r, void *p, size_t n, size_t *got);
/* Pass over `n` bytes. */
d9d_status d9di_input_stream_skip(d9di_input_stream *r, uint64_t n);
/* Bytes of the file that were read so far: what progress is counted in. */
uint64_t d9di_input_stream_consumed(const d9di_input_stream *r);
/* Whether a file can be opened and is not compressed. */
bool d9di_input_stream_is_plain(const char *path);
void d9di_input_stream_close(d9di_input_stream *r);

#endif
