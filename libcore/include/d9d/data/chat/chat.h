/* chat.h - how messages become the text that a model is trained on, and which of it.
 *
 * A template is a small JSON file, d9d.chat.v1 (schemas/d9d.chat.v1.json):
 *
 *     {"schema": "d9d.chat.v1",
 *      "default_system": "You are a helpful assistant.",
 *      "roles": [
 *        {"name": "system",    "prefix": "<|im_start|>system\n", "suffix": "<|im_end|>\n"},
 *        {"name": "user",      "prefix": "<|im_start|>user\n",   "suffix": "<|im_end|>\n"},
 *        {"name": "assistant", "prefix": "<|im_start|>assistant\n", "suffix": "<|im_end|>",
 *         "after": "\n", "train": ["content", "suffix"], "tokens": ["<think>", "</think>"]}]}
 *
 * A chat is `bos`, then for each message its role's prefix, the content, the suffix and
 * `after`, then `end`.  A chat without a system message gets the default one, if there is one.
 *
 *     <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
 *                                                           =====~~~~~~~~~~      trained
 *
 * Where templates and messages have more:
 *
 *     "tools": {"between": "\n\n", "prefix": "You may call\n<tools>", "each": "\n",
 *               "suffix": "\n</tools>"}                                of the template
 *     "calls": {"between": "\n", "prefix": "<call>{\"name\": \"", "infix": "\", \"arguments\": ",
 *               "suffix": "}</call>"}                                  of a role
 *     "thoughts": {"begin": "<think>", "end": "</think>",
 *                  "prefix": "<think>\n", "suffix": "\n</think>\n\n",
 *                  "behind": "user", "empty": "last"}                  of a role
 *     "open", "close"                                                  of a role
 *
 * The chat's "tools" follow the first system message's content behind `between`, or are all of
 * it when there is none: `prefix`, for each tool `each` and its JSON, `suffix`.  A message's
 * "tool_calls" follow its content: `prefix`, the name, `infix`, the arguments, `suffix`.
 * `between` parts them, and the first from the content where something other than newlines is
 * behind the last token of that.  JSON has one space behind ',' and ':', as HF templates write it.
 * `open` and `close` stand around messages of one role that follow each other, such as the
 * results of several calls.  What is not rendered by the template is an error, not left out.
 *
 * Thoughts are a message's "reasoning_content", or else what its content has from the last `begin`
 * in front of the first `end`; the content is then what is behind the last `end`.  They are
 * rendered as `prefix`, thoughts, `suffix`, content, without newlines at the ends of the thoughts
 * and at the beginning of the content, in messages behind the last one of the role `behind`, and
 * left out of those before it.  A message of that role does not count that begins with
 * `unless_prefix` and ends with `unless_suffix`.  So is a message without thoughts, if it is the
 * chat's `last`, or `always`. Without `thoughts` contents are rendered as they are.
 *
 * Added tokens ("<|im_start|>") are tokens in what the template says.  In contents they are
 * text like any other, whoever wrote it, but for those in the role's `tokens`: nobody forges
 * the turn of another by writing "<|im_end|>".  The whole text is tokenised in one, as HF
 * tokenises what its templates render.
 *
 * A token is trained where a byte of it is of a part that is trained, so one that crosses the
 * border of such a part is.  Targets are the next tokens of what is trained, all others -100; a
 * chat of n tokens has n - 1 positions.  One without a target is left out.
 */
#ifndef D9D_DATA_CHAT_CHAT_H
#define D9D_DATA_CHAT_CHAT_H

#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_chat_calls {
    const char *between, *prefix, *infix, *suffix;
} d9d_chat_calls;

typedef struct d9d_chat_tools {
    const char *between, *prefix, *each, *suffix;
} d9d_chat_tools;

/* Messages without thoughts that are rendered as those with some are. */
typedef enum d9d_chat_empty {
    D9D_CHAT_EMPTY_NEVER,
    D9D_CHAT_EMPTY_LAST, /* the last of the chat */
    D9D_CHAT_EMPTY_ALWAYS
} d9d_chat_empty;

typedef struct d9d_chat_thoughts {
    const char *begin, *end; /* in contents; "": they have none */
    const char *prefix, *suffix;
    const char *behind; /* a role; NULL: they are rendered in every message */
    const char *unless_prefix, *unless_suffix; /* "": messages of that role all count */
    int empty;                                 /* d9d_chat_empty */
} d9d_chat_thoughts;

typedef struct d9d_chat_role {
    const char *name, *prefix, *suffix, *after, *open, *close;
    d9d_chat_thoughts *thoughts; /* NULL: a part of the content */
    d9d_chat_calls *calls;       /* NULL: not rendered */
    d9d_list train;              /* int: d9d_chat_field */
    d9d_list tokens; /* const char *: added tokens that contents of this role may have */
} d9d_chat_role;

typedef enum d9d_chat_field {
    D9D_CHAT_PREFIX,
    D9D_CHAT_CONTENT,
    D9D_CHAT_SUFFIX,
    D9D_CHAT_AFTER,
    D9D_CHAT_CALLS,
    D9D_CHAT_THOUGHTS,
    D9D_CHAT_FIELDS /* how many there are */
} d9d_chat_field;

typedef struct d9d_chat_template {
    const char *bos, *end;
    const char *default_system; /* NULL: none */
    d9d_chat_tools *tools;      /* NULL: not rendered */
    d9d_list roles;             /* d9d_chat_role */
} d9d_chat_template;

D9D_API extern const d9d_table d9d_chat_table; /* of a d9d_chat_template */

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_CHAT_CHAT_H */
