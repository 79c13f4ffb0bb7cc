/* jsonl.h - members of one JSON object, in one pass and without a tree.
 *
 * Text is checked to be JSON throughout, but only what was asked for is kept, and
 * that must be there once.  Other keys may be there twice, and numbers may be of any size where
 * they are skipped: records of corpora carry all sorts of metadata. */
#ifndef D9DI_DATA_BUILD_JSONL_H
#define D9DI_DATA_BUILD_JSONL_H

#include <stdbool.h>

#include "d9d/base/mem.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/tokenizer/tokenizer.h"

/* What was wrong, where the caller knows the file and the line. */
typedef struct d9di_jsonl_error {
    size_t offset; /* byte of the line */
    char message[320];
    d9d_shard_bad_record reason;
} d9di_jsonl_error;

typedef D9D_VEC(int32_t) d9di_token_labels;

/* Which of `keys` (they end with NULL) the object has: the first in their order, as a place in
 * them; -1: none. */
d9d_status d9di_jsonl_find_key(const char *line, size_t n, const char *const *keys, int *which,
                               d9di_jsonl_error *error);

/* The string at `key` of the object line[0, n), appended to `out`; the line must be valid
 * UTF-8.  EFORMAT fills *error and records no sentence. */
d9d_status d9di_jsonl_get_text(const char *line, size_t n, const char *key, d9d_buf *out,
                               d9di_jsonl_error *error);

/* The integer at `key`, from 0 to below `vocab`. */
d9d_status d9di_jsonl_get_label(const char *line, size_t n, const char *key, uint32_t vocab,
                                int32_t *out, d9di_jsonl_error *error);

/* "input_ids", each below `vocab`, and "labels", each -100 or below `vocab`, appended. */
d9d_status d9di_jsonl_get_tokens(const char *line, size_t n, uint32_t vocab, d9d_token_ids *ids,
                                 d9di_token_labels *labels, bool *has_labels,
                                 d9di_jsonl_error *error);

/* The messages of a chat: {"messages": [{"role": "...", "content": "..."}, ...]}, perhaps with
 * "system" beside them, which is then the first, and "tools".  Content is a string, a list of
 * {"type": "text", "text": "..."}, or null for none; "reasoning_content" is a string, or null.
 * Messages may have "tool_calls", a list of
 * {"name": "...", "arguments": ...}, perhaps in {"function": ...}: a string of arguments is taken
 * as it is.  Other arguments and tools become JSON as Python's json.dumps() writes it. */
typedef struct d9di_chat_span {
    size_t offset, n; /* in the text */
} d9di_chat_span;
typedef struct d9di_chat_tool_call {
    d9di_chat_span name, arguments;
} d9di_chat_tool_call;
typedef struct d9di_chat_message {
    d9di_chat_span role, content, thoughts;
    bool has_thoughts;     /* they are given, if only as "" */
    bool untrained;        /* its "weight" is 0 */
    size_t calls, n_calls; /* in the list */
    size_t offset;         /* byte of the line */
} d9di_chat_message;
typedef struct d9di_chat_messages {
    d9d_buf text;
    D9D_VEC(d9di_chat_message) list;
    D9D_VEC(d9di_chat_tool_call) calls;
    D9D_VEC(d9di_chat_span) tools;
    size_t tools_offset; /* byte of the line */
} d9di_chat_messages;    /* zero-initialised is empty */
void d9di_chat_messages_release(d9di_chat_messages *m);
d9d_status d9di_jsonl_get_messages(const char *line, size_t n, d9di_chat_messages *out,
                                   d9di_jsonl_error *error);

#endif
