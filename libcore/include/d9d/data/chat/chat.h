/* chat.h - chat templates: how messages are rendered to text, and which of its tokens are trained.
 *
 * A template is Jinja, as HuggingFace transformers has it (d9d/data/jinja/jinja.h).  It is, in this
 * order,
 *
 *     the file that is given
 *     chat_template.jinja                          beside the tokenizer
 *     "chat_template" of tokenizer_config.json     beside the tokenizer
 *
 * A "chat_template" that is a list has named templates: "tool_use" renders chats with tools,
 * "default" the others; so does additional_chat_templates/tool_use.jinja beside
 * chat_template.jinja.
 *
 * A chat is one JSON object.  The template sees all of its members:
 *
 *     {"messages": [{"role": "user", "content": "1 + 1?"},
 *                   {"role": "assistant", "reasoning_content": "Easy.", "content": "2"}],
 *      "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
 *      "enable_thinking": true}
 *
 * Besides, it sees the special tokens of tokenizer_config.json, `add_generation_prompt`, and the
 * variables of the options.  A member of the chat goes before a variable of the same name, but not
 * before a special token.  What is made of a chat before:
 *
 *     "system"              becomes the first message
 *     "tools"               a text of JSON becomes the array that it has
 *     reasoning             is under "reasoning_content" and "thinking", whichever of these or
 *                           "reasoning" a message has
 *     null                  is left out of messages, where it is not the content
 *     parts of a content    [{"type": "text", "text": "..."}] are joined to one string, unless the
 *                           template mentions "text"
 *
 * --- trained tokens ---
 *
 * Trained is what the template encloses in {% generation %}.  A template without such blocks writes
 * each message in an iteration of its loop over them.  Of an assistant's message, trained is what
 * follows the text of the generation prompt, without white space behind its end:
 *
 *     <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
 *                                     ~~~~~~~~~~~~~~~~~~~~~~                     generation prompt
 *                                                           ===============      trained
 *
 * Where other messages are written within an answer's iteration, as results are behind their calls,
 * the answer ends where the text of the chat up to it does.
 *
 * An answer that no such loop writes is the difference of the chat rendered up to before it and up
 * to after it.  Where that does not tell, the template is refused; so is one that writes what ends
 * an answer with the next message.
 *
 * A message whose "weight" is 0 is shown and not trained.  A token is trained if any of its bytes
 * is.  Targets are the next tokens of trained text; all other targets are -100.  A chat of n tokens
 * has n - 1 positions.  A chat without a target is left out.
 *
 * --- special tokens ---
 *
 * The text is tokenised as a whole, as transformers does, with one difference.  A special token
 * that the chat's own text spells is ordinary text: so nobody can forge another one's turn by
 * writing "<|im_end|>".  The renderer knows of each byte whether the template or the chat wrote it.
 * Added tokens that are not special, as <think> of most models, are tokens wherever they stand.
 */
#ifndef D9D_DATA_CHAT_CHAT_H
#define D9D_DATA_CHAT_CHAT_H

#include "d9d/base/json.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Borrowed; NULL: not given. */
typedef struct d9d_chat_opts {
    const char
        *chat_template;    /* a file of Jinja, a tokenizer_config.json, or a folder with these */
    const char *tokenizer; /* tokenizer.json, beside which the other files are */
    const json_t *kwargs;  /* an object: more variables of the template */
    const char *date;      /* "YYYY-MM-DD", what strftime_now() of a template prints */
} d9d_chat_opts;

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_CHAT_CHAT_H */
