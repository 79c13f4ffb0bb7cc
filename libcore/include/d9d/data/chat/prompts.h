/* prompts.h - prompts for generation: a JSONL file of texts, chats or ids.
 *
 *     {"prompt": "Once upon a time"}              tokenised, special tokens around it
 *     {"messages": [{"role": "user", "content": "Hi"}]}    rendered by the chat template
 *     {"input_ids": [17, 4, 9]}                   used as it is
 *
 * "messages" are rendered up to where the assistant's turn begins (d9d/data/chat/chat.h), with the
 * other members of the line.  Lines are read as by d9d-shard; a byte order mark before the first
 * one is skipped.  Files may be compressed.
 *
 *     D9D_TRY(d9d_prompts_read(&opts, &prompts));
 *     ... prompts.ids.data[prompts.start[i] .. prompts.start[i + 1]) ...
 *     d9d_prompts_release(&prompts);
 */
#ifndef D9D_DATA_CHAT_PROMPTS_H
#define D9D_DATA_CHAT_PROMPTS_H

#include <stdbool.h>

#include "d9d/data/chat/chat.h"
#include "d9d/data/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_prompts_opts {
    const char *path;
    const d9d_tokenizer *tokenizer; /* NULL: only "input_ids" are allowed */
    bool add_special_tokens;        /* those of the post_processor, around a prompt of text */
    d9d_chat_opts chat;             /* its tokenizer is the file of the one above */
    int64_t vocab;                  /* every id must be less */
} d9d_prompts_opts;

typedef struct d9d_prompts {
    int64_t n, longest;
    int64_t texts;         /* prompts of text, */
    int64_t special_twice; /* and those that began with the special tokens put before them */
    d9d_token_ids ids;     /* of all prompts, concatenated */
    size_t *start;         /* [n + 1] offsets into ids */
    d9d_hash hash;         /* hash of all ids and offsets */
} d9d_prompts;

/* Reads all prompts of a file.  EFORMAT names the line that is malformed or has no token.  ECONFIG:
 * a line needs a tokenizer or a template, and there is none. */
D9D_API D9D_MUST_USE d9d_status d9d_prompts_read(const d9d_prompts_opts *opts, d9d_prompts *out);
D9D_API void d9d_prompts_release(d9d_prompts *p); /* accepts a zeroed one */

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_CHAT_PROMPTS_H */
