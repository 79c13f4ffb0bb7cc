/* chat_private.h - a chat template bound to a tokenizer; see d9d/data/chat/chat.h. */
#ifndef D9DI_DATA_CHAT_CHAT_PRIVATE_H
#define D9DI_DATA_CHAT_CHAT_PRIVATE_H

#include "data/chat/chat_render.h"
#include "data/io/jsonl.h"

typedef struct d9di_chat d9di_chat;

/* Loads the template.  ECONFIG names what is wrong with it.  The tokenizer is borrowed. */
d9d_status d9di_chat_load(const d9d_chat_opts *opts, const d9d_tokenizer *tok, d9di_chat **out);
void d9di_chat_free(d9di_chat *c);
const d9di_chat_template *d9di_chat_get_template(const d9di_chat *c);
/* Reads the members of a line that the template mentions. */
d9di_chat_reader d9di_chat_get_reader(const d9di_chat *c);
/* How it is known what is trained: "generation" blocks or "differences". */
const char *d9di_chat_masks(const d9di_chat *c);
/* ECONFIG if it is not known what is trained of a chat, or nothing of an answer is. */
d9d_status d9di_chat_check_trains(const d9di_chat *c);

/* What was removed from a chat that was too long. */
typedef struct d9di_chat_truncation {
    bool dropped; /* the whole chat */
    int64_t turns, targets;
} d9di_chat_truncation;

/* Appends the ids and labels of a chat, {"messages": [...]}, or nothing if no token is trained.  A
 * chat of more than `max_positions` positions (0: unlimited) is truncated to as many leading turns
 * as fit, ending with a trained one; it is dropped if there are none.  `rendering` is scratch.
 * EFORMAT: the template refuses the chat. */
d9d_status d9di_chat_encode(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                            int64_t max_positions, d9di_chat_rendering *rendering,
                            d9d_token_ids *ids, d9di_token_labels *labels,
                            d9di_chat_truncation *lost);

/* The same of a chat as it is, with its last token too, which has no target. */
d9d_status d9di_chat_encode_whole(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                                  d9di_chat_rendering *rendering, d9d_token_ids *ids,
                                  d9di_token_labels *labels);

/* Appends the prompt for the assistant's reply. */
d9d_status d9di_chat_encode_prompt(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                                   d9di_chat_rendering *rendering, d9d_token_ids *ids);

#endif
