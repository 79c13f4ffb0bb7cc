/* qwen3_config_make.c - makes config.json for a model that has none, or whose head changed.
 */
#include "models/qwen3/qwen3_config_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static d9d_status check_representable(const d9d_qwen3_config *c)
{
    const char *what = c->shared_intermediate > 0               ? "a shared expert"
                       : c->n_splits != 1                       ? "a vocabulary of several splits"
                       : c->rope_interleaved                    ? "interleaved RoPE"
                       : d9d_block_router_is_custom(&c->router) ? "routers other than softmax top-k"
                       : c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0
                           ? "a projection of embeddings"
                           : NULL;

    if (what == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP, "config.json: Qwen3 in HuggingFace's format cannot have %s", what);
}

static json_t *dense_layers_build(const d9d_qwen3_config *c)
{
    json_t *list = json_array();

    for (int64_t l = 0; l < c->layers; l++)
        if (!d9d_qwen3_is_moe(c, l))
            d9d_json_add(&list, json_integer(l));
    return list;
}

/* The smallest double that prints like the float: 1e-06, not 9.99999997e-07. */
static double short_double(float f)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%.7g", (double)f);
    return strtof(text, NULL) == f ? strtod(text, NULL) : (double)f;
}

/* id2label and label2id, as transformers writes them. */
static json_t *labels_build(int64_t n)
{
    json_t *names = json_object(), *ids = json_object();

    for (int64_t i = 0; i < n; i++) {
        char number[24], name[32];

        (void)snprintf(number, sizeof(number), "%" PRId64, i);
        (void)snprintf(name, sizeof(name), "LABEL_%" PRId64, i);
        d9d_json_set(&names, number, json_string(name));
        d9d_json_set(&ids, name, json_integer(i));
    }
    return json_pack("{s:o, s:o}", "id2label", names, "label2id", ids);
}

/* Merge `more`, which is released, into `doc`. */
static json_t *objects_merge(json_t *doc, json_t *more)
{
    bool fine = doc != NULL && more != NULL && json_object_update(doc, more) == 0;

    json_decref(more);
    if (!fine)
        json_decref(doc);
    return fine ? doc : NULL;
}

static const char *class_name(const d9d_qwen3_config *c)
{
    static const char *const names[D9D_HEAD_COUNT][2] = {
        [D9D_HEAD_CAUSAL_LM] = {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"},
        [D9D_HEAD_CLASSIFICATION] = {"Qwen3ForSequenceClassification",
                                     "Qwen3MoeForSequenceClassification"},
        [D9D_HEAD_EMBEDDING] = {"Qwen3Model", "Qwen3MoeModel"},
    };

    return names[c->head][c->experts > 0];
}

json_t *d9di_hf_rope_to_json(const d9d_rope_scaling *s)
{
    json_t *o =
        json_pack("{s:s, s:f}", "rope_type", d9d_rope_kind_name(s->kind), "factor", s->factor);
    const bool yarn = s->kind == D9D_ROPE_YARN;

    if (s->kind == D9D_ROPE_PLAIN || s->kind == D9D_ROPE_NTK) { /* ntk changes only the base */
        json_decref(o);
        return json_null();
    }
    if (s->kind == D9D_ROPE_LINEAR)
        return o;
    o = objects_merge(o, json_pack("{s:I, s:f, s:f}", "original_max_position_embeddings",
                                   (json_int_t)s->original, yarn ? "beta_fast" : "high_freq_factor",
                                   s->fast, yarn ? "beta_slow" : "low_freq_factor", s->slow));
    if (yarn && !s->whole)
        o = objects_merge(o, json_pack("{s:b}", "truncate", 0));
    return yarn && s->mscale > 0
               ? objects_merge(o, json_pack("{s:f}", "attention_factor", s->mscale))
               : o;
}

/* The base to write; for ntk the changed one. */
static double rope_base_of(const d9d_qwen3_config *c)
{
    return d9d_rope_base(&c->rope_scaling, c->rope_base, c->head_dim);
}

/* layer_types of a dense model with a window; in a mixture every layer has it. */
static json_t *layer_types_build(const d9d_qwen3_config *c)
{
    json_t *types = json_array();

    for (int64_t l = 0; l < c->layers; l++)
        d9d_json_add(&types, json_string(d9d_qwen3_window(c, l) > 0 ? "sliding_attention"
                                                                    : "full_attention"));
    return json_pack("{s:b, s:I, s:o}", "use_sliding_window", 1, "sliding_window",
                     (json_int_t)c->window, "layer_types", types);
}

d9d_status d9d_qwen3_config_make(const d9d_qwen3_config *c, d9d_dtype dtype, json_t **out)
{
    bool moe = c->experts > 0;
    json_t *doc;

    D9D_TRY(check_representable(c));
    doc = json_pack(
        "{s:[s], s:b, s:f, s:I, s:s, s:I, s:f, s:I, s:I, s:s, s:I, s:I, s:I, s:f, s:o, "
        "s:f, s:b, s:s, s:b, s:I}",
        "architectures", class_name(c), "attention_bias", 0, "attention_dropout",
        c->attention_dropout, "head_dim", (json_int_t)c->head_dim, "hidden_act", "silu",
        "hidden_size", (json_int_t)c->hidden, "initializer_range",
        c->init_std > 0 ? c->init_std : 0.02, "intermediate_size",
        (json_int_t)(c->dense_intermediate > 0 ? c->dense_intermediate : c->expert_intermediate),
        "max_position_embeddings", (json_int_t)c->max_positions, "model_type",
        moe ? "qwen3_moe" : "qwen3", "num_attention_heads", (json_int_t)c->heads,
        "num_hidden_layers", (json_int_t)c->layers, "num_key_value_heads", (json_int_t)c->kv_heads,
        "rms_norm_eps", short_double(c->norm_eps), "rope_scaling",
        d9di_hf_rope_to_json(&c->rope_scaling), "rope_theta", rope_base_of(c),
        "tie_word_embeddings", c->tied, "torch_dtype", d9d_dtype_name(dtype), "use_sliding_window",
        0, "vocab_size", (json_int_t)d9d_qwen3_vocab(c));
    if (moe)
        doc = objects_merge(doc, json_pack("{s:I, s:o, s:I, s:b, s:I, s:I}", "decoder_sparse_step",
                                           (json_int_t)1, "mlp_only_layers", dense_layers_build(c),
                                           "moe_intermediate_size",
                                           (json_int_t)c->expert_intermediate, "norm_topk_prob",
                                           c->renormalise, "num_experts", (json_int_t)c->experts,
                                           "num_experts_per_tok", (json_int_t)c->top_k));
    if (c->head == D9D_HEAD_CLASSIFICATION)
        doc = objects_merge(doc, labels_build(c->labels));
    if (c->window > 0)
        doc = objects_merge(doc, layer_types_build(c));
    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    *out = doc;
    return D9D_OK;
}

/* The number of labels of a classifier's document; -1: not a classifier. */
static int64_t labels_count(const json_t *doc, const d9d_qwen3_config *c)
{
    const d9di_hf_reader r = {doc, D9D_HF_CONFIG_NAME, c->experts > 0};
    d9d_qwen3_config said = {0};

    if (d9di_qwen3_config_head(&r, &said) != D9D_OK || said.head != D9D_HEAD_CLASSIFICATION)
        return -1;
    return said.labels;
}

d9d_status d9d_qwen3_config_set_head(json_t *doc, const d9d_qwen3_config *c)
{
    const bool labelled = c->head == D9D_HEAD_CLASSIFICATION;
    json_t *more;
    int bad;

    if ((c->embedding_dim > 0 && c->head == D9D_HEAD_EMBEDDING) ||
        d9d_block_router_is_custom(&c->router))
        D9D_TRY(d9d_qwen3_config_mark(doc, c, d9d_hf_config_was_fused(doc)));
    D9D_TRY(check_representable(c));
    if (!c->new_head || (labelled && labels_count(doc, c) == c->labels))
        return D9D_OK;
    more = labelled ? labels_build(c->labels) : json_object();
    if (labelled)
        (void)json_object_del(doc, "num_labels");
    bad = json_object_set_new(doc, "architectures", json_pack("[s]", class_name(c)));
    bad |= json_object_update(doc, more);
    json_decref(more);
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

static json_t *router_to_json(const d9d_block_router *r)
{
    json_t *mark = json_pack("{s:I, s:I, s:f, s:b}", "groups", (json_int_t)r->groups, "top_groups",
                             (json_int_t)r->top_groups, "scale", r->scale != 0 ? r->scale : 1,
                             D9D_ROUTER_BIAS, r->expert_bias);

    if (r->score == D9D_SCORE_SIGMOID)
        d9d_json_set(&mark, "score", json_string("sigmoid"));
    return mark;
}

d9d_status d9d_qwen3_config_mark(json_t *doc, const d9d_qwen3_config *c, bool fused)
{
    json_t *more = json_object();

    if (d9d_block_router_is_custom(&c->router))
        d9d_json_set(&more, "router", router_to_json(&c->router));
    if (c->prefixed)
        d9d_json_set(&more, "prefixed", json_true());
    if (c->embedding_dim > 0)
        d9d_json_set(&more, "embedding_dim", json_integer(c->embedding_dim));
    if (more == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    return d9d_hf_config_mark(doc, d9d_head_name(c->head), fused, more);
}
