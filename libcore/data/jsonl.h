/* jsonl.h - members of one JSON object, in one pass and without a tree.
 *
 * Text is checked to be JSON throughout, but only what was asked for is kept.  Of
 * duplicate keys the last counts, and numbers may be of any size where they are skipped:
 * records of corpora carry all sorts of metadata. */
#ifndef D9DI_DATA_JSONL_H
#define D9DI_DATA_JSONL_H

#include <stdbool.h>

#include "d9d/base/mem.h"
#include "d9d/data/tokenizer.h"

/* What was wrong, where the caller knows the file and the line. */
typedef struct d9di_jsonl_error {
    size_t at; /* byte of the line */
    char what[160];
} d9di_jsonl_error;

typedef D9D_VEC(int32_t) d9di_labels;

/* The string at `key` of the object line[0, n), appended to `out`; the line must be valid
 * UTF-8.  EFORMAT fills *error and records no sentence. */
d9d_status d9di_jsonl_text(const char *line, size_t n, const char *key, d9d_buf *out,
                           d9di_jsonl_error *error);

/* "input_ids", each below `vocab`, and "labels", each -100 or below `vocab`, appended. */
d9d_status d9di_jsonl_tokens(const char *line, size_t n, uint32_t vocab, d9d_ids *ids,
                             d9di_labels *labels, bool *has_labels, d9di_jsonl_error *error);

#endif
