/* gpt2.c - GPT-2.
 *
 *     x0 = embedding + position embedding      learnt positions, no RoPE
 *     x = x + attention(norm(x))               LayerNorm and projections with biases
 *     x = x + mlp(norm(x))                     ungated GELU
 *
 * Matrices of layers are [in, out] in the files, and q, k and v are one.  Radford et al., "Language
 * models are unsupervised multitask learners", 2019.
 */
#include <math.h>

#include "d9d/model/family/family.h"

typedef struct config {
    D9D_FAMILY_DIMS;
    int activation_function; /* of d9d_family_activation_names */
    double embedding_dropout;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx;
} config;

/* --- config.json --------------------------------------------------------------------------- */

#define SIZE(key, member, otherwise, most, text)                                                   \
    {                                                                                              \
        .name = #key, .kind = D9D_KIND_INT, .offset = offsetof(config, member),                    \
        .def = (otherwise), .min = 1, .max = (most), .doc = text                                   \
    }
static const d9d_key keys[] = {
    SIZE(n_embd, hidden_size, D9D_REQUIRED, 1 << 20, "width of the residual stream"),
    SIZE(n_layer, num_hidden_layers, D9D_REQUIRED, 1 << 16, "decoder layers"),
    SIZE(n_head, num_attention_heads, D9D_REQUIRED, 1 << 16, "attention heads"),
    SIZE(vocab_size, vocab_size, D9D_REQUIRED, INT32_MAX, "ids of the vocabulary"),
    SIZE(n_positions, max_position_embeddings, "1024", INT32_MAX,
         "longest sequence; each position has a row"),
    {.name = "n_inner",
     .kind = D9D_KIND_INT,
     .offset = offsetof(config, intermediate_size),
     .def = "null",
     .min = 1,
     .max = 1 << 20,
     .flags = D9D_NULLABLE,
     .doc = "width of a feed-forward layer; null: four times n_embd"},
    D9D_FAMILY_NORM(config, layer_norm_epsilon, "1e-5"),
    D9D_KEY_REAL(config, initializer_range, "0.02", 0, 1e3,
                 "standard deviation of initial matrices"),
    D9D_FAMILY_DROPOUT(config, attn_pdrop, attention_dropout, "0.1", "of attention weights"),
    D9D_FAMILY_DROPOUT(config, resid_pdrop, residual_dropout, "0.1", "of what layers add"),
    D9D_FAMILY_DROPOUT(config, embd_pdrop, embedding_dropout, "0.1", "of the embedding"),
    D9D_FAMILY_TIED(config, "true"),
    D9D_KEY_ENUM(config, activation_function, "\"gelu_new\"", d9d_family_activation_names,
                 "activation of a feed-forward layer"),
    D9D_KEY_BOOL(config, scale_attn_weights, "true",
                 "scores are divided by the root of a head's features"),
    D9D_KEY_BOOL(config, scale_attn_by_inverse_layer_idx, "false",
                 "scores of layer n, from 1, are divided by n"),
    D9D_KEY_END};
static const d9d_table table = D9D_TABLE(config, "gpt2_config", keys, "GPT-2");
static const char *const types[] = {"gpt2", NULL};
static const d9d_hf_field fields[] = {
    D9D_HF_IGNORED("n_ctx"),                   /* n_positions, in older files */
    D9D_HF_IGNORED("reorder_and_upcast_attn"), /* scores and softmax are in float32 */
    D9D_HF_IGNORED("output_past"),             /* use_cache, in older files */
    D9D_HF_ONLY("n_special", "[0]"),
    D9D_HF_IGNORED("predict_special_tokens"),
    D9D_HF_IGNORED("summary_activation"), /* of a head for multiple choice */
    D9D_HF_IGNORED("summary_first_dropout"),
    D9D_HF_IGNORED("summary_proj_to_labels"),
    D9D_HF_IGNORED("summary_type"),
    D9D_HF_IGNORED("summary_use_proj"),
    D9D_HF_IGNORED("_num_labels"),
    D9D_HF_END};

#define NORM(own, there)                                                                           \
    D9D_HF_NAME(own ".weight", there ".weight"), D9D_HF_NAME(own ".bias", there ".bias")
#define LINEAR(own_name, there)                                                                    \
    {.own = {own_name ".weight"}, .hf = there ".weight", .transposed = true},                      \
        D9D_HF_NAME(own_name ".bias", there ".bias")
#define QKV(kind)                                                                                  \
    .own = {"self_attn.q_proj." kind, "self_attn.k_proj." kind, "self_attn.v_proj." kind},         \
    .hf = "attn.c_attn." kind
static const d9d_hf_tensor tensors[] = {
    NORM("input_layernorm", "ln_1"),           NORM("post_attention_layernorm", "ln_2"),
    {QKV("weight"), .transposed = true},       {QKV("bias")},
    LINEAR("self_attn.o_proj", "attn.c_proj"), LINEAR("mlp.up_proj", "mlp.c_fc"),
    LINEAR("mlp.down_proj", "mlp.c_proj"),     D9D_HF_UNUSED("attn.bias"), /* the causal mask */
    D9D_HF_UNUSED("attn.masked_bias"),         D9D_HF_TENSORS_END};
static const d9d_hf_parts parts = {.prefix = "transformer.",
                                   .hf = {.embed = "transformer.wte",
                                          .layers = "transformer.h",
                                          .norm = "transformer.ln_f",
                                          .head = "lm_head",
                                          .positions = "transformer.wpe"},
                                   .bare_lm = true};

static d9d_status check(void *dims, const char *where, d9d_arena *a)
{
    config *c = dims;

    (void)where, (void)a;
    if (c->intermediate_size < 1)
        c->intermediate_size = 4 * c->hidden_size;
    return D9D_OK;
}

static void shape(const void *dims, d9d_decoder_shape *s)
{
    const config *c = dims;

    s->layer_norm = true;
    s->layer_norm_params = D9D_LAYER_NORM_BIAS;
    s->learnt_positions = c->max_position_embeddings;
    s->embed_dropout = c->embedding_dropout;
}

/* --- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_layer_norm input_layernorm, post_attention_layernorm;
    d9d_block_attention self_attn;
    d9d_block_ffn mlp;
} layer;

/* The softmax scale of a layer, counted from 0. */
static float scale_of(const config *c, int64_t number)
{
    const double of_heads = c->scale_attn_weights ? 1 / sqrt((double)c->head_dim) : 1;

    return (float)(c->scale_attn_by_inverse_layer_idx ? of_heads / (double)(number + 1) : of_heads);
}

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const config *c = base->config;
    const d9d_block_attention_shape attention = {.hidden = c->hidden_size,
                                                 .heads = c->num_attention_heads,
                                                 .kv_heads = c->num_key_value_heads,
                                                 .head_dim = c->head_dim,
                                                 .dropout = (float)c->attention_dropout,
                                                 .out_dropout = (float)c->residual_dropout,
                                                 .scale = scale_of(c, base->number),
                                                 .qkv_bias = true,
                                                 .o_bias = true};
    layer *l = (layer *)base;

    D9D_FAMILY_LAYER_NORM_ADD(l, input_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "self_attn", attention, &l->self_attn, opts, &attention);
    D9D_FAMILY_LAYER_NORM_ADD(l, post_attention_layernorm, opts, c);
    D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->mlp, opts,
                  &(d9d_block_ffn_shape){.hidden = c->hidden_size,
                                         .intermediate = c->intermediate_size,
                                         .glu = d9d_family_glu(c->activation_function),
                                         .out_dropout = (float)c->residual_dropout,
                                         .ungated = true,
                                         .bias = true});
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_layer_norm_forward(&l->input_layernorm, t, in->x, &h));
    return d9d_block_attention_forward(&l->self_attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_layer_norm_forward(&l->post_attention_layernorm, t, x, &h));
    return d9d_block_ffn_forward(&l->mlp, t, h, x, y);
}

D9D_FAMILY(gpt2, "gpt2", "GPT-2", types, .class_name = "GPT2", .lm_class = "LMHeadModel",
           .config = &table, .fields = fields, .tensors = tensors, .parts = &parts, .check = check,
           .shape = shape, .layer = sizeof(layer), .dropout = true, .init = init,
           .forward = forward, .ffn = ffn);
