/* chat_jinja.h - the chat template that a checkpoint brings along: loading it, rendering a chat,
 * and which of its text the assistant wrote.
 *
 * The context is what HuggingFace transformers gives a template: `messages` without null members,
 * `tools` and `documents` (null if the chat has none), `add_generation_prompt`, the special tokens
 * of tokenizer_config.json, and every other member of the chat.  A message's reasoning is under
 * "reasoning_content" and "thinking", whichever of these or "reasoning" the chat has. */
#ifndef D9DI_DATA_CHAT_CHAT_JINJA_H
#define D9DI_DATA_CHAT_CHAT_JINJA_H

#include "d9d/data/jinja/jinja.h"

typedef struct d9di_chat_jinja d9di_chat_jinja;

/* `path` is a model folder, whose chat_template.jinja goes before the "chat_template" of its
 * tokenizer_config.json; such a configuration; or a template, beside which there may be one.  Of
 * several templates the one called "default" is taken. */
d9d_status d9di_chat_jinja_load(const char *path, d9di_chat_jinja **out);
void d9di_chat_jinja_free(d9di_chat_jinja *c);

/* Appends the text of a chat, {"messages": [...], "tools": [...]}.  prompt: up to where the
 * assistant's next turn begins.  now: NULL, or what strftime_now() prints. */
d9d_status d9di_chat_jinja_render(const d9di_chat_jinja *c, const json_t *chat, bool prompt,
                                  const struct tm *now, d9d_buf *text);

/* The same of a whole chat, with the spans of what the assistant wrote.  They are the template's
 * generation blocks.  A template without such blocks is rendered up to before and up to after each
 * message of the assistant: what is between is the span.  It has none where these texts do not
 * begin the text of the chat, as where a template drops the reasoning of earlier turns. */
d9d_status d9di_chat_jinja_render_spans(const d9di_chat_jinja *c, const json_t *chat,
                                        const struct tm *now, d9d_buf *text,
                                        d9d_jinja_spans *spans);

#endif
