/* jsonl.h - extracts members of one JSON object in one pass, without a tree.
 *
 * The whole text must be JSON, but only requested members are kept; each must occur once.  Skipped
 * members may occur twice and hold numbers of any size, because corpora carry all sorts of
 * metadata. */
#ifndef D9DI_DATA_IO_JSONL_H
#define D9DI_DATA_IO_JSONL_H

#include <stdbool.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"
#include "d9d/data/io/bad_record.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/io/chat_layout.h"

/* Describes an error; the caller knows the file and the line. */
typedef struct d9di_jsonl_error {
    size_t offset; /* byte offset in the line */
    char message[320];
    d9d_shard_bad_record reason;
} d9di_jsonl_error;

typedef D9D_VEC(int32_t) d9di_token_labels;

/* Finds which of `keys` (NULL-terminated) the object has: the index of the first such key; -1:
 * none. */
d9d_status d9di_jsonl_find_key(const char *line, size_t n, const char *const *keys, int *which,
                               d9di_jsonl_error *error);

/* Appends the string at `key` of the object line[0, n) to `out`.  The line must be valid UTF-8.
 * EFORMAT fills *error and records no message. */
d9d_status d9di_jsonl_get_text(const char *line, size_t n, const char *key, d9d_buf *out,
                               d9di_jsonl_error *error);

/* Reads the integer at `key`, 0 <= value < vocab; a string may have it. */
d9d_status d9di_jsonl_get_label(const char *line, size_t n, const char *key, uint32_t vocab,
                                int32_t *out, d9di_jsonl_error *error);

/* Appends "input_ids", each less than `vocab`, and "labels", each -100 or less than `vocab`. */
d9d_status d9di_jsonl_get_tokens(const char *line, size_t n, uint32_t vocab, d9d_token_ids *ids,
                                 d9di_token_labels *labels, bool *has_labels,
                                 d9di_jsonl_error *error);

/* A member that is a number, or nested arrays of numbers of one shape. */
typedef struct d9di_jsonl_array {
    const char *key;
    int rank;             /* 0: a number, which may stand in a string */
    const int64_t *shape; /* [rank]; -1 in front: any number of rows */
    bool whole;           /* integers from min to max; otherwise finite float32 numbers */
    int64_t min, max;
    bool nulls;   /* null is NaN */
    int64_t rows; /* set: rows, where their number is free */
    bool found;   /* set */
} d9di_jsonl_array;
typedef struct d9di_jsonl_number {
    double real;
    int64_t whole;
} d9di_jsonl_number;
/* Reads all n_arrays members in one pass and gives their numbers, row by row, to `put`; those of
 * one member follow one another. */
d9d_status d9di_jsonl_get_arrays(const char *line, size_t n, d9di_jsonl_array *arrays,
                                 size_t n_arrays,
                                 d9d_status (*put)(void *arg, size_t array,
                                                   const d9di_jsonl_number *v),
                                 void *arg, d9di_jsonl_error *error);

/* Reads a chat: {"messages": [{"role": "...", "content": "..."}, ...]}, whose other members are
 * kept, and whose "system" becomes the first message.  A message has a role and a content, tool
 * calls or reasoning; its "weight" is 0 or 1.  Chats in other layouts (chat_layout.h) get messages.
 * *out is a new reference. */
d9d_status d9di_jsonl_get_chat(const char *line, size_t n, const d9di_chat_reader *reader,
                               json_t **out, d9di_jsonl_error *error);

#endif
