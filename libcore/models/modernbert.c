/* modernbert.c - ModernBERT, an encoder: bidirectional attention, a window in most layers.
 *
 *     x0 = norm(embedding)                         LayerNorm, without bias unless norm_bias
 *     x = x + attention(norm(x))                   layer 0: attention(x)
 *     x = x + down(gelu(gate(norm(x))) * up(norm(x)))
 *
 * Every third layer sees the whole text, with global_rope_theta; the others see local_attention / 2
 * positions before and behind, with local_rope_theta.  A masked language model has behind the final
 * norm, with the embedding as decoder unless they are not tied
 *
 *     logits = norm(gelu(dense(x))) decoder^T + bias
 *
 * The class for sequence classification has the same before its own matrix, and that is left out.
 *
 * Warner et al., "Smarter, better, faster, longer: a modern bidirectional encoder",
 * arXiv:2412.13663.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool norm_bias, attention_bias, mlp_bias, decoder_bias, classifier_bias;
    int hidden_activation, classifier_activation;
    int64_t local_attention, global_attn_every_n_layers;
    d9d_list layer_types;
    double rope_local_base_freq, embedding_dropout, mlp_dropout;
    bool *windowed; /* [num_hidden_layers] */
} config;

/* --- config.json --------------------------------------------------------------------------- */

static const d9d_key keys[] = {
    D9D_FAMILY_KEYS(config),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "8192"),
    D9D_FAMILY_NORM(config, norm_eps, "1e-5"),
    D9D_FAMILY_DROPOUT(config, embedding_dropout, embedding_dropout, "0",
                       "of the embedding, behind its norm"),
    D9D_FAMILY_DROPOUT(config, mlp_dropout, mlp_dropout, "0",
                       "of what a feed-forward layer's last projection multiplies"),
    D9D_KEY_BOOL(config, norm_bias, "false", "norms have biases"),
    D9D_KEY_BOOL(config, attention_bias, "false", "projections of attention have biases"),
    D9D_KEY_BOOL(config, mlp_bias, "false", "projections of feed-forward layers have biases"),
    D9D_KEY_ENUM(config, hidden_activation, "\"gelu\"", d9d_family_activation_names,
                 "activation of a feed-forward layer"),
    D9D_KEY_BOOL(config, decoder_bias, "true", "logits of masked tokens have biases"),
    D9D_KEY_BOOL(config, classifier_bias, "false", "the matrix of the prediction head has a bias"),
    D9D_KEY_ENUM(config, classifier_activation, "\"gelu\"", d9d_family_activation_names,
                 "activation of the prediction head"),
    D9D_FAMILY_TIED(config, "true"),
    D9D_FAMILY_PADDING(config, "50283"),
    D9D_KEY_INT(config, local_attention, "128", 2, INT32_MAX,
                "width of a window: half of it before a position, half behind"),
    D9D_KEY_INT(config, global_attn_every_n_layers, "3", 1, 1 << 16,
                "of so many layers the first has no window"),
    D9D_FAMILY_LAYER_TYPES(config, layer_types),
    D9D_KEY_REAL(config, rope_theta, "160000", 0, 1e15,
                 "base of the rotary frequencies of layers without a window",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_REAL(config, rope_local_base_freq, "10000", 0, 1e15,
                 "base of the rotary frequencies of layers with a window", .flags = D9D_ABOVE_MIN),
    D9D_KEY_END};

static const d9d_hf_field fields[] = {
    D9D_HF_ALIAS("global_rope_theta", "rope_theta"),
    D9D_HF_ALIAS("local_rope_theta", "rope_local_base_freq"),
    D9D_HF_OWN("rope_local_base_freq"),
    /* of heads that are left out, and of which logits transformers returns */
    D9D_HF_IGNORED("classifier_pooling"),
    D9D_HF_IGNORED("classifier_dropout"),
    D9D_HF_IGNORED("sparse_prediction"),
    D9D_HF_IGNORED("sparse_pred_ignore_index"),
    /* what transformers' model does not read */
    D9D_HF_IGNORED("initializer_cutoff_factor"),
    D9D_HF_IGNORED("layer_norm_eps"),
    D9D_HF_IGNORED("position_embedding_type"),
    D9D_HF_IGNORED("deterministic_flash_attn"),
    D9D_HF_IGNORED("reference_compile"),
    D9D_HF_IGNORED("repad_logits_with_grad"),
    D9D_HF_IGNORED("cls_token_id"),
    D9D_HF_END,
};

static const d9d_hf_parts parts = {.prefix = "model.",
                                   .hf = {.embed = "model.embeddings.tok_embeddings",
                                          .embed_norm = "model.embeddings.norm",
                                          .layers = "model.layers",
                                          .norm = "model.final_norm",
                                          .head = "decoder",
                                          .mlm_head = "head"}};
static const d9d_hf_tensor tensors[] = {
    {.own = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"},
     .hf = "attn.Wqkv.weight"},
    {.own = {"attn.q_proj.bias", "attn.k_proj.bias", "attn.v_proj.bias"}, .hf = "attn.Wqkv.bias"},
    D9D_HF_NAME("attn.o_proj.weight", "attn.Wo.weight"),
    D9D_HF_NAME("attn.o_proj.bias", "attn.Wo.bias"),
    {.own = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .hf = "mlp.Wi.weight"},
    {.own = {"mlp.gate_proj.bias", "mlp.up_proj.bias"}, .hf = "mlp.Wi.bias"},
    D9D_HF_NAME("mlp.down_proj.weight", "mlp.Wo.weight"),
    D9D_HF_NAME("mlp.down_proj.bias", "mlp.Wo.bias"),
    D9D_HF_TENSORS_END};

/* Layers with a window: by layer_types, or by their number. */
static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    if (c->num_key_value_heads != c->num_attention_heads)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: num_key_value_heads is %lld and num_attention_heads is %lld: they "
                        "must be equal",
                        where, (long long)c->num_key_value_heads,
                        (long long)c->num_attention_heads);
    return d9d_layer_types_windowed(&c->layer_types, c->global_attn_every_n_layers, 0,
                                    c->num_hidden_layers, where, a, &c->windowed);
}

static d9d_block_layer_norm_params norm_params(const config *c)
{
    return c->norm_bias ? D9D_LAYER_NORM_BIAS : D9D_LAYER_NORM_WEIGHT;
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->layer_norm = s->embed_norm = true;
    s->layer_norm_params = norm_params(c);
    s->embed_dropout = c->embedding_dropout;
    s->local_rope = (d9d_block_rope){.base = c->rope_local_base_freq, .features = c->head_dim};
    s->mlm_head = (d9d_block_mlm_head_shape){.hidden = c->hidden_size,
                                             .vocab = c->vocab_size,
                                             .act = d9d_family_glu(c->classifier_activation),
                                             .dense_bias = c->classifier_bias,
                                             .decoder_bias = c->decoder_bias,
                                             .norm = norm_params(c),
                                             .norm_eps = (float)c->norm_eps};
}

/* --- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_layer_norm attn_norm, mlp_norm; /* layer 0 has no attn_norm */
    d9d_block_attention attn;
    d9d_block_ffn mlp;
} layer;

/* Keys of a window on either side of a query, its own counted: d9d_op_attention(). */
static int64_t window(const config *c)
{
    return c->local_attention / 2 + 1;
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const bool windowed = c->windowed[base->number];
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_attention_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .out_dropout = (float)c->attention_dropout,
                                                 .rope = windowed ? base->local_rope : base->rope,
                                                 .bidirectional = true,
                                                 .window = windowed ? window(c) : 0,
                                                 .qkv_bias = c->attention_bias,
                                                 .o_bias = c->attention_bias};
    const d9d_block_ffn_shape mlp = {.hidden = c->hidden_size,
                                     .intermediate = c->intermediate_size,
                                     .glu = d9d_family_glu(c->hidden_activation),
                                     .dropout = (float)c->mlp_dropout,
                                     .bias = c->mlp_bias};
    layer *l = (layer *)base;

    if (base->number > 0)
        D9D_BLOCK_ADD(&base->module, "attn_norm", layer_norm, &l->attn_norm, opts, c->hidden_size,
                      (float)c->norm_eps, norm_params(c));
    D9D_BLOCK_ADD(&base->module, "attn", attention, &l->attn, opts, &attention);
    D9D_BLOCK_ADD(&base->module, "mlp_norm", layer_norm, &l->mlp_norm, opts, c->hidden_size,
                  (float)c->norm_eps, norm_params(c));
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts, &mlp);
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h = in->x;

    if (base->number > 0)
        D9D_TRY(d9d_block_layer_norm_forward(&l->attn_norm, t, in->x, &h));
    return d9d_block_attention_forward(&l->attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_layer_norm_forward(&l->mlp_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

static const d9d_table table = D9D_TABLE(config, "modernbert_config", keys, "ModernBERT");
static const char *const types[] = {"modernbert", NULL};
D9D_FAMILY(modernbert, "modernbert",
           "ModernBERT, an encoder: masked language models, embeddings and classification", types,
           .class_name = "ModernBert", .config = &table, .fields = fields, .tensors = tensors,
           .parts = &parts, .check = check, .shape = shape, .encoder = true, .layer = sizeof(layer),
           .dropout = true, .init = init, .forward = forward, .ffn = ffn);
