/* generation_config.h - what a model's files say of generation, as transformers reads them.
 *
 *     generation_config.json, else the members of generation in config.json, of the folder of the
 *     weights; where that has neither, of the folder of the provider's hf_config
 *
 * One file counts and the others are not looked at: a generation_config.json without eos_token_id
 * has none, whatever config.json says.  A null is an absent member.  In config.json the text model
 * of a multimodal one ("text_config") stands in for what is absent outside.  A member that would
 * change what is generated, and that nothing here does, is named in `left_out`.
 */
#ifndef D9DI_ENGINE_GENERATION_CONFIG_H
#define D9DI_ENGINE_GENERATION_CONFIG_H

#include "engine/model_aux_files.h"

typedef struct d9di_generation_config {
    const char *path;      /* the file; NULL: there is none, and the rest is not said */
    d9d_list eos_token_id; /* int64_t; a negative one ends nothing */
    bool do_sample;        /* false: not said, or greedy */
    double temperature, top_p, min_p, repetition_penalty; /* NaN: not said */
    int64_t top_k, max_length, max_new_tokens;            /* D9D_INT_NULL: not said */
    const char *left_out; /* "num_beams 4, stop_strings [\"a\"]"; "" for nothing */
} d9di_generation_config;

/* Read it into the arena.  ECONFIG for a value that no generation can have. */
d9d_status d9di_generation_config_read(const d9di_model_aux_files_places *c, d9d_arena *a,
                                       d9di_generation_config *out);

/* Append the tokens that end a generation. */
d9d_status d9di_generation_config_stops(const d9di_generation_config *g, d9d_token_ids *out);

#endif /* D9DI_ENGINE_GENERATION_CONFIG_H */
