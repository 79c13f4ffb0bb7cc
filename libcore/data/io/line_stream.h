/* line_stream.h - the lines of a file or of a folder of files that may grow while they are read.
 *
 *     FILE      its lines; with `follow`, until FILE.end exists
 *     FOLDER/   the lines of its files NAME.jsonl, by name; with `follow`, until FOLDER/END exists
 *
 * A file grows by whole lines at its end.  A folder grows by whole files, which get their names
 * when they are complete (rename) and come after those that are there.  So a line has one place, on
 * every rank and at any time:
 *
 *     D9D_TRY(d9di_line_stream_next(s, &line));
 *     line.state: there is one; none is there yet; there will be none
 *
 * Files are plain.  Not for several threads at a time.
 */
#ifndef D9DI_DATA_IO_LINE_STREAM_H
#define D9DI_DATA_IO_LINE_STREAM_H

#include <stdbool.h>

#include "d9d/base/mem.h"

typedef struct d9di_line_stream d9di_line_stream;

typedef enum d9di_line_state {
    D9DI_LINE_PENDING,
    D9DI_LINE_FOUND,
    D9DI_LINE_ENDED
} d9di_line_state;

typedef struct d9di_line {
    d9di_line_state state;
    const char *text; /* [n], without its end; until the next call */
    size_t n;
    const char *file; /* its name: of a folder's file without the folder; until the next call */
    int64_t offset;   /* of its first byte */
} d9di_line;

/* ENOTFOUND; ECONFIG for a pipe, which neither several ranks nor a resumed run can read, and for a
 * compressed file. */
d9d_status d9di_line_stream_open(const char *path, bool follow, d9di_line_stream **out);
void d9di_line_stream_close(d9di_line_stream *s);
/* Go on with the line at `offset` of `file`.  EMISMATCH if it is not there.  Before the first line
 * is read. */
d9d_status d9di_line_stream_seek(d9di_line_stream *s, const char *file, int64_t offset);
/* EIO: a file was changed other than by growing; EFORMAT: a line is too long. */
d9d_status d9di_line_stream_next(d9di_line_stream *s, d9di_line *out);

#endif
