/* small_llama.c - see small_models.h. */
#define SMALL_PLUGIN small_llama_plugin
#include "small_plugin.h"

#include "../../../examples/plugins/plain_llama.c"

#include "small_models.h"

d9d_status small_llama_create(d9d_dtype t, int64_t vocab, int64_t positions, d9d_model **out)
{
    static dims c = {.hidden_size = 40,
                     .intermediate_size = 34,
                     .num_hidden_layers = 2,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 2,
                     .rms_norm_eps = 1e-6,
                     .rope_theta = 1e4};
    const d9d_model_opts options = {.dtype = t};

    c.vocab_size = vocab;
    c.max_position_embeddings = positions;
    return create(&c, D9D_WHOLE_MODEL, &options, out);
}
