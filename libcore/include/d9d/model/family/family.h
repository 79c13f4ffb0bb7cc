/* family.h - a family of models as one file: a layer in plain code, and three tables.
 *
 *     typedef struct config {
 *         D9D_FAMILY_DIMS;             // c->hidden_size, c->num_attention_heads, ...
 *         int64_t sliding_window;
 *     } config;
 *
 *     static const d9d_key keys[] = {  // config.json: key, default, range
 *         D9D_FAMILY_KEYS(config),
 *         D9D_FAMILY_HEAD_DIM(config),
 *         D9D_FAMILY_NORM(config, rms_norm_eps, "1e-6"),
 *         D9D_FAMILY_ROPE(config, "10000"),
 *         D9D_FAMILY_TIED(config, "false"),
 *         D9D_FAMILY_PADDING(config, "null"),
 *         D9D_KEY_INT(config, sliding_window, "4096", 1, INT32_MAX, "keys that a query sees"),
 *         D9D_KEY_END,
 *     };
 *     static const d9d_hf_field fields[] = {  // what has one meaning only, or none
 *         D9D_HF_ONLY("hidden_act", "[\"silu\"]"),
 *         D9D_HF_END,
 *     };
 *
 *     typedef struct layer { d9d_decoder_layer base; d9d_block_attention self_attn; ... } layer;
 *     static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts) { ... }
 *     static d9d_status attention(d9d_decoder_layer *base, d9d_tape *t,
 *                                 const d9d_model_layer_in *in, d9d_var **y) { ... }
 *     static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y) { ... }
 *
 *     static const char *const types[] = {"mine", NULL};
 *     static const d9d_table table = D9D_TABLE(config, "mine_config", keys, "My models");
 *     D9D_FAMILY(mine, "mine", "My models", types, .class_name = "Mine", .config = &table,
 *                .fields = fields, .layer = sizeof(layer), .init = init, .forward = attention,
 *                .ffn = ffn)
 *
 * Names of modules and of members are those of transformers; what differs in the files is a row of
 * a table (d9d/model/tensors/hf_tensors.h).  Everything else follows from the blocks and the
 * tables: d9d-map both ways, the plan of any mesh, FSDP and pipelines, KV cache, LoRA in peft's
 * layout, heads, strict reading of config.json, random weights.  A family has no code about ranks,
 * caches or files.  D9D_FAMILY defines the globals d9d_mine_provider and d9d_mine_section.  A file
 * in libcore/models/ is a family that is built in; a plugin includes d9d/tasks/plugin.h and lists
 * the provider:
 *
 *     static const d9d_model_provider *const models[] = {&d9d_mine_provider, NULL};
 *     D9D_PLUGIN(.models = models);
 *
 * examples/plugins/seed_oss.c and glm4.c are whole ones.  base->config of a layer is the family's
 * struct. Rates of dropout of the table are refused in training, unless the family says `dropout`.
 *
 *     "model_provider": {"name": "mine", "hf_config": "DIR or config.json", ...}
 *     "model_provider": {"name": "mine", "model": {"hidden_size": 64, ...}, ...}
 */
#ifndef D9D_MODEL_FAMILY_FAMILY_H
#define D9D_MODEL_FAMILY_FAMILY_H

#include "d9d/model/decoder_model.h"
#include "d9d/model/hf/hf_fields.h"
#include "d9d/model/provider.h"
#include "d9d/model/tensors/hf_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- dimensions ---------------------------------------------------------------------------- */

/* What every family has; the rest is its own.  In the order of config.json's usual keys. */
#define D9D_FAMILY_MEMBERS                                                                         \
    int64_t hidden_size, intermediate_size, num_hidden_layers;                                     \
    int64_t num_attention_heads, num_key_value_heads, head_dim;                                    \
    int64_t vocab_size, max_position_embeddings;                                                   \
    double norm_eps, rope_theta, initializer_range, attention_dropout, residual_dropout;           \
    d9d_rope_scaling rope_scaling;                                                                 \
    bool tie_word_embeddings;                                                                      \
    int64_t pad_token_id;   /* of D9D_FAMILY_PADDING */                                            \
    d9d_block_router router /* of the job, not of config.json: losses, rates */
typedef struct d9d_family_dims {
    D9D_FAMILY_MEMBERS;
} d9d_family_dims;

/* The first member of a family's struct: as `dims`, and as members of their own. */
#define D9D_FAMILY_DIMS                                                                            \
    union {                                                                                        \
        d9d_family_dims dims;                                                                      \
        struct {                                                                                   \
            D9D_FAMILY_MEMBERS;                                                                    \
        };                                                                                         \
    }

/* Keys of a family's table.  num_key_value_heads that is absent is num_attention_heads, or with
 * _GQA the number that the family's configuration class in transformers has.  A key whose default
 * or range differs is written out, D9D_KEY_INT(S, head_dim, "128", ...), in place of its macro; the
 * member is the same. */
#define D9D_FAMILY_KEYS(S)               D9D_FAMILY_KEYS_GQA(S, "null")
#define D9D_FAMILY_KEYS_GQA(S, kv_heads) D9D_FAMILY_KEYS_MHA(S), D9D_FAMILY_KV_HEADS(S, kv_heads)
#define D9D_FAMILY_KV_HEADS(S, otherwise)                                                          \
    D9D_KEY_INT(S, num_key_value_heads, otherwise, 1, 1 << 16,                                     \
                "key and value heads; null: as many as query heads", .flags = D9D_NULLABLE)
/* Of a family whose every query head has a key and a value. */
#define D9D_FAMILY_KEYS_MHA(S) D9D_FAMILY_KEYS_OF(S, D9D_REQUIRED, D9D_REQUIRED)
/* The same, with numbers of heads and ids that files may leave out. */
#define D9D_FAMILY_KEYS_OF(S, heads, ids)                                                          \
    D9D_KEY_INT(S, hidden_size, D9D_REQUIRED, 1, 1 << 20, "width of the residual stream"),         \
        D9D_KEY_INT(S, num_hidden_layers, D9D_REQUIRED, 1, 1 << 16, "decoder layers"),             \
        D9D_KEY_INT(S, num_attention_heads, heads, 1, 1 << 16, "query heads"),                     \
        D9D_KEY_INT(S, vocab_size, ids, 1, INT32_MAX, "ids of the vocabulary"),                    \
        D9D_KEY_REAL(S, initializer_range, "0.02", 0, 1e3,                                         \
                     "standard deviation of initial matrices"),                                    \
        D9D_FAMILY_DROPOUT(S, attention_dropout, attention_dropout, "0", "of attention weights")
/* A rate of dropout, which d9d_family_is_dropout() knows by its name. */
#define D9D_FAMILY_DROPOUT(S, key, member, otherwise, text)                                        \
    {                                                                                              \
        .name = #key, .kind = D9D_KIND_REAL, .offset = offsetof(S, member), .def = (otherwise),    \
        .max = 1, .flags = D9D_BELOW_MAX, .doc = "dropout " text ", in training"                   \
    }
/* Dropout of what attention and feed-forward add to the residual stream. */
#define D9D_FAMILY_RESIDUAL_DROPOUT(S, otherwise)                                                  \
    D9D_FAMILY_DROPOUT(S, residual_dropout, residual_dropout, otherwise, "of what layers add")
#define D9D_FAMILY_INTERMEDIATE(S)                                                                 \
    D9D_KEY_INT(S, intermediate_size, D9D_REQUIRED, 1, 1 << 20, "width of a feed-forward layer")
#define D9D_FAMILY_POSITIONS(S, otherwise)                                                         \
    D9D_KEY_INT(S, max_position_embeddings, otherwise, 1, INT32_MAX, "longest sequence")
/* Absent: hidden_size / num_attention_heads. */
#define D9D_FAMILY_HEAD_DIM(S)                                                                     \
    D9D_KEY_INT(S, head_dim, "null", 1, 1 << 16,                                                   \
                "features of a head; null: a share of hidden_size", .flags = D9D_NULLABLE)
#define D9D_FAMILY_NORM(S, key, otherwise)                                                         \
    {                                                                                              \
        .name = #key, .kind = D9D_KIND_REAL, .offset = offsetof(S, norm_eps), .def = (otherwise),  \
        .max = 1, .flags = D9D_FLOAT32 | D9D_ABOVE_MIN, .doc = "epsilon of the norms"              \
    }
/* rope_theta and rope_scaling, of either generation of names; `scaling` is the rope_parameters of a
 * file that has neither rope_scaling nor rope_parameters. */
#define D9D_FAMILY_ROPE_SCALED(S, theta, scaling)                                                  \
    D9D_KEY_REAL(S, rope_theta, theta, 0, 1e15, "base of the rotary frequencies",                  \
                 .flags = D9D_ABOVE_MIN),                                                          \
        D9D_KEY_CUSTOM(S, rope_scaling, scaling, &d9d_hf_rope_scaling, "for longer sequences")
#define D9D_FAMILY_ROPE(S, theta) D9D_FAMILY_ROPE_SCALED(S, theta, "null")
#define D9D_FAMILY_TIED(S, otherwise)                                                              \
    D9D_KEY_BOOL(S, tie_word_embeddings, otherwise, "the head is the embedding")
/* The id of padding, where the class of transformers gives its embedding a padding_idx; its default
 * there.  Negative ones count from the end, and one outside the vocabulary is none. */
#define D9D_FAMILY_PADDING(S, otherwise)                                                           \
    D9D_KEY_INT(S, pad_token_id, otherwise, INT32_MIN, INT32_MAX,                                  \
                "the id of padding, whose row of the embedding gets no gradient; null: none",      \
                .flags = D9D_NULLABLE)

/* Bound of queries, keys and values: the attention block's `clip`.  A null is read as a negative
 * number. */
#define D9D_FAMILY_CLIP_QKV(S)                                                                     \
    D9D_KEY_REAL(S, clip_qkv, "null", 0, 1e30, "bound of queries, keys and values; null: none",    \
                 .flags = D9D_FLOAT32 | D9D_ABOVE_MIN | D9D_NULLABLE)

/* hidden_act, where a family has several: one of transformers' words, and a default in JSON,
 * "\"gelu\"".  Families with one activation have D9D_HF_ONLY() in place of the key. */
#define D9D_FAMILY_HIDDEN_ACT(S, otherwise)                                                        \
    D9D_KEY_ENUM(S, hidden_act, otherwise, d9d_family_activation_names,                            \
                 "activation of a feed-forward layer")
D9D_API extern const char *const d9d_family_activation_names[];
/* The unit of that member. */
D9D_API d9d_glu d9d_family_glu(int hidden_act);

/* Kinds of layers, by a list of words such as "sliding_attention": one number for each layer.
 * `field`: its name, for messages. */
typedef struct d9d_layer_types {
    const uint8_t *at; /* [num_hidden_layers]: index into `words`; NULL: the list is absent */
    size_t n;
} d9d_layer_types;
D9D_API D9D_MUST_USE d9d_status d9d_layer_types_read(const d9d_list *list, const char *field,
                                                     const char *const *words, int64_t layers,
                                                     const char *where, d9d_arena *a,
                                                     d9d_layer_types *out);
/* Which layers have a window: by a list of "full_attention" and "sliding_attention"; if it is
 * absent, all but layer `full` of each `period` layers, from 0. */
D9D_API D9D_MUST_USE d9d_status d9d_layer_types_windowed(const d9d_list *list, int64_t period,
                                                         int64_t full, int64_t layers,
                                                         const char *where, d9d_arena *a,
                                                         bool **out);
/* A list of words in a family's struct, for these functions. */
#define D9D_FAMILY_LAYER_TYPES(S, member)                                                          \
    D9D_KEY_LIST(S, member, "null", &d9d_family_word, "the kind of each layer",                    \
                 .flags = D9D_NULLABLE)
D9D_API extern const d9d_key d9d_family_word;

/* --- the family ----------------------------------------------------------------------------- */

/* What one rank, file or job adds to the dimensions.  The struct that providers get as `config`. */
typedef struct d9d_family_config {
    const struct d9d_family *family;
    const void *dims;                    /* the family's struct */
    const d9d_block_vocab_split *splits; /* of the vocabulary, in order of ids */
    size_t n_splits;
    int64_t virtual_pre, virtual_post; /* d9d_stage_layers() */
    int64_t max_positions;             /* of the job's sequences; 0: max_position_embeddings */
    d9d_head_kind head;
    int64_t labels, embedding_dim; /* of heads */
    bool head_unknown;             /* config.json does not name the head */
    bool prefixed;  /* names of a base model have the prefix ("model.") in the files */
    bool tied_copy; /* the files of a tied model have a head, a copy of the embedding */
    bool new_head;  /* the head is a task's: a source may have another, or none */
    d9d_block_router native_router; /* what config.json expresses */
    bool custom_router;             /* the model's routers are others */
    const char *document;           /* text of the config.json that it was made from */
} d9d_family_config;

typedef struct d9d_family {
    size_t size;            /* sizeof(d9d_family) */
    const char *name;       /* for messages; D9D_FAMILY sets it */
    const char *class_name; /* of transformers, without its suffix: "Llama" of LlamaForCausalLM */
    const char *const *model_types; /* NULL-ended */
    const d9d_table *config;      /* keys of config.json; its struct begins with D9D_FAMILY_DIMS */
    const d9d_hf_field *fields;   /* the other fields that it accepts; NULL: none */
    const d9d_hf_tensor *tensors; /* parameters of a layer that files name otherwise; NULL: none */
    const d9d_hf_parts *parts;    /* names of embedding, layers, norm and head in files; NULL:
                                     d9d_hf_parts_default */
    /* After general checks: derive what other fields decide, and check what the table cannot.
     * `where` begins every message.  NULL: nothing. */
    d9d_status (*check)(void *config, const char *where, d9d_arena *a);
    /* Change what differs from the usual decoder, an RMSNorm at the end and a RoPE that turns whole
     * heads in halves: s->layer_norm, s->rope.features and .style, s->local_rope, factors of
     * embedding and logits.  NULL: nothing. */
    void (*shape)(const void *config, d9d_decoder_shape *s);
    /* Files may have layers behind the last, of multi-token prediction (MTP), which the model does
     * not compute: they are left out. */
    bool mtp_layers;
    /* Attention is bidirectional: no causal language model.  A masked one is where shape() sets
     * mlm_head.  The head of transformers' class ...ForSequenceClassification is left out; a task's
     * head is written in the suite's layout. */
    bool encoder;
    size_t layer; /* bytes of a layer, which begins with a d9d_decoder_layer */
    /* As in d9d_decoder_kind. */
    d9d_status (*init)(d9d_decoder_layer *l, const d9d_block_opts *opts);
    d9d_status (*forward)(d9d_decoder_layer *l, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y);
    d9d_status (*ffn)(d9d_decoder_layer *l, d9d_tape *t, d9d_var *x, d9d_var **y);
    const char *lm_class; /* suffix of the class with a language-model head; NULL: "ForCausalLM" */
    /* init() and shape() give every rate of dropout of the table to blocks and decoder
     * (d9d_block_attention_shape.dropout, d9d_decoder_shape.embed_dropout, ...).  False: training
     * refuses a rate above 0. */
    bool dropout;
    /* The family's own keys are the sizes of heads: head_dim is not used, and num_attention_heads
     * need not divide hidden_size. */
    bool own_heads;
} d9d_family;

/* Read a config.json's object, checked, into the arena.  The vocabulary is one split, "regular".
 * `inlined`: it is a job's "model", which may have fields that files cannot have.  ECONFIG,
 * ENOTSUP. */
D9D_API D9D_MUST_USE d9d_status d9d_family_read(const d9d_family *f, const json_t *doc,
                                                const char *where, bool inlined, d9d_arena *a,
                                                d9d_family_config *out);
/* Read the section of a job, and `doc`, the config.json that it names (NULL: it has "model"). */
D9D_API D9D_MUST_USE d9d_status d9d_family_read_section(const d9d_family *f, const void *section,
                                                        const json_t *doc, const char *where,
                                                        d9d_arena *a, const void **out);

/* Give all mixtures of experts the routers of a job.  What determines the model is taken from its
 * file, if that has it. */
D9D_API void d9d_family_set_router(d9d_family_config *c, const d9d_block_router *job);

/* --- its provider ---------------------------------------------------------------------------- */

/* The section of a family in "model_provider". */
typedef struct d9d_family_section {
    d9d_model_section head;
    json_t *model;           /* the fields of a config.json, in place of hf_config; NULL: none */
    d9d_block_router router; /* losses and rates of mixtures of experts */
    d9d_str_int_map split_vocab_size; /* in the order of ids; n 0: one split */
    int64_t pipeline_num_virtual_layers_pre, pipeline_num_virtual_layers_post;
    int64_t max_positions; /* of the job's sequences; 0: as many as the model has */
} d9d_family_section;
D9D_API extern const d9d_key d9d_family_section_keys[];
D9D_API D9D_MUST_USE d9d_status d9d_family_section_check(const void *section, const char *path);

/* Members of d9d_model_provider for a family; `config` is a d9d_family_config. */
D9D_API D9D_MUST_USE d9d_status d9d_family_create(const void *config, d9d_stage stage,
                                                  const d9d_model_opts *opts, d9d_model **out);
D9D_API d9d_weights_layout d9d_family_layout(const d9d_tensor_source *src);
/* Parts of a checkpoint that the family does not compute, and so are left out: layers for
 * multi-token prediction, the vision model of which this is the text model, and the head of an
 * encoder.  Number of a source's tensors that are of this part, from 0, and what it is. */
enum { D9D_FAMILY_LEFT_OUT = 3 };
D9D_API size_t d9d_family_left_out(const void *config, const d9d_tensor_source *src, size_t part,
                                   const char **what);
D9D_API bool d9d_family_is_left_out(const void *config, const char *name);
/* EMISMATCH if a source of a tied model has a head of other numbers than its embedding.  Both are
 * read, or `sampled`, up to 1 MiB of each as float32; tensors without a shape yet are not. */
D9D_API D9D_MUST_USE d9d_status d9d_family_check_tied(const void *config,
                                                      const d9d_tensor_source *src, bool sampled);
/* False for a mixture of experts whose files never have all experts in one tensor. */
D9D_API bool d9d_family_has_fused_layout(const d9d_family *f);
D9D_API D9D_MUST_USE d9d_status d9d_family_mapper(const void *config, d9d_stage stage,
                                                  const d9d_tensor_source *src,
                                                  d9d_weights_layout to, d9d_mapper **out);
/* Rename what a mapper to HuggingFace's layout makes as tensors of `files` are named, those of a
 * multimodal model among them. */
D9D_API D9D_MUST_USE d9d_status d9d_family_rename_as(const void *config,
                                                     const d9d_tensor_source *files, d9d_mapper *m);
/* Is a tensor of `files`, a HuggingFace folder of this model, one that a mapper need not make?  It
 * is no part of the model, or the copy of a tied embedding. */
D9D_API bool d9d_family_is_spare(const void *config, const char *name);
/* ECONFIG unless both compute the same model, of weights that they do not know; `where` and
 * `other_where` are their files.  Dropout, the deviation of random weights and the row of padding
 * may differ. */
D9D_API D9D_MUST_USE d9d_status d9d_family_check_equal(const void *config, const char *where,
                                                       const void *other, const char *other_where);
D9D_API D9D_MUST_USE d9d_status d9d_family_matrices(const void *config, d9d_arena *a,
                                                    d9d_model_matrices *out);
D9D_API D9D_MUST_USE d9d_status d9d_family_tensors(const void *config, d9d_arena *a,
                                                   d9d_model_tensors *out);
D9D_API D9D_MUST_USE d9d_status d9d_family_hf_config(const void *config, d9d_dtype dtype,
                                                     json_t **doc);
D9D_API D9D_MUST_USE d9d_status d9d_family_set_head(const void *config, d9d_arena *a,
                                                    d9d_head *head, const void **out);
D9D_API D9D_MUST_USE d9d_status d9d_family_hf_head(const void *config, json_t *doc);
/* ENOTSUP if a rate of dropout is not 0: a number with "drop" in its key, such as
 * attention_dropout or resid_pdrop. */
D9D_API D9D_MUST_USE d9d_status d9d_family_trainable(const void *config);
/* Has transformers a balancing loss of routers in the loss of this config.json, and this suite
 * none? It is a file with output_router_logits and a coefficient other than 0, of a family whose
 * class adds the loss (D9D_HF_ROUTER_LOSS), in a job without model_provider.router.aux_loss_coef.
 */
D9D_API D9D_MUST_USE d9d_status d9d_family_lacks_router_loss(const d9d_family_config *c, bool *out);
/* ENOTSUP if the config.json is of a classifier of two labels or more that do not exclude each
 * other (problem_type): a softmax of its logits would be no probabilities.  `where` names the file.
 */
D9D_API D9D_MUST_USE d9d_status d9d_family_check_problem(const d9d_family_config *c,
                                                         const char *where);
D9D_API bool d9d_family_is_dropout(const d9d_key *k);
D9D_API void d9d_family_infer(void *config, const d9d_tensor_source *src);
D9D_API D9D_MUST_USE d9d_status d9d_family_mark(const void *config, json_t *doc, bool fused);

/* Add an RMSNorm over hidden_size to a layer l, as the child called like its member. */
#define D9D_FAMILY_NORM_ADD(l, member, opts, c)                                                    \
    D9D_BLOCK_ADD(&(l)->base.module, #member, norm, &(l)->member, opts, (c)->hidden_size,          \
                  (float)(c)->norm_eps, false)

/* The same of a LayerNorm with weight and bias. */
#define D9D_FAMILY_LAYER_NORM_ADD(l, member, opts, c)                                              \
    D9D_BLOCK_ADD(&(l)->base.module, #member, layer_norm, &(l)->member, opts, (c)->hidden_size,    \
                  (float)(c)->norm_eps, D9D_LAYER_NORM_BIAS)

/* Members of a d9d_model_provider beside its section. */
#define D9D_FAMILY_PROVIDER(types, of)                                                             \
    .size = sizeof(d9d_model_provider), .create = d9d_family_create, .layout = d9d_family_layout,  \
    .mapper = d9d_family_mapper, .hf_config = d9d_family_hf_config,                                \
    .matrices = d9d_family_matrices, .set_head = d9d_family_set_head,                              \
    .hf_head = d9d_family_hf_head, .trainable = d9d_family_trainable, .infer = d9d_family_infer,   \
    .mark = d9d_family_mark, .tensors = d9d_family_tensors, .model_types = (types),                \
    .blocks = true, .family = (of)

/* Define d9d_VAR_provider, and its section d9d_VAR_section called `word`, for these values of
 * "model_type".  What follows are members of d9d_family.  The section's keys are the library's,
 * also of a plugin that was built where keys are longer: their size is the current one, 0. */
#define D9D_FAMILY(var, word, text, types, ...)                                                    \
    extern const d9d_model_provider d9d_##var##_provider;                                          \
    extern const d9d_table d9d_##var##_section;                                                    \
    static const d9d_family var##_family = {                                                       \
        .size = sizeof(d9d_family), .name = (word), .model_types = (types), __VA_ARGS__};          \
    const d9d_table d9d_##var##_section = {.name = (word),                                         \
                                           .size = sizeof(d9d_family_section),                     \
                                           .keys = d9d_family_section_keys,                        \
                                           .doc = (text),                                          \
                                           .check = d9d_family_section_check,                      \
                                           .row = &d9d_##var##_provider,                           \
                                           .bytes = {sizeof(d9d_table), 0}};                       \
    const d9d_model_provider d9d_##var##_provider = {.table = &d9d_##var##_section,                \
                                                     D9D_FAMILY_PROVIDER(types, &(var##_family))}

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_FAMILY_FAMILY_H */
