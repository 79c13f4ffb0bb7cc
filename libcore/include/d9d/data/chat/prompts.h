/* prompts.h - what a model is to go on from: a JSONL file of texts, chats or ids.
 *
 *     {"prompt": "Once upon a time"}              as the tokenizer reads it
 *     {"messages": [{"role": "user", "content": "Hi"}]}    by a chat template,
 * d9d/data/chat/chat.h, up to where `speaker` begins
 *     {"input_ids": [17, 4, 9]}                   as it is
 *
 * Lines are read as d9d-shard reads them: these keys stand there once, others are passed over, and
 * a byte order mark before the first line is no part of it.  Files may be compressed.
 *
 *     D9D_TRY(d9d_prompts_read(&how, &prompts));
 *     ... prompts.ids.data[prompts.start[i] .. prompts.start[i + 1]) ...
 *     d9d_prompts_release(&prompts);
 */
#ifndef D9D_DATA_CHAT_PROMPTS_H
#define D9D_DATA_CHAT_PROMPTS_H

#include "d9d/data/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_prompts_opts {
    const char *path;
    const d9d_tokenizer *tokenizer; /* NULL: there are ids alone */
    const char *chat_template;      /* a d9d.chat.v1; NULL: there are no chats */
    const char *speaker;            /* the role that goes on, */
    bool no_thoughts;               /* behind empty thoughts */
    int64_t vocab;                  /* ids must be below */
} d9d_prompts_opts;

typedef struct d9d_prompts {
    int64_t n, longest;
    d9d_token_ids ids; /* of all of them, one behind the other */
    size_t *start;     /* [n + 1] */
    d9d_hash hash;     /* of all of it */
} d9d_prompts;

/* EFORMAT names the line that is at fault, or that has no token; ECONFIG where a tokenizer or a
 * template is wanted and not there. */
D9D_API D9D_MUST_USE d9d_status d9d_prompts_read(const d9d_prompts_opts *how, d9d_prompts *out);
D9D_API void d9d_prompts_release(d9d_prompts *p); /* a zeroed one is fine */

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_CHAT_PROMPTS_H */
