/* chat_private.h - a chat template bound to a tokenizer; see d9d/data/chat/chat.h. */
#ifndef D9DI_DATA_CHAT_CHAT_PRIVATE_H
#define D9DI_DATA_CHAT_CHAT_PRIVATE_H

#include "data/chat/chat_render.h"

typedef struct d9di_chat d9di_chat;

/* Loads a template file of at most 1 MiB.  ECONFIG names what is wrong with it.  The tokenizer is
 * borrowed. */
d9d_status d9di_chat_load(const char *path, const d9d_tokenizer *tok, d9di_chat **out);
void d9di_chat_free(d9di_chat *c);
/* Hash of the template file. */
d9d_hash d9di_chat_hash(const d9di_chat *c);

/* What was removed from a chat that was too long. */
typedef struct d9di_chat_truncation {
    bool dropped; /* the whole chat */
    int64_t turns, targets;
} d9di_chat_truncation;

/* Appends the ids and labels of a chat, or nothing if no token is trained.  A chat of more than
 * `max_positions` positions (0: unlimited) is truncated to as many leading turns as fit, ending
 * with a trained one; it is dropped if there are none.  `rendering` is scratch.  EFORMAT fills
 * *error if the messages are at fault. */
d9d_status d9di_chat_encode(const d9di_chat *c, d9d_tokenizer_scratch *s,
                            const d9di_chat_messages *m, int64_t max_positions,
                            d9di_chat_rendering *rendering, d9d_token_ids *ids,
                            d9di_token_labels *labels, d9di_chat_truncation *lost,
                            d9di_jsonl_error *error);

/* Appends the prompt for a reply of role `speaker`: the chat without its `end`, then that role's
 * prefix, with empty thoughts if there are to be none.  ECONFIG: there is no such role, or it has
 * no thoughts to leave out. */
d9d_status d9di_chat_encode_prompt(const d9di_chat *c, d9d_tokenizer_scratch *s,
                                   const d9di_chat_messages *m, const char *speaker,
                                   bool no_thoughts, d9di_chat_rendering *rendering,
                                   d9d_token_ids *ids, d9di_jsonl_error *error);

#endif
