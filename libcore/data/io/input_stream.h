/* input_stream.h - the bytes of an input: a file or stdin, decompressed as it is read.
 *
 * gzip and zstd are detected by their first bytes, which no UTF-8 text begins with. */
#ifndef D9DI_DATA_IO_INPUT_STREAM_H
#define D9DI_DATA_IO_INPUT_STREAM_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "d9d/base/mem.h"

typedef struct d9di_input_stream d9di_input_stream;

/* State of an input when it was examined.  Unknown members are zero. */
typedef struct d9di_input_stat {
    bool is_file;  /* a regular file; others are only known to be openable */
    bool known;    /* the members below are valid: for files, and for standard input if it is one */
    int64_t bytes; /* size of a file given by name; otherwise 0 */
    dev_t device;
    ino_t inode;
    struct timespec changed;
} d9di_input_stat;
/* Examines an input without reading its content.  ENOTFOUND, EIO, and EPATH for a directory.
 */
d9d_status d9di_input_stream_stat(const char *path, d9di_input_stat *out);
/* Examines it again: EIO, with both sizes, unless it is the same unchanged file.  D9D_OK if nothing
 * is known. */
d9d_status d9di_input_stream_check(const char *path, const d9di_input_stat *seen);

/* Opens an input; "-" is stdin.  ENOTFOUND, EIO, and EFORMAT for a directory or an unsupported file
 * format.  If `seen` is not NULL: EIO unless it is that file, unchanged. */
d9d_status d9di_input_stream_open(const char *path, const d9di_input_stat *seen,
                                  d9di_input_stream **out);
/* Reads up to n bytes; *got is 0 only at the end.  EFORMAT: compressed data are damaged or
 * truncated.  EIO at the end of a file that changed after it was opened. */
d9d_status d9di_input_stream_read(d9di_input_stream *r, void *p, size_t n, size_t *got);
/* Skips `n` bytes. */
d9d_status d9di_input_stream_skip(d9di_input_stream *r, uint64_t n);
/* Bytes of the file read so far (compressed), for progress. */
uint64_t d9di_input_stream_consumed(const d9di_input_stream *r);
/* True if a file can be opened and is not compressed. */
bool d9di_input_stream_is_plain(const char *path);
void d9di_input_stream_close(d9di_input_stream *r);

#endif
