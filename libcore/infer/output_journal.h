/* output_journal.h - which bytes of an unfinished file are as they were written.
 *
 *     d9d.part.v1 <key>
 *     203 81234 <32 hex digits>
 *     406 162410 <32 hex digits>
 *
 * Lies beside the file, and is appended to while that grows: a line a block, with the records and
 * the bytes of the file up to the block's end, and a hash over the hash of the line before (the
 * first: the key), these two numbers and the block's bytes.  A line is a claim, not a proof:
 * whoever goes on reads the file along the lines, and believes it up to the last block that hashes
 * to what its line says.  So zeros that a node left which lost its power, bytes that were edited, a
 * file that was cut and one of somebody else's are never believed, whichever of both files reached
 * the disk first.  A line that is not whole ends the journal.
 */
#ifndef D9DI_INFER_OUTPUT_JOURNAL_H
#define D9DI_INFER_OUTPUT_JOURNAL_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"

typedef struct d9di_output_journal {
    d9d_file file;
    d9d_hasher *block; /* of the chain and the bytes that came since the last line */
    d9d_hash key, chain;
    uint64_t bytes; /* of the part, with those */
} d9di_output_journal;

/* What a journal proves of its part. */
typedef struct d9di_output_journal_proof {
    bool key_matches;         /* its key is this one */
    int64_t records, claimed; /* that check out; of the last line */
    uint64_t bytes;           /* where those that check out end */
} d9di_output_journal_proof;

/* Open the journal at `path`, of a file that must be this user's own, and check `output` against
 * it. A journal that is not `mine` is not touched. */
d9d_status d9di_output_journal_open(const char *path, d9d_hash key, const d9d_file *output,
                                    d9di_output_journal *out, d9di_output_journal_proof *proof);
/* Begin anew: the journal is on the disk, and its name, when this returns. */
d9d_status d9di_output_journal_begin(d9di_output_journal *j);
/* These bytes were written to the part. */
void d9di_output_journal_add(d9di_output_journal *j, const void *p, size_t n);
/* A line: so many records are whole in what was added. */
d9d_status d9di_output_journal_write_line(d9di_output_journal *j, int64_t records);
void d9di_output_journal_close(d9di_output_journal *j);

#endif /* D9DI_INFER_OUTPUT_JOURNAL_H */
