/* small_hybrid.c - see small_models.h. */
#define SMALL_PLUGIN small_hybrid_plugin
#include "small_plugin.h"

#include "../../../examples/plugins/hybrid.c"

#include "small_models.h"

d9d_status small_hybrid_create(d9d_dtype t, int64_t vocab, int64_t positions, d9d_model **out)
{
    static dims c = {.hidden_size = 40,
                     .intermediate_size = 34,
                     .num_hidden_layers = 3,
                     .full_attention_interval = 3,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 2,
                     .head_dim = 8,
                     .linear_num_key_heads = 2,
                     .linear_num_value_heads = 4,
                     .linear_key_head_dim = 12,
                     .linear_value_head_dim = 10,
                     .linear_conv_kernel_dim = 4,
                     .rms_norm_eps = 1e-6,
                     .rope_theta = 1e4};
    const d9d_model_opts options = {.dtype = t};

    c.vocab_size = vocab;
    c.max_position_embeddings = positions;
    return create(&c, D9D_WHOLE_MODEL, &options, out);
}
