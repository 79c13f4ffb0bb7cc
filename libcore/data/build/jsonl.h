/* jsonl.h - extracts members of one JSON object in one pass, without a tree.
 *
 * The whole text must be JSON, but only requested members are kept; each must occur once.  Skipped
 * members may occur twice and hold numbers of any size, because corpora carry all sorts of
 * metadata. */
#ifndef D9DI_DATA_BUILD_JSONL_H
#define D9DI_DATA_BUILD_JSONL_H

#include <stdbool.h>

#include "d9d/base/mem.h"
#include "d9d/data/build/shard.h"
#include "d9d/data/tokenizer/tokenizer.h"

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

/* Reads the integer at `key`, 0 <= value < vocab. */
d9d_status d9di_jsonl_get_label(const char *line, size_t n, const char *key, uint32_t vocab,
                                int32_t *out, d9di_jsonl_error *error);

/* Appends "input_ids", each less than `vocab`, and "labels", each -100 or less than `vocab`. */
d9d_status d9di_jsonl_get_tokens(const char *line, size_t n, uint32_t vocab, d9d_token_ids *ids,
                                 d9di_token_labels *labels, bool *has_labels,
                                 d9di_jsonl_error *error);

/* The messages of a chat: {"messages": [{"role": "...", "content": "..."}, ...]}, optionally with
 * "tools" and with "system", which becomes the first message.  Content is a string, a list of
 * {"type": "text", "text": "..."}, or null.  "reasoning_content" is a string or null.  Messages may
 * have "tool_calls", a list of {"name": "...", "arguments": ...}, each optionally inside
 * {"function": ...}.  A string of arguments is used as it is; other arguments and tools become JSON
 * as Python's json.dumps() writes it. */
typedef struct d9di_chat_span {
    size_t offset, n; /* span of the text */
} d9di_chat_span;
typedef struct d9di_chat_tool_call {
    d9di_chat_span name, arguments;
} d9di_chat_tool_call;
typedef struct d9di_chat_message {
    d9di_chat_span role, content, thoughts;
    bool has_thoughts;     /* thoughts are given, possibly "" */
    bool untrained;        /* "weight" is 0 */
    size_t calls, n_calls; /* range in the list of calls */
    size_t offset;         /* byte offset in the line */
} d9di_chat_message;
typedef struct d9di_chat_messages {
    d9d_buf text;
    D9D_VEC(d9di_chat_message) list;
    D9D_VEC(d9di_chat_tool_call) calls;
    D9D_VEC(d9di_chat_span) tools;
    size_t tools_offset; /* byte offset in the line */
} d9di_chat_messages;    /* zero-initialised is empty */
void d9di_chat_messages_release(d9di_chat_messages *m);
d9d_status d9di_jsonl_get_messages(const char *line, size_t n, d9di_chat_messages *out,
                                   d9di_jsonl_error *error);

#endif
