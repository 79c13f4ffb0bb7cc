/* prompt_source.h - the prompts of generation: samples of the data section, or a file. */
#ifndef D9DI_INFER_PROMPT_SOURCE_H
#define D9DI_INFER_PROMPT_SOURCE_H

#include "d9d/data/chat/prompts.h"
#include "tasks/run_data.h"

typedef struct d9di_prompt_source {
    const d9d_job_generate_section *section;
    int64_t n;       /* samples */
    int64_t longest; /* tokens of the longest */
    d9d_hash hash;
    /* One of these two is open. */
    d9d_prompts prompts;
    d9di_run_data data;
    d9d_batch_buffer *buffer;
    int64_t first_virtual, virtual_tokens; /* ids [first, + n) begin each prompt */
} d9di_prompt_source;

/* Opens the data section, if the task names no prompts.  ECONFIG for both or neither, and for an
 * endless stream; ENOTSUP for packed documents. */
d9d_status d9di_prompt_source_open_data(const d9d_infer_config *c, d9di_prompt_source *out);
/* Opens the task's file of prompts; does nothing if there is none. */
d9d_status d9di_prompt_source_open_prompts(d9di_prompt_source *a, const d9d_tokenizer *tokenizer,
                                           const char *tokenizer_path, int64_t vocab);
/* Every prompt begins with n ids [first, first + n); the loader of a data section has them already.
 */
void d9di_prompt_source_set_virtual(d9di_prompt_source *a, int64_t first, int64_t n);
void d9di_prompt_source_release(d9di_prompt_source *a);

/* One sample: its identity, and its prompt, which is appended. */
typedef struct d9di_prompt_source_item {
    int64_t sample;
    int dataset; /* -1: there is only one dataset */
} d9di_prompt_source_item;
d9d_status d9di_prompt_source_get(d9di_prompt_source *a, int64_t k, d9d_token_ids *ids,
                                  d9di_prompt_source_item *out);

#endif /* D9DI_INFER_PROMPT_SOURCE_H */
