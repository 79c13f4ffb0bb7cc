/* gpt_neox.c - GPT-NeoX: GPT-NeoX-20B, Pythia and what has their layers.
 *
 *     x = x + attention(norm1(x)) + mlp(norm2(x))    the parallel residual
 *
 * or, without use_parallel_residual,
 *
 *     x = x + attention(norm1(x))
 *     x = x + mlp(norm2(x))
 *
 * LayerNorm with biases, biases of all projections, RoPE of the first features of a head, an
 * ungated feed-forward layer.  A layer is one half for recomputation: the parallel residual has no
 * value between its halves.  Black et al., "GPT-NeoX-20B", arXiv:2204.06745; Biderman et al.,
 * "Pythia", arXiv:2304.01373.
 */
#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    bool attention_bias, use_parallel_residual;
    int hidden_act;               /* of d9d_family_activation_names */
    double partial_rotary_factor; /* share of a head that is rotated */
} config;

/* --- config.json --------------------------------------------------------------------------- */

static const d9d_key keys[] = {
    D9D_FAMILY_KEYS_MHA(config),
    D9D_FAMILY_INTERMEDIATE(config),
    D9D_FAMILY_POSITIONS(config, "2048"),
    D9D_FAMILY_NORM(config, layer_norm_eps, "1e-5"),
    D9D_FAMILY_ROPE(config, "10000"),
    D9D_FAMILY_TIED(config, "false"),
    D9D_FAMILY_HIDDEN_ACT(config, "\"gelu\""),
    D9D_FAMILY_DROPOUT(config, hidden_dropout, residual_dropout, "0",
                       "of the embedding and of what layers add"),
    D9D_KEY_REAL(config, partial_rotary_factor, "0.25", 0, 1, "share of a head that is rotated",
                 .flags = D9D_ABOVE_MIN),
    D9D_KEY_BOOL(config, attention_bias, "true", "projections of attention have biases"),
    D9D_KEY_BOOL(config, use_parallel_residual, "true",
                 "attention and feed-forward layer have the same input"),
    D9D_KEY_END};
static const d9d_table table =
    D9D_TABLE(config, "gpt_neox_config", keys, "GPT-NeoX-20B and Pythia");
static const char *const types[] = {"gpt_neox", NULL};
static const d9d_hf_field fields[] = {D9D_HF_ALIAS("rotary_pct", "partial_rotary_factor"),
                                      D9D_HF_ALIAS("rotary_emb_base", "rope_theta"),
                                      D9D_HF_IGNORED("classifier_dropout"),
                                      D9D_HF_ONLY("attention_probs_dropout_prob", "[0]"),
                                      D9D_HF_ONLY("hidden_dropout_prob", "[0]"),
                                      D9D_HF_END};

/* The rows of query_key_value are, head by head, those of q, k and v. */
#define QKV(kind)                                                                                  \
    {                                                                                              \
        .own = {"self_attn.q_proj." kind, "self_attn.k_proj." kind, "self_attn.v_proj." kind},     \
        .hf = "attention.query_key_value." kind, .groups = offsetof(config, num_attention_heads)   \
    }
static const d9d_hf_tensor tensors[] = {
    QKV("weight"),
    QKV("bias"),
    D9D_HF_NAME("self_attn.o_proj.weight", "attention.dense.weight"),
    D9D_HF_NAME("self_attn.o_proj.bias", "attention.dense.bias"),
    D9D_HF_NAME("mlp.up_proj.weight", "mlp.dense_h_to_4h.weight"),
    D9D_HF_NAME("mlp.up_proj.bias", "mlp.dense_h_to_4h.bias"),
    D9D_HF_NAME("mlp.down_proj.weight", "mlp.dense_4h_to_h.weight"),
    D9D_HF_NAME("mlp.down_proj.bias", "mlp.dense_4h_to_h.bias"),
    D9D_HF_UNUSED("attention.bias"), /* the causal mask, in older files */
    D9D_HF_UNUSED("attention.masked_bias"),
    D9D_HF_UNUSED("attention.rotary_emb.inv_freq"),
    D9D_HF_TENSORS_END};
static const d9d_hf_parts parts = {.prefix = "gpt_neox.",
                                   .hf = {.embed = "gpt_neox.embed_in",
                                          .layers = "gpt_neox.layers",
                                          .norm = "gpt_neox.final_layer_norm",
                                          .head = "embed_out"}};

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->layer_norm = true;
    s->layer_norm_params = D9D_LAYER_NORM_BIAS;
    s->embed_dropout = c->residual_dropout;
    s->rope.features = (int64_t)((double)c->head_dim * c->partial_rotary_factor);
}

/* --- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_layer_norm input_layernorm, post_attention_layernorm;
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
                                                 .o_bias = c->attention_bias};
    layer *l = (layer *)base;

    D9D_FAMILY_LAYER_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_LAYER_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts,
                  &(d9d_block_ffn_shape){.hidden = c->hidden_size,
                                         .intermediate = c->intermediate_size,
                                         .glu = d9d_family_glu(c->hidden_act),
                                         .out_dropout = (float)c->residual_dropout,
                                         .ungated = true,
                                         .bias = true});
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    const config *c = base->config;
    layer *l = (layer *)base;
    d9d_var *h, *x;

    D9D_TRY(d9d_block_layer_norm_forward(&l->input_layernorm, t, in->x, &h));
    D9D_TRY(d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                        in->x, &x));
    D9D_TRY(d9d_block_layer_norm_forward(&l->post_attention_layernorm, t,
                                         c->use_parallel_residual ? in->x : x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

D9D_FAMILY(gpt_neox, "gpt_neox", "GPT-NeoX-20B and Pythia", types, .class_name = "GPTNeoX",
           .config = &table, .fields = fields, .tensors = tensors, .parts = &parts, .shape = shape,
           .layer = sizeof(layer), .dropout = true, .init = init, .forward = forward);
