/* qwen3_names.c - see qwen3_names.h. */
#include "models/qwen3/qwen3_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.{l}."
#define SAME(where, name, shape)                                                                   \
    {                                                                                              \
        where, LAYER name, shape, LAYER name, shape, NULL, false                                   \
    }
#define NORM(where, name, shape)                                                                   \
    {                                                                                              \
        where, LAYER name, shape, LAYER name, shape, NULL, true                                    \
    }
#define EXPERT(proj, d9d_shape, hf_shape, fused)                                                   \
    {                                                                                              \
        D9DI_MOE, LAYER "mlp.grouped_experts." proj ".weight", d9d_shape,                          \
            LAYER "mlp.experts.{e}." proj ".weight", hf_shape, LAYER "mlp.experts." fused, false   \
    }
#define OURS(where, name, shape)                                                                   \
    {                                                                                              \
        where, LAYER name, shape, NULL, NULL, NULL, false                                          \
    }

/* The embedding is the first row: that of the first stage, and of a tied head. */
static const d9di_qwen3_row qwen3_rows[] = {
    {D9DI_FIRST, "model.embed_tokens.token_embedding.{v}.weight", "VH", "model.embed_tokens.weight",
     "VH", NULL, false},
    NORM(D9DI_EVERY, "input_layernorm.weight", "H"),
    SAME(D9DI_EVERY, "self_attn.q_proj.weight", "QH"),
    SAME(D9DI_EVERY, "self_attn.k_proj.weight", "KH"),
    SAME(D9DI_EVERY, "self_attn.v_proj.weight", "KH"),
    SAME(D9DI_EVERY, "self_attn.o_proj.weight", "HQ"),
    NORM(D9DI_EVERY, "self_attn.q_norm.weight", "D"),
    NORM(D9DI_EVERY, "self_attn.k_norm.weight", "D"),
    NORM(D9DI_EVERY, "post_attention_layernorm.weight", "H"),
    SAME(D9DI_DENSE, "mlp.gate_proj.weight", "IH"),
    SAME(D9DI_DENSE, "mlp.up_proj.weight", "IH"),
    SAME(D9DI_DENSE, "mlp.down_proj.weight", "HI"),
    {D9DI_MOE, LAYER "mlp.router.gate.weight", "EH", LAYER "mlp.gate.weight", "EH", NULL, false},
    EXPERT("gate_proj", "EHN", "NH", "gate_up_proj"),
    EXPERT("up_proj", "EHN", "NH", "gate_up_proj"),
    EXPERT("down_proj", "ENH", "HN", "down_proj"),
    OURS(D9DI_SHARED, "mlp.shared_expert.expert.gate_proj.weight", "SH"),
    OURS(D9DI_SHARED, "mlp.shared_expert.expert.up_proj.weight", "SH"),
    OURS(D9DI_SHARED, "mlp.shared_expert.expert.down_proj.weight", "HS"),
    OURS(D9DI_SHARED_GATE, "mlp.shared_expert.gate.weight", "1H"),
    {D9DI_LAST, "model.norm.weight", "H", "model.norm.weight", "H", NULL, true},
    {D9DI_LM_HEAD, "lm_head.lm_head.{v}.weight", "VH", "lm_head.weight", "VH", NULL, false},
    {D9DI_SCORE, "cls_head.score.weight", "CH", "score.weight", "CH", NULL, false},
    {D9DI_PROJECTION, "embedding_head.projection.weight", "PH", NULL, NULL, NULL, false},
};
enum { N_ROWS = sizeof(qwen3_rows) / sizeof(qwen3_rows[0]) };

static bool in_layer(const d9d_qwen3_config *c, const d9di_qwen3_row *r, int64_t layer)
{
    bool moe = d9d_qwen3_is_moe(c, layer);

    switch (r->where) {
    case D9DI_EVERY: return true;
    case D9DI_DENSE: return !moe;
    case D9DI_MOE: return moe;
    case D9DI_SHARED: return moe && c->shared_intermediate > 0;
    case D9DI_SHARED_GATE: return moe && c->shared_intermediate > 0 && c->shared_gate;
    default: return false;
    }
}

/* A tied head is the embedding; a separate one exists only if a stage or a file has it
 * nevertheless. */
static bool has_lm_head(const d9d_qwen3_config *c, d9d_stage stage)
{
    return c->head == D9D_HEAD_CAUSAL_LM &&
           (!c->tied || c->tied_copy || !d9d_stage_is_first(stage));
}

static bool after_layers(const d9d_qwen3_config *c, const d9di_qwen3_row *r, d9d_stage stage)
{
    if (!d9d_stage_is_last(stage))
        return false;
    switch (r->where) {
    case D9DI_LAST: return true;
    case D9DI_LM_HEAD: return has_lm_head(c, stage);
    case D9DI_SCORE: return c->head == D9D_HEAD_CLASSIFICATION;
    case D9DI_PROJECTION: return c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0;
    default: return false;
    }
}

static d9d_status each_split(const d9d_qwen3_config *c, const d9di_qwen3_row *r, d9di_qwen3_fn fn,
                             void *arg)
{
    bool vocabulary = strchr(r->d9d_shape, 'V') != NULL;
    bool again = r->where == D9DI_LM_HEAD && c->tied && !c->tied_copy;

    for (size_t i = 0; i < (vocabulary ? c->n_splits : 1); i++) {
        d9di_qwen3_tensor t = {again ? &qwen3_rows[0] : r, again, 0,
                               vocabulary ? &c->splits[i] : NULL};

        D9D_TRY(fn(arg, &t));
    }
    return D9D_OK;
}

static d9d_status each_layer(const d9d_qwen3_config *c, d9d_stage stage, d9di_qwen3_fn fn,
                             void *arg)
{
    int64_t first, end;

    D9D_TRY(d9d_stage_layers(c->layers, c->virtual_pre, c->virtual_post, stage, &first, &end));
    for (int64_t l = first; l < end; l++)
        for (size_t i = 0; i < N_ROWS; i++) {
            d9di_qwen3_tensor t = {&qwen3_rows[i], false, l, NULL};

            if (in_layer(c, &qwen3_rows[i], l))
                D9D_TRY(fn(arg, &t));
        }
    return D9D_OK;
}

d9d_status d9di_qwen3_each(const d9d_qwen3_config *c, d9d_stage stage, d9di_qwen3_fn fn, void *arg)
{
    if (d9d_stage_is_first(stage))
        D9D_TRY(each_split(c, &qwen3_rows[0], fn, arg));
    D9D_TRY(each_layer(c, stage, fn, arg));
    for (size_t i = 0; i < N_ROWS; i++)
        if (after_layers(c, &qwen3_rows[i], stage))
            D9D_TRY(each_split(c, &qwen3_rows[i], fn, arg));
    return D9D_OK;
}

void d9di_qwen3_name(const d9di_qwen3_tensor *t, const char *pattern, int64_t expert,
                     char out[D9DI_QWEN3_NAME_MAX])
{
    size_t n = 0;

    for (const char *p = pattern; *p != '\0' && n < D9DI_QWEN3_NAME_MAX - 1;) {
        char number[32];
        const char *text = number;
        int k;

        if (*p != '{') {
            out[n++] = *p++;
            continue;
        }
        if (p[1] == 'v')
            text = t->split->name;
        else
            (void)snprintf(number, sizeof(number), "%" PRId64, p[1] == 'l' ? t->layer : expert);
        k = snprintf(out + n, D9DI_QWEN3_NAME_MAX - n, "%s", text);
        n += (size_t)k < D9DI_QWEN3_NAME_MAX - n ? (size_t)k : D9DI_QWEN3_NAME_MAX - 1 - n;
        p += 3; /* "{l}" */
    }
    out[n] = '\0';
}

int d9di_qwen3_shape(const d9d_qwen3_config *c, const d9di_qwen3_tensor *t, const char *letters,
                     int64_t shape[D9D_MAX_DIMS])
{
    const struct {
        char letter;
        int64_t size;
    } sizes[] = {
        {'V', t->split != NULL ? t->split->size : 0},
        {'H', c->hidden},
        {'Q', c->heads * c->head_dim},
        {'K', c->kv_heads * c->head_dim},
        {'D', c->head_dim},
        {'I', c->dense_intermediate},
        {'E', c->experts},
        {'N', c->expert_intermediate},
        {'S', c->shared_intermediate},
        {'C', c->labels},
        {'P', c->embedding_dim},
        {'1', 1},
    };
    int n = 0;

    for (; letters[n] != '\0'; n++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            if (sizes[i].letter == letters[n])
                shape[n] = sizes[i].size;
    return n;
}
