/* chat_render.h - renders messages to one text and marks its parts. */
#ifndef D9DI_DATA_CHAT_CHAT_RENDER_H
#define D9DI_DATA_CHAT_CHAT_RENDER_H

#include "d9d/data/chat/chat.h"
#include "data/build/jsonl.h"
#include "data/tokenizer/tokenizer_private.h"

/* A role, prepared for rendering. */
typedef struct d9di_chat_speaker {
    const d9d_chat_role *from;
    bool trains[D9D_CHAT_FIELDS]; /* indexed by d9d_chat_field */
} d9di_chat_speaker;

typedef struct d9di_chat_roles {
    const d9d_chat_template *from;
    d9di_chat_speaker *list; /* [n] */
    size_t n;
    const d9di_chat_speaker *system; /* NULL: no such role */
} d9di_chat_roles;

/* NULL if there is no such role. */
const d9di_chat_speaker *d9di_chat_find_role(const d9di_chat_roles *roles, const char *name,
                                             size_t n);

/* A span of text from the end of the previous one to byte `end`. */
struct d9di_chat_loss_span {
    size_t end;
    bool trained;
};

typedef struct d9di_chat_rendering {
    d9d_buf text;
    D9D_VEC(d9di_tokenizer_zone) zones;             /* tile the text */
    D9D_VEC(struct d9di_chat_loss_span) loss_spans; /* tile the text: trained or not */
    D9D_VEC(size_t) ends;                           /* end of each message in the text */
    d9di_alignments spans;                          /* byte spans of the text's tokens */
    D9D_VEC(int64_t) targets; /* targets of each message; used by the encoder */
} d9di_chat_rendering;        /* zero-initialised is empty */
void d9di_chat_rendering_release(d9di_chat_rendering *r);

/* The role of the next turn. */
typedef struct d9di_chat_next_turn {
    const d9di_chat_speaker *role;
    bool no_thoughts; /* begin with empty thoughts; the role must have thoughts */
} d9di_chat_next_turn;

/* Renders the first n messages as a complete chat or, unless `next` is NULL, as a prompt for that
 * role's turn.  EFORMAT fills *error if the messages are at fault. */
d9d_status d9di_chat_render(const d9di_chat_roles *roles, const d9di_chat_messages *m, size_t n,
                            const d9di_chat_next_turn *next, d9di_chat_rendering *out,
                            d9di_jsonl_error *error);

#endif
