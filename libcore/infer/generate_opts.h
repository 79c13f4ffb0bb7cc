/* generate_opts.h - how tokens are chosen and how many, by a job's section and the model's files.
 *
 * What the section leaves null is that of generation_config.json, and where that says nothing
 * either: greedy, without a penalty, 128 new tokens.  A file that samples and names no top_k has
 * transformers' 50.
 */
#ifndef D9DI_INFER_GENERATE_OPTS_H
#define D9DI_INFER_GENERATE_OPTS_H

#include "engine/generation_config.h"
#include "infer/token_sampler.h"

typedef struct d9di_generate_opts {
    d9di_token_sampler_opts sampler;
    int64_t max_new;    /* most new tokens of a sequence */
    int64_t max_length; /* most tokens of a sequence; INT64_MAX: as many as the model has */
} d9di_generate_opts;

/* `from_file`, appended to: what the file decided, "temperature 0.6, top_k 20".  ECONFIG for a file
 * that samples at temperature 0. */
d9d_status d9di_generate_opts_choose(const d9d_job_generate_section *s,
                                     const d9di_generation_config *g, d9d_buf *from_file,
                                     d9di_generate_opts *out);
/* Of all members. */
d9d_hash d9di_generate_opts_hash(const d9di_generate_opts *o);

#endif /* D9DI_INFER_GENERATE_OPTS_H */
