/* output_journal.h - proves which bytes of an unfinished output are as they were written.
 *
 *     d9d.part.v1 <key>
 *     203 81234 <32 hex digits> <hex digits>
 *     406 162410 <32 hex digits> <hex digits>
 *
 * The journal lies beside the output and grows with it.  It has one line per block: the records and
 * bytes of the output up to the block's end, a hash, and the state of these records, if there is
 * any: what was counted of them.  The hash chains the hash of the line before (at first the key),
 * these two numbers, the block's bytes and the state's digits.
 *
 * A line is a claim and not a proof: whoever resumes rereads the output, and trusts it up to the
 * last block whose hash matches.  So zeros after a power failure, edited bytes, a truncated file
 * and a foreign one are never trusted, whichever of the two files reached the disk first.  An
 * incomplete line ends the journal.
 */
#ifndef D9DI_INFER_OUTPUT_JOURNAL_H
#define D9DI_INFER_OUTPUT_JOURNAL_H

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"
#include "d9d/base/mem.h"

typedef struct d9di_output_journal {
    d9d_file file;
    d9d_hasher *block; /* hash of the chain and of the bytes since the last line */
    d9d_hash key, chain;
    uint64_t bytes; /* of the output, including those */
} d9di_output_journal;

/* What a journal proves of its output. */
typedef struct d9di_output_journal_proof {
    bool key_matches;         /* the journal has the given key */
    int64_t records, claimed; /* records that are proven; records that the last line claims */
    uint64_t bytes;           /* end of the proven records */
    d9d_buf state;            /* digits of their state, which the caller releases */
} d9di_output_journal_proof;

/* Opens the journal at `path`, a file that must belong to this user, and verifies `output` against
 * it.  A journal with another key is not changed. */
d9d_status d9di_output_journal_open(const char *path, d9d_hash key, const d9d_file *output,
                                    d9di_output_journal *out, d9di_output_journal_proof *proof);
/* Starts a new journal; it and its name are durable when this returns. */
d9d_status d9di_output_journal_begin(d9di_output_journal *j);
/* Call after writing these bytes to the output. */
void d9di_output_journal_add(d9di_output_journal *j, const void *p, size_t n);
/* Appends a line: the output now has `records` complete records in total, with this state (NULL:
 * none): hexadecimal digits and a NUL. */
d9d_status d9di_output_journal_write_line(d9di_output_journal *j, int64_t records,
                                          const d9d_buf *state);
void d9di_output_journal_close(d9di_output_journal *j);

#endif /* D9DI_INFER_OUTPUT_JOURNAL_H */
