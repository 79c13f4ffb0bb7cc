/* prompt_source.h - what a model is asked to go on with: the samples of the data section, or a file
 * of prompts. */
#ifndef D9DI_INFER_PROMPT_SOURCE_H
#define D9DI_INFER_PROMPT_SOURCE_H

#include "d9d/data/chat/prompts.h"
#include "tasks/run_data.h"

typedef struct d9di_asked {
    const d9d_generate_section *how;
    int64_t n;       /* samples */
    int64_t longest; /* tokens of one */
    d9d_hash hash;
    /* One of the two. */
    d9d_prompts prompts;
    d9di_data data;
    d9d_batch_room *room;
} d9di_asked;

/* Of a data section, where the task names no prompts.  ECONFIG for both or none, and for what has
 * no end; ENOTSUP for packed documents. */
d9d_status d9di_asked_data(const d9d_infer_config *c, d9di_asked *out);
/* Of the task's file; nothing where it names none. */
d9d_status d9di_asked_prompts(d9di_asked *a, const d9d_tokenizer *tokenizer, int64_t vocab);
void d9di_asked_release(d9di_asked *a);

/* One sample: what it is called, and its prompt, appended. */
typedef struct d9di_question {
    int64_t sample;
    int dataset; /* -1: there are not several */
} d9di_question;
d9d_status d9di_asked_get(d9di_asked *a, int64_t k, d9d_ids *ids, d9di_question *out);

#endif /* D9DI_INFER_PROMPT_SOURCE_H */
