/* seed_oss.c - a family of models as a plugin: ByteDance's Seed-OSS.
 *
 *     {"plugin": "libseed_oss.so", "model_provider": {"name": "seed_oss", "hf_config": "DIR"}}
 *     d9d-map --plugin ./libseed_oss.so hf/Seed-OSS-36B ckpt/seed
 *
 * Llama's layer with biases in the attention's projections, and dropout of what layers add.
 * Everything else follows from blocks and tables (d9d/model/family/family.h): every mesh,
 * pipelines, generation, LoRA, both layouts of files.
 */
#include <d9d/model/family/family.h>
#include <d9d/tasks/plugin.h>

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias, attention_out_bias;
} config;

static const d9d_key keys[] = {
    D9D_FAMILY_KEYS(config),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "524288"),
    D9D_KEY_INT(config, head_dim, D9D_REQUIRED, 1, 1 << 16, "features of a head"),
    D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_PADDING(config, "1"),
    D9D_KEY_BOOL(config, attention_bias, "true", "biases of queries, keys and values"),
    D9D_KEY_BOOL(config, attention_out_bias, "false", "a bias of the attention's output"),
    D9D_FAMILY_RESIDUAL_DROPOUT(config, "0.1"),
    D9D_KEY_END,
};
static const d9d_hf_field fields[] = {
    D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
    D9D_HF_ONLY("mlp_bias", "[false]"),
    D9D_HF_IGNORED("pretraining_tp"),
    D9D_HF_END,
};
static const char *const types[] = {"seed_oss", NULL};
static const d9d_table table = D9D_TABLE(config, "seed_oss_config", keys, "Seed-OSS");

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
} layer;

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .out_dropout = (float)c->residual_dropout,
                                                 .rope = base->rope,
                                                 .qkv_bias = c->attention_bias,
                                                 .o_bias = c->attention_out_bias};
    layer *l = (layer *)base;

    D9D_FAMILY_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts,
                  &(d9d_block_ffn_shape){.hidden = c->hidden_size,
                                         .intermediate = c->intermediate_size,
                                         .out_dropout = (float)c->residual_dropout});
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->input_layernorm, t, in->x, &h));
    return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->post_attention_layernorm, t, x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

D9D_FAMILY(seed_oss, "seed_oss", "ByteDance's Seed-OSS", types, .class_name = "SeedOss",
           .config = &table, .fields = fields, .layer = sizeof(layer), .dropout = true,
           .init = init, .forward = forward, .ffn = ffn);
static const d9d_model_provider *const models[] = {&d9d_seed_oss_provider, NULL};
D9D_PLUGIN(.models = models);
