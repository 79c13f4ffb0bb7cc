/* stack.c - see stack.h. */
#include "stack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/parallel/parallel_plan.h"
#include "ranks.h"
#include "vectors.h"

enum { V = 61, H = 32, IGNORE = -100 };

#define HEADS .hidden = H, .heads = 4, .kv_heads = 2, .head_dim = 16

#define LATENT                                                                                     \
    .hidden = H, .heads = 4, .kv_rank = 16, .nope_dim = 10, .rope_dim = 8, .norm_eps = 1e-6f

const stack_of stacks[] = {
    {.name = "next",
     .attention = {HEADS, .norm_eps = 1e-6f, .qk_norm = D9D_QK_NORM_HEAD, .zero_centred = true,
                   .output_gate = true},
     .moe = {.hidden = H,
             .intermediate = 12,
             .experts = 4,
             .top_k = 2,
             .renormalise = true,
             .shared_intermediate = 20,
             .shared_gate = true},
     .zero_centred = true,
     .rope = {.base = 1e4, .features = 8}},
    {.name = "oss",
     .attention = {HEADS, .sinks = true, .qkv_bias = true, .o_bias = true},
     .window = {7, 0, 7},
     .intermediate = 40,
     .rope =
         {.base = 1.5e4,
          .features = 16,
          .scaling = {.kind = D9D_ROPE_YARN, .factor = 4, .original = 64, .fast = 4, .slow = 1}}},
    {.name = "latent",
     .attention = {HEADS},
     .latent = {LATENT, .q_rank = 20, .v = 8},
     .moe = {.hidden = H,
             .intermediate = 12,
             .experts = 8,
             .top_k = 3,
             .renormalise = true,
             .shared_intermediate = 24,
             .router = {.score = D9D_SCORE_SIGMOID,
                        .groups = 4,
                        .top_groups = 2,
                        .scale = 2.5,
                        .expert_bias = true}},
     .rope = {.base = 1e4, .features = 8, .style = D9D_ROPE_INTERLEAVED}},
    {.name = "latent_wide",
     .attention = {HEADS},
     .latent = {LATENT, .v = 18},
     .intermediate = 40,
     .rope = {.base = 1e4, .features = 8, .style = D9D_ROPE_INTERLEAVED}},
};
const int n_stacks = sizeof(stacks) / sizeof(stacks[0]);

/* --- structure --------------------------------------------------------------------------- */

static d9d_status layer_init(stack *s, int i, const d9d_block_opts *opts)
{
    stack_layer *l = &s->layer[i];
    d9d_block_attention_shape attention = s->of->attention;
    d9d_block_mla_shape latent = s->of->latent;
    char name[32];

    attention.rope = &s->rope;
    attention.window = s->of->window[i];
    d9d_module_init(&l->module);
    latent.rope = &s->rope;
    if (latent.heads > 0)
        D9D_BLOCK_ADD(&l->module, "self_attn", mla, &l->latent, opts, &latent);
    else
        D9D_BLOCK_ADD(&l->module, "self_attn", attention, &l->attn, opts, &attention);
    if (s->of->moe.experts > 0)
        D9D_BLOCK_ADD(&l->module, "mlp", moe, &l->moe, opts, &s->of->moe);
    else
        D9D_BLOCK_ADD(&l->module, "mlp", ffn, &l->ffn, opts,
                      &(d9d_block_ffn_shape){.hidden = H, .intermediate = s->of->intermediate});
    D9D_BLOCK_ADD(&l->module, "input_layernorm", norm, &l->norm, opts, H, 1e-6f,
                  s->of->zero_centred);
    D9D_BLOCK_ADD(&l->module, "post_attention_layernorm", norm, &l->ffn_norm, opts, H, 1e-6f,
                  s->of->zero_centred);
    (void)snprintf(name, sizeof(name), "layers.%d", i);
    return d9d_module_child(&s->root, name, &l->module);
}

static d9d_status structure(stack *s)
{
    static const d9d_block_vocab_split all = {"all", V};
    const d9d_block_opts opts = {.dtype = D9D_F32, .init_std = 0.02, .groups = &s->cut};

    d9d_module_init(&s->root);
    D9D_BLOCK_ADD(&s->root, "embed", vocab, &s->embed, &opts, D9D_VOCAB_EMBEDDING, &all, 1, H);
    for (int i = 0; i < STACK_LAYERS; i++)
        D9D_TRY(layer_init(s, i, &opts));
    D9D_BLOCK_ADD(&s->root, "norm", norm, &s->norm, &opts, H, 1e-6f, s->of->zero_centred);
    D9D_BLOCK_ADD(&s->root, "head", vocab, &s->head, &opts, D9D_VOCAB_HEAD, &all, 1, H);
    return d9d_module_bind(&s->root);
}

/* --- over tp ranks --------------------------------------------------------------------------- */

static const d9d_param_sharding whole = {0, 0, 0, D9D_AXIS(TP)};
static const d9d_param_sharding columns = {D9D_AXIS(TP), 0, 0, 0}, rows = {D9D_AXIS(TP), 1, 0, 0};

/* The first part that is in a name counts; few: there are more ranks than key-value heads. */
static const struct rule {
    const char *part;
    bool few;
    const d9d_param_sharding *sharding;
} rules[] = {
    {".grouped_experts.", false, &whole},
    {".shared_expert.", false, &whole},
    {".q_proj.down_proj.", false, &whole},
    {".q_proj.norm.", false, &whole},
    {".kv_down_", false, &whole},
    {".k_proj.", true, &whole},
    {".v_proj.", true, &whole},
    {".o_proj.bias", false, &whole},
    {".o_proj.", false, &rows},
    {".down_proj.", false, &rows},
    {"_proj.", false, &columns},
    {".sinks", false, &columns},
    {"token_embedding.", false, &columns},
    {"lm_head.", false, &columns},
    {"", false, &whole},
};

static void place(stack *s, d9d_mesh *mesh)
{
    bool few;

    assert_ok(d9d_mesh_group(mesh, D9D_AXIS(TP), &s->cut.tp));
    few = d9d_comm_size(s->cut.tp) > s->of->attention.kv_heads;
    for (size_t i = 0; i < s->params.n; i++) {
        const struct rule *r = rules;

        while (strstr(s->params.p[i]->name, r->part) == NULL || (r->few && !few))
            r++;
        assert_ok(d9d_param_sharding_apply(s->params.p[i], mesh, r->sharding));
    }
}

/* --- golden numbers ---------------------------------------------------------------------- */

/* This rank's part of tensor "KIND.NAME". */
static float *part_of(const stack *s, const char *kind, const d9d_param *p)
{
    const d9d_shape *w = &p->local.shape, *all = &p->spec.shape;
    const int64_t inner = w->ndim == 2 ? w->dim[1] : d9d_shape_numel(w) / w->dim[0];
    const int64_t stride = d9d_shape_numel(all) / all->dim[0];
    const int64_t first = w->ndim == 2 ? p->local.offset[1] : 0;
    float *part = calloc((size_t)d9d_shape_numel(w) + 1, sizeof(*part)), *host;
    char name[160];
    size_t n;

    (void)snprintf(name, sizeof(name), "%s.%s", kind, p->name);
    host = vectors_f32(s->want, name, &n);
    assert_int_equal(n, d9d_shape_numel(all));
    for (int64_t i = 0; i < w->dim[0]; i++)
        memcpy(part + i * inner, host + (p->local.offset[0] + i) * stride + first,
               (size_t)inner * sizeof(*part));
    free(host);
    return part;
}

static void load(stack *s)
{
    for (size_t i = 0; i < s->params.n; i++) {
        d9d_param *p = s->params.p[i];
        float *part = part_of(s, "weight", p);

        assert_ok(d9d_device_upload(s->dev, d9d_tensor_data(&p->local.data), part,
                                    d9d_tensor_bytes(&p->local.data)));
        free(part);
    }
}

void stack_open(const stack_of *of, d9d_device *dev, d9d_mesh *mesh, stack *s)
{
    char file[64];

    *s = (stack){.of = of, .dev = dev, .rope = of->rope};
    (void)snprintf(file, sizeof(file), "%s.safetensors", of->name);
    assert_ok(d9d_safetensors_open(vectors_path("blocks", file), &s->want));
    assert_ok(structure(s));
    assert_ok(d9d_module_params(&s->root, &s->arena, &s->params));
    if (mesh != NULL)
        place(s, mesh);
    assert_ok(d9d_module_materialise(&s->root, dev, true));
    assert_ok(d9d_block_rope_prepare(&s->rope, dev));
    load(s);
}

void stack_close(stack *s)
{
    d9d_module_release(&s->root);
    d9d_block_rope_release(&s->rope);
    d9d_arena_release(&s->arena);
    d9d_safetensors_close(s->want);
    free(s->loss);
    free(s->logits);
}

/* --- forward and backward ------------------------------------------------------------------ */

static d9d_status attend(stack_layer *l, d9d_tape *t, d9d_var *h, const d9d_tensor *positions,
                         d9d_var *plus, d9d_var **x)
{
    if (l->latent.shape.heads > 0)
        return d9d_block_mla_forward(&l->latent, t, h, positions, NULL, NULL, plus, x);
    return d9d_block_attention_forward(&l->attn, t, h, positions, NULL, NULL, plus, x);
}

/* in: x, positions. */
static d9d_status layer_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    stack_layer *l = self;
    d9d_var *h, *x;

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in[0], &h));
    D9D_TRY(attend(l, t, h, d9d_var_tensor(in[n_in - 1]), in[0], &x));
    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    if (l->moe.shape.experts == 0)
        return d9d_block_ffn_forward(&l->ffn, t, h, x, &out[n_out - 1]);
    return d9d_block_moe_forward(&l->moe, t, h, x, &out[n_out - 1]);
}

static d9d_tensor whole_numbers(const stack *s, const char *name, d9d_shape shape)
{
    d9d_tensor x;
    size_t n;
    int32_t *host = vectors_i32(s->want, name, &n);

    assert_int_equal(n, d9d_shape_numel(&shape));
    assert_ok(d9d_tensor_from_host(s->dev, D9D_I32, shape, host, &x));
    free(host);
    return x;
}

static d9d_status forward(stack *s, d9d_tape *t, bool recomputed, const d9d_tensor *ids,
                          const d9d_tensor *positions, const d9d_tensor *labels, d9d_var **loss)
{
    const int64_t rows_here = s->rows * s->positions / d9d_comm_size(s->cut.tp);
    d9d_var *x[2], *h, *logits;

    D9D_TRY(d9d_tape_leaf(t, positions, false, &x[1]));
    D9D_TRY(d9d_block_vocab_embed(&s->embed, t, ids, &x[0]));
    for (int i = 0; i < STACK_LAYERS; i++)
        D9D_TRY(recomputed ? d9d_tape_recompute(t, layer_forward, &s->layer[i], x, 2, &x[0], 1)
                           : layer_forward(&s->layer[i], t, x, 2, &x[0], 1));
    D9D_TRY(d9d_block_norm_forward(&s->norm, t, x[0], &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(rows_here, H), &h));
    if (d9d_comm_size(s->cut.tp) == 1) {
        D9D_TRY(d9d_op_linear(t, h, s->head.table[0], &logits));
        free(s->logits);
        s->logits = ranks_host(d9d_var_tensor(logits));
    }
    return d9d_block_vocab_loss(&s->head, t, h, labels, IGNORE, false, loss);
}

/* The gradient of the mean over the targets. */
static d9d_tensor seed_of(const stack *s)
{
    size_t n, targets = 0;
    int32_t *label = vectors_i32(s->want, "labels", &n);
    float *host = calloc(n + 1, sizeof(*host));
    d9d_tensor seed;

    for (size_t i = 0; i < n; i++)
        targets += label[i] != IGNORE;
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(1.0 / (double)targets);
    assert_ok(d9d_tensor_from_host(s->dev, D9D_F32, D9D_SHAPE((int64_t)n), host, &seed));
    free(host);
    free(label);
    return seed;
}

void stack_learn(stack *s, bool recomputed)
{
    const d9d_safetensors_tensor *of = vectors_find(s->want, "input_ids");
    const d9d_shape shape = D9D_SHAPE(of->shape[0], of->shape[1]);
    d9d_tensor ids = whole_numbers(s, "input_ids", shape), seed = seed_of(s);
    d9d_tensor positions = whole_numbers(s, "position_ids", shape);
    d9d_tensor labels = whole_numbers(s, "labels", D9D_SHAPE(shape.dim[0] * shape.dim[1]));
    d9d_var *loss;
    d9d_tape *t;

    s->rows = shape.dim[0];
    s->positions = shape.dim[1];
    d9d_module_clear_grads(&s->root);
    assert_ok(d9d_tape_create(s->dev, &t));
    assert_ok(forward(s, t, recomputed, &ids, &positions, &labels, &loss));
    free(s->loss);
    s->loss = ranks_host(d9d_var_tensor(loss));
    assert_ok(d9d_tape_backward(t, &loss, &seed, 1, D9D_BACKWARD_FULL));
    d9d_tape_free(t);
    for (size_t i = 0; i < s->params.n; i++) {
        d9d_param *p = s->params.p[i];

        assert_true(p->local.has_grad || p->spec.is_buffer);
        if (p->spec.is_buffer)
            continue;
        assert_ok(d9d_comm_all_reduce(p->placement.grad_group, s->dev->stream, p->name, D9D_F32,
                                      d9d_tensor_data(&p->local.grad),
                                      d9d_tensor_numel(&p->local.grad), D9D_COMM_SUM));
    }
    d9d_tensor_release(&ids);
    d9d_tensor_release(&positions);
    d9d_tensor_release(&labels);
    d9d_tensor_release(&seed);
}

static void check(const stack *s, const char *what, const float *got, const char *golden,
                  double tolerance)
{
    char text[200];
    size_t n;
    float *want = vectors_f32(s->want, golden, &n);

    (void)snprintf(text, sizeof(text), "%s: %s", s->of->name, what);
    ranks_close_to(text, got, want, (int64_t)n, tolerance);
    free(want);
}

void stack_check(const stack *s, double tolerance)
{
    check(s, "losses", s->loss, "token_losses", tolerance);
    if (s->logits != NULL)
        check(s, "logits", s->logits, "logits", tolerance);
    for (size_t i = 0; i < s->params.n; i++) {
        const d9d_param *p = s->params.p[i];
        float *got, *want;
        char text[200];

        if (p->spec.is_buffer)
            continue;
        got = ranks_host(&p->local.grad);
        want = part_of(s, "grad", p);
        (void)snprintf(text, sizeof(text), "%s: gradient of %s", s->of->name, p->name);
        ranks_close_to(text, got, want, d9d_tensor_numel(&p->local.grad), tolerance);
        free(want);
        free(got);
    }
}
