/* chat_render.h - messages as one text, and what its parts are. */
#ifndef D9DI_DATA_CHAT_CHAT_RENDER_H
#define D9DI_DATA_CHAT_CHAT_RENDER_H

#include "d9d/data/chat/chat.h"
#include "data/build/jsonl.h"
#include "data/tokenizer/tokenizer_private.h"

/* A role, ready to render. */
typedef struct d9di_chat_speaker {
    const d9d_chat_role *from;
    bool trains[D9D_CHAT_FIELDS]; /* by d9d_chat_field */
} d9di_chat_speaker;

typedef struct d9di_chat_roles {
    const d9d_chat_template *from;
    d9di_chat_speaker *list; /* [n] */
    size_t n;
    const d9di_chat_speaker *system; /* NULL: there is none */
} d9di_chat_roles;

/* NULL: there is no such role. */
const d9di_chat_speaker *d9di_chat_find_role(const d9di_chat_roles *roles, const char *name,
                                             size_t n);

/* Text from the end of the one before it to byte `end`. */
struct d9di_chat_loss_span {
    size_t end;
    bool trained;
};

typedef struct d9di_chat_rendering {
    d9d_buf text;
    D9D_VEC(d9di_tokenizer_zone) zones;             /* tile it, */
    D9D_VEC(struct d9di_chat_loss_span) loss_spans; /* and so do these */
    D9D_VEC(size_t) ends;                           /* where each message ends */
    d9di_alignments spans;                          /* of the text's tokens, */
    D9D_VEC(int64_t) targets; /* and those of each message; for who encodes it */
} d9di_chat_rendering;        /* zero-initialised is empty */
void d9di_chat_rendering_release(d9di_chat_rendering *r);

/* The role that speaks next. */
typedef struct d9di_chat_next_turn {
    const d9di_chat_speaker *role;
    bool no_thoughts; /* behind empty ones, which the role must have */
} d9di_chat_next_turn;

/* The first n of the messages as a whole chat, or, unless `next` is NULL, as what that role is to
 * go on from.  EFORMAT fills *error where the messages are at fault. */
d9d_status d9di_chat_render(const d9di_chat_roles *roles, const d9di_chat_messages *m, size_t n,
                            const d9di_chat_next_turn *next, d9di_chat_rendering *out,
                            d9di_jsonl_error *error);

#endif
