/* prompt_source.h - what a model is asked to go on with: the samples of the data section, or a file
 * of prompts. */
#ifndef D9DI_INFER_PROMPT_SOURCE_H
#define D9DI_INFER_PROMPT_SOURCE_H

#include "d9d/data/chat/prompts.h"
#include "tasks/run_data.h"

typedef struct d9di_prompt_source {
    const d9d_job_generate_section *how;
    int64_t n;       /* samples */
    int64_t longest; /* tokens of one */
    d9d_hash hash;
    /* One of the two. */
    d9d_prompts prompts;
    d9di_run_data data;
    d9d_batch_buffer *buffer;
} d9di_prompt_source;

/* Of a data section, where the task names no prompts.  ECONFIG for both or none, and for what has
 * no end; ENOTSUP for packed documents. */
d9d_status d9di_prompt_source_open_data(const d9d_infer_config *c, d9di_prompt_source *out);
/* Of the task's file; nothing where it names none. */
d9d_status d9di_prompt_source_open_prompts(d9di_prompt_source *a, const d9d_tokenizer *tokenizer,
                                           int64_t vocab);
void d9di_prompt_source_release(d9di_prompt_source *a);

/* One sample: what it is called, and its prompt, appended. */
typedef struct d9di_prompt_source_item {
    int64_t sample;
    int dataset; /* -1: there are not several */
} d9di_prompt_source_item;
d9d_status d9di_prompt_source_get(d9di_prompt_source *a, int64_t k, d9d_token_ids *ids,
                                  d9di_prompt_source_item *out);

#endif /* D9DI_INFER_PROMPT_SOURCE_H */
