/* chat.h - chat templates: how messages are rendered to training text, and which of its tokens are
 * trained.
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
 * A chat is rendered as `bos`, then for each message its role's prefix, the content, the suffix and
 * `after`, then `end`.  A chat without a system message gets the default one, if the template has
 * one.
 *
 *     <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
 *                                                           =====~~~~~~~~~~      trained
 *
 * Optional members of templates and roles:
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
 * The chat's "tools" are appended to the first system message's content, separated by `between`;
 * without such a message they are its content.  They are rendered as `prefix`, then `each` and the
 * JSON of each tool, then `suffix`.  A message's "tool_calls" follow its content as `prefix`, the
 * name, `infix`, the arguments, `suffix`.  `between` separates calls, and separates the first call
 * from the content if the content has anything but newlines after its last token.  JSON has one
 * space after ',' and ':', as in HF templates.  `open` and `close` enclose consecutive messages of
 * one role, such as the results of several calls.  Whatever the template cannot render is an error;
 * nothing is silently left out.
 *
 * Thoughts (reasoning) are a message's "reasoning_content".  Without that member they are the part
 * of its content from the last `begin` before the first `end`; the content is then what follows the
 * last `end`.  They are rendered as `prefix`, thoughts, `suffix`, content.  Newlines at both ends
 * of the thoughts and at the beginning of the content are removed.  Only messages after the last
 * message of role `behind` show their thoughts.  A message of that role does not count if it begins
 * with `unless_prefix` and ends with `unless_suffix`.  `empty` says which messages without thoughts
 * are rendered with empty ones: the `last` of the chat, or `always`.  Without a `thoughts` member
 * contents are rendered as they are.
 *
 * Added tokens ("<|im_start|>") are tokens where the template writes them.  In contents they are
 * ordinary text, except those in the role's `tokens`: so nobody can forge another role's turn by
 * writing "<|im_end|>".  The whole text is tokenised at once, as HF does with rendered templates.
 *
 * A token is trained if any of its bytes belongs to a trained field, so a token across a field's
 * border is trained.  Targets are the next tokens of trained text; all other targets are -100.  A
 * chat of n tokens has n - 1 positions.  A chat without a target is left out.
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

/* Which messages without thoughts are rendered with empty ones. */
typedef enum d9d_chat_empty {
    D9D_CHAT_EMPTY_NEVER,
    D9D_CHAT_EMPTY_LAST, /* the last of the chat */
    D9D_CHAT_EMPTY_ALWAYS
} d9d_chat_empty;

typedef struct d9d_chat_thoughts {
    const char *begin, *end; /* markers in contents; "": contents have no thoughts */
    const char *prefix, *suffix;
    const char *behind; /* only after the last message of this role; NULL: in every message */
    const char *unless_prefix, *unless_suffix; /* "": all messages of that role count */
    int empty;                                 /* d9d_chat_empty */
} d9d_chat_thoughts;

typedef struct d9d_chat_role {
    const char *name, *prefix, *suffix, *after, *open, *close;
    d9d_chat_thoughts *thoughts; /* NULL: thoughts are part of the content */
    d9d_chat_calls *calls;       /* NULL: not rendered */
    d9d_list train;              /* int: d9d_chat_field */
    d9d_list tokens;             /* const char *: added tokens allowed in contents of this role */
} d9d_chat_role;

typedef enum d9d_chat_field {
    D9D_CHAT_PREFIX,
    D9D_CHAT_CONTENT,
    D9D_CHAT_SUFFIX,
    D9D_CHAT_AFTER,
    D9D_CHAT_CALLS,
    D9D_CHAT_THOUGHTS,
    D9D_CHAT_FIELDS /* the number of fields */
} d9d_chat_field;

typedef struct d9d_chat_template {
    const char *bos, *end;
    const char *default_system; /* NULL: none */
    d9d_chat_tools *tools;      /* NULL: not rendered */
    d9d_list roles;             /* d9d_chat_role */
} d9d_chat_template;

D9D_API extern const d9d_table d9d_chat_table; /* key table of a d9d_chat_template */

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_CHAT_CHAT_H */
