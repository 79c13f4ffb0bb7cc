/* resumable_lines.h - a file with one line or one record a sample, which an interrupted job goes on
 * with.
 *
 *     out.jsonl.part-<16 hex digits>       what there is, while it grows
 *     out.jsonl.journal-<16 hex digits>    how much of that is as it was written (output_journal.h)
 *     out.jsonl                            all of it, in one rename; the journal goes
 *
 * The digits are of the key, which tells what the lines are made from.  Going on, the part is cut
 * back to what its journal proves.  The journal has a line for the first of them and about one a
 * second from there on; part and journal are synced every few seconds, when it is released, and
 * before the file gets its name.
 */
#ifndef D9DI_INFER_RESUMABLE_LINES_H
#define D9DI_INFER_RESUMABLE_LINES_H

#include "d9d/base/log.h"
#include "infer/output_journal.h"

typedef struct d9di_resumable_lines {
    d9d_file file; /* the part, locked: one process at a time writes it */
    d9di_output_journal journal;
    char *path;
    int64_t done;        /* whole ones in it */
    int64_t n_journaled; /* of these, in the journal */
    int64_t journaled_ns, synced_ns;
} d9di_resumable_lines;

/* Lines, or with `head` records behind it.  There must be no finished file of that name.  EIO when
 * another process is writing it; EPATH for a link, and for the file of another user; ECONFIG for a
 * part that has something and no journal of this key: whose it is nobody knows.  A warning says
 * where less checks out than there was, and that parts of other keys are not gone on with. */
d9d_status d9di_resumable_lines_open(const char *path, d9d_hash key, const d9d_buf *head,
                                     const d9d_log *log, d9di_resumable_lines *out);
/* `line` with its newline, or a record. */
d9d_status d9di_resumable_lines_add(d9di_resumable_lines *l, const char *line, size_t n);
/* Sync, and give the file its name: ECONFIG, and the part stays, where something has it already. */
d9d_status d9di_resumable_lines_commit(d9di_resumable_lines *l);
/* What was added is kept for the next time. */
void d9di_resumable_lines_release(d9di_resumable_lines *l);

#endif /* D9DI_INFER_RESUMABLE_LINES_H */
