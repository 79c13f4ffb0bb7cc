/* shard_fields.h - the fields of a run's documents: their declaration, and their values. */
#ifndef D9DI_DATA_BUILD_SHARD_FIELDS_H
#define D9DI_DATA_BUILD_SHARD_FIELDS_H

#include "d9d/base/hash.h"
#include "d9d/data/build/shard.h"
#include "data/dataset/field_values.h"
#include "data/io/jsonl.h"
#include "data/io/npy.h"

typedef struct d9di_shard_fields {
    d9d_arena arena;
    d9d_field_list list;
    const char *key[D9D_FIELDS_MAX];      /* members of a line */
    const char *npy_path[D9D_FIELDS_MAX]; /* NULL: the line has the values */
    d9di_npy npy[D9D_FIELDS_MAX];         /* otherwise it has a row's number in this array */
    d9d_hash hash;                        /* of the declaration and the array files' states */
} d9di_shard_fields;                      /* zero-initialised: no fields */

/* Reads the file opts->fields (NULL: no fields) and opens the arrays.  ECONFIG, EFORMAT. */
d9d_status d9di_shard_fields_load(const d9d_shard_opts *opts, const d9d_log *log,
                                  d9di_shard_fields *out);
void d9di_shard_fields_release(d9di_shard_fields *f);

/* A thread's values of one document. */
typedef struct d9di_shard_field_values {
    const d9di_shard_fields *fields; /* while they are read */
    d9d_buf data[D9D_FIELDS_MAX];
    int64_t rows[D9D_FIELDS_MAX];
} d9di_shard_field_values;
void d9di_shard_field_values_release(d9di_shard_field_values *v);

/* Reads the values of a line.  EFORMAT fills *error. */
d9d_status d9di_shard_fields_read(const d9di_shard_fields *f, const char *line, size_t n,
                                  d9di_shard_field_values *v, d9di_jsonl_error *error);
/* The rows that fields per token or target have; 1 where there are none.  EFORMAT if they differ.
 */
d9d_status d9di_shard_fields_tokens(const d9di_shard_fields *f, const d9di_shard_field_values *v,
                                    int64_t *tokens, d9di_jsonl_error *error);
/* Appends them for a document of `tokens` tokens.  EFORMAT where a field has another number. */
d9d_status d9di_shard_fields_append(const d9di_shard_fields *f, const d9di_shard_field_values *v,
                                    int64_t tokens, d9d_buf *out, d9di_jsonl_error *error);

#endif
