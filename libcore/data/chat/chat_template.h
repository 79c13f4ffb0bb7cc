/* chat_template.h - the chat template of a checkpoint: finding it and compiling it, with the
 * variables that every chat is rendered with. */
#ifndef D9DI_DATA_CHAT_CHAT_TEMPLATE_H
#define D9DI_DATA_CHAT_CHAT_TEMPLATE_H

#include "d9d/base/hash.h"
#include "d9d/data/chat/chat.h"
#include "d9d/data/jinja/jinja.h"

typedef struct d9di_chat_template {
    d9d_arena arena;
    const char *where; /* what renders: a file, or "FILE: chat_template" */
    const char *text;  /* of `template` */
    size_t n;
    bool beside;                        /* it is in the tokenizer_config.json of the tokenizer */
    const d9d_jinja_template *template; /* the one called "default", or the only one */
    const d9d_jinja_template *tool_use; /* for chats with tools; NULL: the same */
    json_t *variables;                  /* special tokens, and what the user gives */
    struct tm date;
    bool has_date;
    d9d_hash text_hash, tool_use_hash;
    d9d_hash hash; /* of the templates, the variables and the date */
} d9di_chat_template;

/* ECONFIG: there is no template, or it does not use a variable that is given. */
d9d_status d9di_chat_template_load(const d9d_chat_opts *opts, d9di_chat_template **out);
void d9di_chat_template_free(d9di_chat_template *t);
bool d9di_chat_template_mentions(const d9di_chat_template *t, const char *name);

#endif
