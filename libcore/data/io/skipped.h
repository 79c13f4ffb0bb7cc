/* skipped.h - bad records that a run skipped: counted by reason; the first of them are listed.
 *
 * Units record what they skipped, with line numbers of their input split.  Assembly converts these
 * to line numbers of the source and writes skipped.jsonl:
 *
 *     {"source": "a.jsonl", "line": 7, "byte": 512, "reason": "not_json", "error": "a string ..."}
 *     {"source": "b.bin", "document": 3, "reason": "bad_value", "error": "..."} */
#ifndef D9DI_DATA_IO_SKIPPED_H
#define D9DI_DATA_IO_SKIPPED_H

#include "d9d/base/json.h"
#include "d9d/data/io/bad_record.h"

enum { D9DI_MAX_SKIPPED = 1000 }; /* most listed records of a unit, and of a dataset */
#define D9DI_SKIPPED_FILE "skipped.jsonl"

typedef struct d9di_skipped {
    int64_t source, line, byte; /* line from 1, byte from 0; both 0 for token files */
    int64_t document;           /* index in a token file, from 0; otherwise -1 */
    d9d_shard_bad_record reason;
    char error[320];
} d9di_skipped;
typedef D9D_VEC(d9di_skipped) d9di_skipped_list;

/* Appends, unless the list is full. */
d9d_status d9di_skipped_add(d9di_skipped_list *list, const d9di_skipped *s);
int64_t d9di_skipped_total(const int64_t counts[D9D_SHARD_BAD_REASONS]);

/* An object with a count for each reason; NULL if out of memory. */
json_t *d9di_skipped_counts_json(const int64_t counts[D9D_SHARD_BAD_REASONS]);
/* Parses the counts; all zero if `v` is NULL or null.  EFORMAT. */
d9d_status d9di_skipped_counts_parse(const json_t *v, const char *where,
                                     int64_t counts[D9D_SHARD_BAD_REASONS]);
/* "2 not_json, 1 not_utf8". */
d9d_status d9di_skipped_counts_print(const int64_t counts[D9D_SHARD_BAD_REASONS], d9d_buf *out);

/* An array that refers to sources by number; NULL if out of memory. */
json_t *d9di_skipped_list_json(const d9di_skipped_list *list);
/* Parses the list; empty if `v` is NULL.  EFORMAT. */
d9d_status d9di_skipped_list_parse(const json_t *v, const char *where, d9di_skipped_list *out);
/* Appends a line of skipped.jsonl. */
d9d_status d9di_skipped_print(const d9di_skipped *s, const char *source, d9d_buf *out);

#endif
