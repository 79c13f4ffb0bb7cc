/* resumable_lines.h - an output with one line or record per sample, which an interrupted job
 * resumes.
 *
 *     out.jsonl.part-<16 hex digits>       the unfinished output ("part")
 *     out.jsonl.journal-<16 hex digits>    proof of its content (output_journal.h)
 *     out.jsonl                            complete, after one rename; the journal is removed
 *
 * The digits are those of the key, a hash of everything that the lines depend on.  On resume, the
 * part is truncated to what its journal proves.  The journal gets a line for the first record and
 * then about one per second.  Part and journal are synced every few seconds, at release, and before
 * the rename.
 *
 * A state is what was counted of the records, as memory of the caller's: a resumed job gets what
 * belongs to the records that are there.  Each line of the journal has it, so that lines with more
 * than 16 KiB of state are rarer: a second for each 16 KiB.
 */
#ifndef D9DI_INFER_RESUMABLE_LINES_H
#define D9DI_INFER_RESUMABLE_LINES_H

#include "d9d/base/log.h"
#include "infer/output_journal.h"

typedef struct d9di_resumable_lines_part {
    void *data;
    size_t n; /* bytes */
} d9di_resumable_lines_part;

typedef struct d9di_resumable_lines_state {
    uint64_t id; /* hash of what is counted: the state of another one is not taken */
    const d9di_resumable_lines_part *parts; /* borrowed */
    size_t n;
} d9di_resumable_lines_state;

typedef struct d9di_resumable_lines {
    d9d_file file; /* the part, locked: one process writes it */
    d9di_output_journal journal;
    char *path;
    int64_t done;         /* complete records in it */
    int64_t counted_from; /* the first record that the state counts; 0 unless it was not known */
    d9di_resumable_lines_state state;
    bool state_is_ahead; /* it counts records that are not there; set by the caller around add() */
    int64_t n_journaled; /* records that the journal covers */
    int64_t journaled_ns, synced_ns;
} d9di_resumable_lines;

/* Opens the output for lines, or with `head` for records after this header, and fills the parts of
 * `state` (NULL: none) with what they were after the records that are there.  ECONFIG if the
 * finished file exists, or if a part has content but no journal of this key, since its origin is
 * unknown.  EIO if another process is writing it; EPATH for a link, or another user's file.  Warns
 * if less is proven than was written, and about parts with other keys, which are not resumed. */
d9d_status d9di_resumable_lines_open(const char *path, d9d_hash key, const d9d_buf *head,
                                     const d9di_resumable_lines_state *state, const d9d_log *log,
                                     d9di_resumable_lines *out);
/* Adds a line with its newline, or `records` records.  The state counts them. */
d9d_status d9di_resumable_lines_add(d9di_resumable_lines *l, const char *line, size_t n,
                                    int64_t records);
/* Syncs and renames.  ECONFIG, and the part stays, if the final name is taken. */
d9d_status d9di_resumable_lines_commit(d9di_resumable_lines *l);
/* Everything that was added is kept for the next start. */
void d9di_resumable_lines_release(d9di_resumable_lines *l);

#endif /* D9DI_INFER_RESUMABLE_LINES_H */
