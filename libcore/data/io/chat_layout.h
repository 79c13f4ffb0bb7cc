/* chat_layout.h - chats as other projects write them, made messages with role and content.
 *
 *     ShareGPT        conversations: [{from, value}] or [{role, content}]
 *                     from: system; human, user; gpt, assistant, chatgpt, bing, bard, model;
 *                     tool, observation, function_response
 *     Alpaca          instruction, input, output; perhaps system, and history: [[question, answer]]
 *     Dolly           instruction, context, response
 *     pairs           prompt and completion or response, question and answer: texts, or of prompt
 *                     and completion lists of messages
 *
 * An input or context follows its instruction after a line end, as LLaMA-Factory joins them.  Every
 * answer is trained; of a list of messages as prompt, nothing is, as in TRL.  A text such as a
 * context beside a question that has no place for it is refused, since the answer would be learned
 * without it.
 */
#ifndef D9DI_DATA_IO_CHAT_LAYOUT_H
#define D9DI_DATA_IO_CHAT_LAYOUT_H

#include <stdbool.h>

#include "d9d/base/json.h"

/* Which members of a chat's line its template reads; NULL: none that is asked for here. */
typedef struct d9di_chat_reader {
    bool (*reads)(const void *arg, const char *name);
    const void *arg;
} d9di_chat_reader;

/* Makes the text at "system", if there is one, the first of the chat's "messages". */
d9d_status d9di_chat_layout_system(json_t *chat);

/* Makes "tools" that are a text the JSON that it has, which must be an array of objects.  EFORMAT
 * as below. */
d9d_status d9di_chat_layout_tools(json_t *chat, char *why, size_t size);

/* EFORMAT, as below: a text stands beside a question and its answer, the members of these names,
 * which an answer may depend on, and neither the layout reads it, unless it is `used` (NULL: none
 * is), nor the reader. */
d9d_status d9di_chat_layout_check_texts(const json_t *chat, const char *question,
                                        const char *answer, const char *used,
                                        const d9di_chat_reader *reader, char *why, size_t size);

/* Gives a chat without "messages" those of its layout.  False: it has no layout that is known.
 * Else *st says how it went; EFORMAT: why[0, size) says what its layout lacks, or which text beside
 * a question and its answer has no place in it and is not read either, and no message is recorded.
 */
bool d9di_chat_layout_convert(json_t *chat, const d9di_chat_reader *reader, char *why, size_t size,
                              d9d_status *st);

#endif
