/* preference_layout.h - records of preferred answers, made chats of one answer each.
 *
 *     pairs      {"prompt": ..., "chosen": ..., "rejected": ...}
 *     unpaired   {"prompt": ..., "completion": ..., "label": true}
 *
 * A prompt or an answer is a text, which becomes the message of a user or an assistant, or a list
 * of messages.  Without a list as "prompt", a list as answer has the prompt too, and what both
 * answers begin with is the prompt.  Answers alone are trained.  Other members, such as "tools", go
 * with each chat; a text such as a context that the template does not read is refused, as beside a
 * question (chat_layout.h).  These are TRL's layouts.
 */
#ifndef D9DI_DATA_IO_PREFERENCE_LAYOUT_H
#define D9DI_DATA_IO_PREFERENCE_LAYOUT_H

#include "data/io/jsonl.h"

/* The chats of a record, {"messages": [...], ...}; NULL: that answer is absent.  Of an unpaired
 * record the first is desirable and the second is not. */
typedef struct d9di_answer_pair {
    json_t *chosen, *rejected;
} d9di_answer_pair;
void d9di_answer_pair_release(d9di_answer_pair *p);

/* EFORMAT: *error says what is missing. */
d9d_status d9di_answer_pair_read(const char *line, size_t n, const d9di_chat_reader *reader,
                                 d9di_answer_pair *out, d9di_jsonl_error *error);
d9d_status d9di_answer_pair_read_unpaired(const char *line, size_t n,
                                          const d9di_chat_reader *reader, d9di_answer_pair *out,
                                          d9di_jsonl_error *error);
/* The prompt of an unpaired record with the answer of another one. */
d9d_status d9di_answer_pair_read_mismatch(const char *line, size_t n, const char *other, size_t m,
                                          json_t **out, d9di_jsonl_error *error);

#endif /* D9DI_DATA_IO_PREFERENCE_LAYOUT_H */
