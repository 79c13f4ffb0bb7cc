/* llama.c - a model of one's own: Llama, as a plugin of d9d.
 *
 *     {"plugin": "libllama.so", "model_provider": {"name": "llama", "hf_config":
 * "DIR/config.json"}}
 *
 * Plain code over operations and blocks: attention without a norm of queries and keys.  Nothing
 * speaks of ranks: any model is replicated and sharded by its units.
 */
#include <math.h>
#include <stdlib.h>

#include <d9d/loop/plugin.h>

/* --- what it takes of config.json ---------------------------------------------------------- */

typedef struct dims {
    int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t num_key_value_heads, vocab_size, max_position_embeddings;
    double rms_norm_eps, rope_theta;
} dims;
#define DIM(name) D9D_KEY_INT(dims, name, D9D_REQUIRED, 1, 1 << 20, #name)
static const d9d_key dims_keys[] = {
    DIM(hidden_size),
    DIM(intermediate_size),
    DIM(num_hidden_layers),
    DIM(num_attention_heads),
    DIM(num_key_value_heads),
    DIM(vocab_size),
    DIM(max_position_embeddings),
    D9D_KEY_REAL(dims, rms_norm_eps, "1e-6", 0, 1, "epsilon of the norms"),
    D9D_KEY_REAL(dims, rope_theta, "10000", 1, 1e15, "base of the rotary frequencies"),
    D9D_KEY_END,
};
static const d9d_table dims_table = D9D_TABLE(dims, "llama_config", dims_keys, "Llama");

/* --- its structure ------------------------------------------------------------------------- */

typedef struct layer {
    d9d_module module, attn;
    d9d_block_norm norm, ffn_norm;
    d9d_block_linear qkv[3], o;
    d9d_block_ffn ffn;
    const struct llama *of;
} layer;

typedef struct llama {
    d9d_model base;
    const dims *c;
    bool recompute;
    d9d_module root;
    d9d_block_vocab embed, head;
    d9d_block_norm norm;
    d9d_block_rope rope;
    layer layers[];
} llama;

static d9d_status layer_init(layer *l, llama *m, const d9d_block_how *how, int64_t number)
{
    const int64_t H = m->c->hidden_size, I = m->c->intermediate_size;
    const int64_t KV = H / m->c->num_attention_heads * m->c->num_key_value_heads;
    const float eps = (float)m->c->rms_norm_eps;
    const char *name = d9d_arena_printf(&m->root.names, "layers.%lld", (long long)number);

    l->of = m;
    D9D_BLOCK_ADD(&l->attn, "q_proj", linear, &l->qkv[0], how, H, H);
    D9D_BLOCK_ADD(&l->attn, "k_proj", linear, &l->qkv[1], how, H, KV);
    D9D_BLOCK_ADD(&l->attn, "v_proj", linear, &l->qkv[2], how, H, KV);
    D9D_BLOCK_ADD(&l->attn, "o_proj", linear, &l->o, how, H, H);
    D9D_TRY(d9d_module_child(&l->module, "self_attn", &l->attn));
    D9D_BLOCK_ADD(&l->module, "mlp", ffn, &l->ffn, how, H, I);
    D9D_BLOCK_ADD(&l->module, "input_layernorm", norm, &l->norm, how, H, eps, false);
    D9D_BLOCK_ADD(&l->module, "post_attention_layernorm", norm, &l->ffn_norm, how, H, eps, false);
    return d9d_model_unit(&m->base, name, &l->module);
}

static d9d_status structure(llama *m, d9d_dtype dtype)
{
    const d9d_block_how how = {.dtype = dtype, .init_std = 0.02};
    const d9d_vocab_split vocab = {"all", m->c->vocab_size};
    const int64_t H = m->c->hidden_size;

    D9D_TRY(d9d_block_vocab_init(&m->embed, &how, D9D_VOCAB_EMBEDDING, &vocab, 1, H));
    D9D_TRY(d9d_model_unit(&m->base, "embed", &m->embed.module));
    for (int64_t i = 0; i < m->c->num_hidden_layers; i++)
        D9D_TRY(layer_init(&m->layers[i], m, &how, i));
    D9D_TRY(d9d_block_norm_init(&m->norm, &how, H, (float)m->c->rms_norm_eps, false));
    D9D_TRY(d9d_model_unit(&m->base, "norm", &m->norm.module));
    D9D_TRY(d9d_block_vocab_init(&m->head, &how, D9D_VOCAB_HEAD, &vocab, 1, H));
    return d9d_model_unit(&m->base, "head", &m->head.module);
}

/* --- its forward ---------------------------------------------------------------------------- */

/* in: x [B, S, H], positions [B, S], and where rows are not whole segments [N, 4]. */
static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    layer *l = self;
    const llama *m = l->of;
    const d9d_shape s = d9d_var_tensor(in[0])->shape;
    const int64_t A = m->c->num_attention_heads, K = m->c->num_key_value_heads, D = s.dim[2] / A;
    const d9d_attention how = {.scale = 1 / sqrtf((float)D),
                               .causal = true,
                               .segments = n_in > 2 ? d9d_var_tensor(in[2]) : NULL};
    d9d_var *h, *x, *y[3]; /* queries and keys are turned, values are not */

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in[0], &h));
    for (int i = 0; i < 3; i++) {
        D9D_TRY(d9d_block_linear_forward(&l->qkv[i], t, h, &y[i]));
        D9D_TRY(d9d_op_reshape(t, y[i], D9D_SHAPE(s.dim[0], s.dim[1], i == 0 ? A : K, D), &y[i]));
        if (i < 2)
            D9D_TRY(d9d_op_rope(t, y[i], d9d_var_tensor(in[1]), &m->rope.inv_freq, m->rope.style, 1,
                                &y[i]));
    }
    D9D_TRY(d9d_op_attention(t, y[0], y[1], y[2], &how, &h));
    D9D_TRY(d9d_op_reshape(t, h, s, &h));
    D9D_TRY(d9d_block_linear_forward(&l->o, t, h, &h));
    D9D_TRY(d9d_op_add(t, in[0], h, &x));
    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->ffn, t, h, x, &out[n_out - 1]);
}

static d9d_status forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out)
{
    llama *m = (llama *)base;
    d9d_var *v[3];

    D9D_TRY(d9d_block_rope_prepare(&m->rope, d9d_tape_device(t)));
    D9D_TRY(d9d_tape_leaf(t, in->positions, false, &v[1]));
    if (in->segments != NULL)
        D9D_TRY(d9d_tape_leaf(t, in->segments, false, &v[2]));
    D9D_TRY(d9d_unit_open(&m->embed.module, t));
    D9D_TRY(d9d_block_vocab_embed(&m->embed, t, in->ids, &v[0]));
    D9D_TRY(d9d_unit_close(&m->embed.module, t));
    for (int64_t i = 0; i < m->c->num_hidden_layers; i++)
        D9D_TRY(d9d_unit_run(&m->layers[i].module, t, m->recompute, layer_forward, &m->layers[i], v,
                             in->segments != NULL ? 3 : 2, &v[0]));
    D9D_TRY(d9d_unit_open(&m->norm.module, t));
    D9D_TRY(d9d_block_norm_forward(&m->norm, t, v[0], &out->hidden));
    D9D_TRY(d9d_unit_close(&m->norm.module, t));
    return d9d_model_loss(&m->head, t, in, out);
}

static void llama_free(d9d_model *base)
{
    d9d_module_release(base->module);
    d9d_block_rope_release(&((llama *)base)->rope);
    free(base->units);
    free(base);
}

/* --- the tables ------------------------------------------------------------------------------ */

static const d9d_model_ops ops = {sizeof(ops), "llama", .forward = forward, .free = llama_free};

static d9d_status create(const void *config, d9d_stage stage, const d9d_model_options *o,
                         d9d_model **out)
{
    const dims *c = config;
    llama *m;
    d9d_status st;

    if (c->hidden_size % (2 * c->num_attention_heads) != 0 ||
        c->num_attention_heads % c->num_key_value_heads != 0)
        return D9D_FAIL(D9D_ECONFIG, "llama: its heads do not divide its features");
    m = calloc(1, sizeof(*m) + (size_t)c->num_hidden_layers * sizeof(layer));
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "llama: %lld layers", (long long)c->num_hidden_layers);
    m->base = (d9d_model){.ops = &ops,
                          .module = &m->root,
                          .stage = stage,
                          .hidden = c->hidden_size,
                          .vocab = c->vocab_size,
                          .max_positions = c->max_position_embeddings};
    m->c = c;
    m->recompute = o->checkpointing != D9D_RECOMPUTE_OFF;
    m->rope.base = c->rope_theta;
    m->rope.features = c->hidden_size / c->num_attention_heads;
    st = structure(m, o->dtype);
    if (st == D9D_OK)
        *out = &m->base;
    else
        llama_free(&m->base);
    return st;
}

static const d9d_key keys[] = {D9D_MODEL_HEAD_KEYS, D9D_KEY_END};
static const d9d_table table = D9D_TABLE(d9d_model_head, "llama", keys, "Llama, dense");
static const d9d_name_pair names[] = {{"embed.token_embedding.all.", "model.embed_tokens."},
                                      {"layers.", "model.layers."},
                                      {"norm.", "model.norm."},
                                      {"head.lm_head.all.", "lm_head."},
                                      {NULL, NULL}};
static const d9d_model_provider provider = {sizeof(provider), &table, .dims = &dims_table,
                                            .create = create, .hf_names = names};
static const d9d_model_provider *const models[] = {&provider, NULL};
D9D_PLUGIN(.models = models);
