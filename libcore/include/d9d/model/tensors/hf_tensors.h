/* hf_tensors.h - what a model's parameters are called in HuggingFace's files, and how they lie
 * there.
 *
 * A parameter of a layer has the same name there as here, unless a row of the family says
 * otherwise.  Rows name parameters from their layer on:
 *
 *     static const d9d_hf_tensor tensors[] = {
 *         D9D_HF_NAME("mlp.router.gate.weight", "block_sparse_moe.gate.weight"),
 *         D9D_HF_STACK("mlp.grouped_experts.up_proj.weight",
 *                      "block_sparse_moe.experts.{expert}.w3.weight"),
 *         {.own = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
 *                  "self_attn.v_proj.weight"},
 *          .hf = "self_attn.qkv_proj.weight"},                        // one below the other
 *         {.own = {"attn.c_proj.weight"}, .hf = "attn.c_proj.weight", .transposed = true},
 *         D9D_HF_UNUSED("self_attn.rotary_emb.inv_freq"),             // no part of a model
 *         D9D_HF_TENSORS_END,
 *     };
 *
 * A row with several parameters has them one after another along `dim` of the file's tensor, after
 * transposing.  With `groups` they are interleaved: group by group, each with its share of every
 * parameter, as the heads of GPT-NeoX's query_key_value [A, 3, D] or the gate and up columns of
 * GPT-OSS.
 *
 * Mixtures of experts have two layouts in HuggingFace's files, a tensor for each expert and one
 * for all; rows with `rows` are of one of them.  Where the model that transformers makes of files
 * has other tensors than either, D9D_HF_ROWS_MODEL says so: peft's adapters are of that model.
 *
 *     here                                          HF                            HF_FUSED
 *     mlp.grouped_experts.gate_proj.weight [E,H,N]  mlp.experts.{expert}....[N,H] mlp.experts.
 *     mlp.grouped_experts.up_proj.weight   [E,H,N]  mlp.experts.{expert}....[N,H] gate_up_proj
 *                                                                                 [E,2N,H]
 *
 * d9d_hf_mapper() makes the mapping of a model in either direction from the rows and the
 * parameters themselves.
 */
#ifndef D9D_MODEL_TENSORS_HF_TENSORS_H
#define D9D_MODEL_TENSORS_HF_TENSORS_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/model/decoder_model.h"
#include "d9d/model/provider.h"
#include "d9d/nn/module.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_HF_PARTS = 5 };
typedef enum d9d_hf_rows {
    D9D_HF_ROWS_BOTH, /* of either layout */
    D9D_HF_ROWS_SEPARATE,
    D9D_HF_ROWS_FUSED,
    D9D_HF_ROWS_MODEL /* of transformers' model, and of no files */
} d9d_hf_rows;

#define D9D_HF_EACH SIZE_MAX /* groups of one element of each parameter */
typedef struct d9d_hf_tensor {
    const char *own[D9D_HF_PARTS]; /* parameters, NULL after the last; none: not used */
    const char *hf;                /* NULL ends the table; {expert}: one tensor for each expert */
    bool transposed;               /* its last two dimensions are swapped */
    int dim;                       /* of the parameters, along which they lie in it */
    size_t groups; /* offset of the number of groups, an int64_t, in the family's struct, or
                      D9D_HF_EACH; 0: not interleaved */
    d9d_hf_rows rows;
    int unit_dim; /* it has one more dimension there, of size 1, as a convolution [C, 1, W]; 0: none
                   */
} d9d_hf_tensor;

#define D9D_HF_NAME(here, there)                                                                   \
    {                                                                                              \
        .own = {here}, .hf = (there)                                                               \
    }
/* The same in transformers' model, where files have another name. */
#define D9D_HF_MODEL_NAME(here, there)                                                             \
    {                                                                                              \
        .own = {here}, .hf = (there), .rows = D9D_HF_ROWS_MODEL                                    \
    }
/* A stack of experts [E, in, out], in files E matrices [out, in]. */
#define D9D_HF_STACK(here, there)                                                                  \
    {                                                                                              \
        .own = {here}, .hf = (there), .transposed = true, .rows = D9D_HF_ROWS_SEPARATE             \
    }
/* A parameter that files cannot have. */
#define D9D_HF_NONE(here)                                                                          \
    {                                                                                              \
        .own = {here}, .hf = ""                                                                    \
    }
/* A tensor in files that is no part of a model. */
#define D9D_HF_UNUSED(there)                                                                       \
    {                                                                                              \
        .hf = (there)                                                                              \
    }
#define D9D_HF_TENSORS_END                                                                         \
    {                                                                                              \
        .hf = NULL                                                                                 \
    }

/* All experts' matrices in two tensors of the module `at`, in rows of this kind. */
#define D9D_HF_FUSED_EXPERTS(at, kind)                                                             \
    {.own = {"mlp.grouped_experts.gate_proj.weight", "mlp.grouped_experts.up_proj.weight"},        \
     .hf = at ".gate_up_proj",                                                                     \
     .transposed = true,                                                                           \
     .dim = 2,                                                                                     \
     .rows = (kind)},                                                                              \
    {                                                                                              \
        .own = {"mlp.grouped_experts.down_proj.weight"}, .hf = at ".down_proj",                    \
        .transposed = true, .rows = (kind)                                                         \
    }

/* Rows of most mixtures of experts: a router and experts under "mlp". */
#define D9D_HF_EXPERTS                                                                             \
    D9D_HF_NAME("mlp.router.gate.weight", "mlp.gate.weight"),                                      \
        D9D_HF_STACK("mlp.grouped_experts.gate_proj.weight",                                       \
                     "mlp.experts.{expert}.gate_proj.weight"),                                     \
        D9D_HF_STACK("mlp.grouped_experts.up_proj.weight", "mlp.experts.{expert}.up_proj.weight"), \
        D9D_HF_STACK("mlp.grouped_experts.down_proj.weight",                                       \
                     "mlp.experts.{expert}.down_proj.weight"),                                     \
        D9D_HF_FUSED_EXPERTS("mlp.experts", D9D_HF_ROWS_FUSED)

/* A bias of the choice of experts, and experts for all tokens, as DeepSeek V3 has them. */
#define D9D_HF_EXPERT_BIAS D9D_HF_NAME("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias")
#define D9D_HF_SHARED_EXPERTS                                                                      \
    D9D_HF_NAME("mlp.shared_expert.expert.gate_proj.weight",                                       \
                "mlp.shared_experts.gate_proj.weight"),                                            \
        D9D_HF_NAME("mlp.shared_expert.expert.up_proj.weight",                                     \
                    "mlp.shared_experts.up_proj.weight"),                                          \
        D9D_HF_NAME("mlp.shared_expert.expert.down_proj.weight",                                   \
                    "mlp.shared_experts.down_proj.weight")

/* The parts of a decoder: names here (d9d_decoder_names) and there. */
typedef struct d9d_hf_parts {
    const char *prefix; /* of a base model's names: "model." */
    d9d_decoder_names hf;
    bool bare_lm; /* files without the prefix may be those of a causal LM too, whose head is tied */
} d9d_hf_parts;
D9D_API extern const d9d_hf_parts d9d_hf_parts_default;  /* model.embed_tokens, model.layers, ... */
D9D_API extern const d9d_decoder_names d9d_hf_own_names; /* of all families */

/* One model's naming. */
typedef struct d9d_hf_naming {
    const char *name;             /* of the family, for messages */
    const d9d_hf_tensor *tensors; /* NULL: none */
    const d9d_hf_parts *parts;
    const void *dims; /* the family's struct, for `groups` */
} d9d_hf_naming;

/* A parameter by name and whole shape, in the order of the model. */
typedef struct d9d_hf_param {
    const char *name;
    d9d_shape shape;
    bool adaptable; /* d9d_param.adaptable */
} d9d_hf_param;
typedef struct d9d_hf_params {
    const d9d_hf_param *p;
    size_t n;
} d9d_hf_params;

/* How files begin their names. */
typedef struct d9d_hf_prefixes {
    const char *model; /* in place of the parts' prefix; NULL: that prefix */
    const char *head;  /* before the name of the head */
} d9d_hf_prefixes;
D9D_API extern const d9d_hf_prefixes d9d_hf_prefixes_bare; /* of a base model: none */
/* As a source of tensors does: as the parts say, as a base model, or as the text model of a
 * multimodal one, "model.language_model.layers..." or "language_model.model.layers...". */
D9D_API const d9d_hf_prefixes *d9d_hf_prefixes_of(const d9d_hf_parts *parts,
                                                  const d9d_tensor_source *src);

/* How one mapping reads or writes the files. */
typedef struct d9d_hf_mapping {
    bool to_own;                     /* from the files to parameters; else the other way */
    d9d_weights_layout layout;       /* of the files: HF or HF_FUSED */
    const d9d_hf_prefixes *prefixes; /* NULL: as the parts say */
} d9d_hf_mapping;

/* Map parameters between their own layout and that of files.  Both sides have the shapes that
 * follow from the parameters.  ENOTSUP for parameters that files cannot have. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_mapper(const d9d_hf_naming *n, const d9d_hf_params *params,
                                              const d9d_hf_mapping *mapping, d9d_mapper **out);
/* True for a parameter of a layer that a row names, and of another part that the files name. */
D9D_API bool d9d_hf_has_row(const d9d_hf_naming *n, const char *name);
/* The layer of a tensor in the files; -1: it is of none. */
D9D_API int64_t d9d_hf_layer_of(const d9d_hf_naming *n, const char *name);
/* True for a name in the files that no model uses: a row without parameters. */
D9D_API bool d9d_hf_is_unused(const d9d_hf_naming *n, const char *name);
/* A name that begins as the parts say, as files with these prefixes have it; in the arena.  NULL:
 * out of memory. */
D9D_API const char *d9d_hf_name_as(const d9d_hf_parts *parts, const d9d_hf_prefixes *as,
                                   const char *name, d9d_arena *a);
/* All parameters that have a place in transformers' model, and the matrices among them that can
 * have adapters; in the arena. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_matrices(const d9d_hf_naming *n, const d9d_hf_params *params,
                                                d9d_arena *a, d9d_model_matrices *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_TENSORS_HF_TENSORS_H */
