/* skipped.h - bad records that a run left out: counted by reason, and the first of them listed.
 *
 * Units keep what they skipped, with lines of their piece; joining makes lines of the source of
 * these, and skipped.jsonl of all:
 *
 *     {"source": "a.jsonl", "line": 7, "byte": 512, "reason": "not_json", "error": "a string ..."}
 *     {"source": "b.bin", "document": 3, "reason": "bad_value", "error": "..."} */
#ifndef D9DI_DATA_BUILD_SKIPPED_H
#define D9DI_DATA_BUILD_SKIPPED_H

#include "d9d/base/json.h"
#include "d9d/data/build/shard.h"

enum { D9DI_MAX_SKIPPED = 1000 }; /* listed of a unit, and of a dataset */
#define D9DI_SKIPPED_FILE "skipped.jsonl"

typedef struct d9di_skipped {
    int64_t source, line, byte; /* from 1, from 0; 0 and 0 of token files */
    int64_t document;           /* of token files, from 0; else -1 */
    d9d_shard_bad_record reason;
    char error[320];
} d9di_skipped;
typedef D9D_VEC(d9di_skipped) d9di_skipped_list;

/* Append, unless the list is full. */
d9d_status d9di_skipped_add(d9di_skipped_list *list, const d9di_skipped *s);
int64_t d9di_skipped_total(const int64_t counts[D9D_SHARD_BAD_REASONS]);

/* An object of numbers by reason; NULL when memory is out. */
json_t *d9di_skipped_counts_json(const int64_t counts[D9D_SHARD_BAD_REASONS]);
/* EFORMAT; all zero where `v` is NULL or null. */
d9d_status d9di_skipped_counts_parse(const json_t *v, const char *where,
                                     int64_t counts[D9D_SHARD_BAD_REASONS]);
/* "2 not_json, 1 not_utf8". */
d9d_status d9di_skipped_counts_print(const int64_t counts[D9D_SHARD_BAD_REASONS], d9d_buf *out);

/* An array, sources by number; NULL when memory is out. */
json_t *d9di_skipped_list_json(const d9di_skipped_list *list);
/* EFORMAT; none where `v` is NULL. */
d9d_status d9di_skipped_list_parse(const json_t *v, const char *where, d9di_skipped_list *out);
/* A line of skipped.jsonl. */
d9d_status d9di_skipped_print(const d9di_skipped *s, const char *source, d9d_buf *out);

#endif
