/* chat_render.h - renders the messages of a chat to one text, and says which of it is trained. */
#ifndef D9DI_DATA_CHAT_CHAT_RENDER_H
#define D9DI_DATA_CHAT_CHAT_RENDER_H

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer_private.h"

/* What the trace has for text of the messages; 1 is text of the chat's other members. */
enum { D9DI_CHAT_OTHERS = 2, D9DI_CHAT_ASSISTANT = 3 /* or more: see d9di_chat_mark() */ };

typedef struct d9di_chat_rendering {
    d9d_buf text;
    d9d_jinja_trace trace;      /* of the text */
    d9d_buf marks;              /* of each message */
    d9d_jinja_spans loss_spans; /* what is trained: ascending, disjoint */
    D9D_VEC(size_t) ends;       /* where the text of each message ends; ascending */
    d9di_alignments spans;      /* byte spans of the text's tokens */
    D9D_VEC(int64_t) targets;   /* targets of each message; used by the encoder */
    d9d_buf part;               /* scratch */
    d9d_jinja_trace part_trace;
} d9di_chat_rendering; /* zero-initialised is empty */
void d9di_chat_rendering_release(d9di_chat_rendering *r);

/* Fills the text and its trace with the first n messages of a chat.  prompt: up to where the
 * assistant's next turn begins.  EFORMAT: the template refuses them. */
d9d_status d9di_chat_render(const d9di_chat_template *t, const json_t *chat, size_t n, bool prompt,
                            d9di_chat_rendering *out);

/* The same without a prompt; also fills loss_spans and ends.  EFORMAT, too: it is not known what
 * the assistant wrote. */
d9d_status d9di_chat_render_spans(const d9di_chat_template *t, const json_t *chat, size_t n,
                                  d9di_chat_rendering *out);

/* The mark of message k: of each of the assistant's another one, as far as bytes suffice. */
unsigned char d9di_chat_mark(const json_t *message, size_t k);

/* Is it a message of the assistant? */
bool d9di_chat_is_assistant(const json_t *message);
/* Is it a message of the assistant that may be trained? */
bool d9di_chat_is_trained(const json_t *message);

#endif
