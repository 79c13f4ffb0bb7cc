/* lines.h - a file with one line or one record a sample, which an interrupted job goes on with.
 *
 * They go to "<path>.part-<key>", where the key tells what they were made from; the file gets
 * its name when it is whole.  What a crash has cut is removed.
 */
#ifndef D9DI_LOOP_LINES_H
#define D9DI_LOOP_LINES_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"

typedef struct d9di_lines {
    d9d_file file, lock; /* the same: one process at a time writes it */
    char *path;
    int64_t done; /* whole ones in it */
} d9di_lines;

/* There must be no finished file of that name.  EIO when another process is writing it. */
d9d_status d9di_lines_open(const char *path, d9d_hash key, d9di_lines *out);
/* Records of this many bytes behind a head, which is written where it is not there. */
d9d_status d9di_records_open(const char *path, d9d_hash key, const d9d_buf *head, uint64_t bytes,
                             d9di_lines *out);
/* `line` with its newline, or a record. */
d9d_status d9di_lines_add(d9di_lines *l, const char *line, size_t n);
/* Sync, and give the file its name. */
d9d_status d9di_lines_commit(d9di_lines *l);
void d9di_lines_release(d9di_lines *l);

#endif /* D9DI_LOOP_LINES_H */
