/* chat_private.h - a chat template made ready for a tokenizer; see d9d/data/chat/chat.h. */
#ifndef D9DI_DATA_CHAT_CHAT_PRIVATE_H
#define D9DI_DATA_CHAT_CHAT_PRIVATE_H

#include "data/chat/chat_render.h"

typedef struct d9di_chat d9di_chat;

/* A file of at most 1 MiB.  ECONFIG names what is wrong with it; the tokenizer is borrowed. */
d9d_status d9di_chat_load(const char *path, const d9d_tokenizer *tok, d9di_chat **out);
void d9di_chat_free(d9di_chat *c);
/* Of the file. */
d9d_hash d9di_chat_hash(const d9di_chat *c);

/* What of a chat is left out because it is too long. */
typedef struct d9di_chat_truncation {
    bool dropped; /* all of it */
    int64_t turns, targets;
} d9di_chat_truncation;

/* Append the ids and labels of a chat, neither when nothing of it is trained.  One of more than
 * `max_positions` positions, unless that is 0, is that of as many first turns as fit, the last of
 * them a trained one; it is dropped when there are none.  `rendering` is to work in.  EFORMAT fills
 * *error where the messages are at fault. */
d9d_status d9di_chat_encode(const d9di_chat *c, d9d_tokenizer_scratch *s,
                            const d9di_chat_messages *m, int64_t max_positions,
                            d9di_chat_rendering *rendering, d9d_token_ids *ids,
                            d9di_token_labels *labels, d9di_chat_truncation *lost,
                            d9di_jsonl_error *error);

/* Append the ids that `speaker` is to go on from: the chat without its `end`, and that role's
 * prefix, with empty thoughts where there are to be none.  ECONFIG when there is no such role, or
 * when it has no thoughts to leave out. */
d9d_status d9di_chat_encode_prompt(const d9di_chat *c, d9d_tokenizer_scratch *s,
                                   const d9di_chat_messages *m, const char *speaker,
                                   bool no_thoughts, d9di_chat_rendering *rendering,
                                   d9d_token_ids *ids, d9di_jsonl_error *error);

#endif
