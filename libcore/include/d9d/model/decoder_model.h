/* decoder_model.h - a decoder-only language model of layers, for authors of models.
 *
 *     ids --embed--> x --layers.0--> x ... x --layers.L-1--> x --norm--> hidden --head--> losses
 *                    + embed_positions, where positions are learnt
 *
 * Models differ in their layers.  An author describes one layer, its structure and its forward.
 * This file supplies the rest of a d9d_model: embedding and head, names, FSDP units, pipeline
 * stages, recomputation (activation checkpointing), hooks.  The families in libcore/models/ are
 * built so.
 *
 *     typedef struct layer {
 *         d9d_decoder_layer base;       // first
 *         d9d_block_norm norm;
 *         d9d_block_ffn ffn;
 *     } layer;
 *
 *     static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
 *     {
 *         const dims *c = base->config;
 *         layer *l = (layer *)base;
 *
 *         D9D_BLOCK_ADD(&base->module, "norm", norm, &l->norm, opts, c->hidden, 1e-6f, false);
 *         D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->ffn, opts,
 *                       &(d9d_block_ffn_shape){.hidden = c->hidden, .intermediate = c->wide});
 *         return D9D_OK;
 *     }
 *
 *     static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
 *                               d9d_var **y)
 *     {
 *         layer *l = (layer *)base;
 *         d9d_var *h;
 *
 *         D9D_TRY(d9d_block_norm_forward(&l->norm, t, in->x, &h));
 *         return d9d_block_ffn_forward(&l->ffn, t, h, in->x, y);
 *     }
 *
 *     static const d9d_decoder_kind kind = {
 *         sizeof(kind), .name = "mine", .layer = sizeof(layer), .init = init, .forward = forward};
 *
 * The provider's create() (d9d/model/provider.h) fills a d9d_decoder_shape and calls
 * d9d_decoder_create().  examples/plugins/plain_llama.c is a complete model.
 *
 * Parameters are named embed.token_embedding.all.weight, embed_positions.weight (learnt positions),
 * embed_norm.weight, layers.N.*, norm.weight, mlm_head.* (d9d_block_mlm_head) and
 * head.lm_head.all.weight, or with the kind's names.
 * N counts over all stages, so a checkpoint
 * does not depend on the number of stages.
 */
#ifndef D9D_MODEL_DECODER_MODEL_H
#define D9D_MODEL_DECODER_MODEL_H

#include "d9d/model/model.h"
#include "d9d/model/provider.h"
#include "d9d/nn/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The base of a layer; d9d_decoder_create() sets all of it before init(). */
typedef struct d9d_decoder_layer {
    d9d_module module;                   /* of its parameters: an FSDP unit */
    const struct d9d_decoder_kind *kind; /* its kind */
    const void *config;                  /* the model's configuration; borrowed */
    const d9d_block_rope *rope;          /* shared by all layers */
    int64_t number;                      /* from 0, over all stages */
    bool recompute_ffn;                  /* recompute only its kind's ffn() in backward */
    const d9d_block_rope *local_rope;    /* that of layers with a window, where it is another one */
    d9d_layer_blocks blocks;             /* its blocks, once init() has returned */
} d9d_decoder_layer;

/* Names of the parts in the root; a layer's number follows a dot. */
typedef struct d9d_decoder_names {
    const char *embed, *layers, *norm, *head;
    const char *positions;  /* of learnt positions; NULL: there are none */
    const char *embed_norm; /* NULL: no model of the kind has one */
    const char *mlm_head;   /* NULL: the same */
} d9d_decoder_names;

typedef struct d9d_decoder_kind {
    size_t size;      /* sizeof(d9d_decoder_kind) */
    const char *name; /* of the model, in messages */
    size_t
        layer; /* bytes of a layer, which begins with a d9d_decoder_layer; zeroed before init() */
    /* Declare its parameters: structure only, no memory.  d9d_model_free() releases them. */
    d9d_status (*init)(d9d_decoder_layer *l, const d9d_block_opts *opts);
    /* in->x to y, both [B, S, H], the residual included.  With recomputation it is called a second
     * time, in backward. */
    d9d_status (*forward)(d9d_decoder_layer *l, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y);
    /* NULL, or the layer's cache entries, usually those of its block
     * (d9d_block_attention_cache_spec()); in->cache then has their slots. */
    void (*cache_spec)(const d9d_decoder_layer *l, d9d_block_cache_spec *out);
    /* NULL, or the layer's second half, whose first half is forward(): x to y, the residual
     * included. Selective recomputation covers this half only; if NULL, the whole layer. */
    d9d_status (*ffn)(d9d_decoder_layer *l, d9d_tape *t, d9d_var *x, d9d_var **y);
    /* NULL, or the layer's mixture of experts, so that expert loads are counted; returns NULL for a
     * layer without one. */
    d9d_block_moe *(*mixture)(d9d_decoder_layer *l);
    /* NULL, or one layer's contribution to d9d_model_ops.flops_per_token. */
    double (*flops_per_token)(const d9d_decoder_layer *l, int64_t s);
    const d9d_decoder_names *names; /* NULL: the names above */
    /* Layers compute with blocks only: cache_spec(), mixture() and flops_per_token() that are NULL
     * follow from layer->blocks. */
    bool of_blocks;
} d9d_decoder_kind;

/* Dimensions of the model, and options of its embedding, final norm and head. */
typedef struct d9d_decoder_shape {
    int64_t layers, hidden, vocab, max_positions;
    double
        init_std; /* of matrices: N(0, init_std); 0: 0.02; negative: as d9d_block_opts.init_std 0 */
    double norm_eps;   /* of the final norm */
    bool zero_centred; /* of the final norm */
    bool layer_norm;   /* the final norm is a LayerNorm in place of an RMSNorm, */
    d9d_block_layer_norm_params layer_norm_params; /* with these parameters */
    d9d_block_rope rope; /* base, features, style, scaling; features 0: no RoPE */
    /* Ranges of ids with separate tables, `vocab` ids in sum; borrowed.  NULL: one table, "all". */
    const d9d_block_vocab_split *splits;
    size_t n_splits;
    bool no_head; /* the model ends with the norm; a task adds another head (d9d/model/head.h) */
    bool tied;    /* tied weights: the head is the embedding, which the last stage then has too */
    int64_t virtual_pre, virtual_post; /* d9d_stage_layers() */
    d9d_block_rope local_rope;         /* features 0: layers with a window use `rope` */
    /* Factors of the embedding's rows and of the logits; 0: 1.  The latter multiplies the hidden
     * rows that the head takes, and no other head's. */
    double embedding_scale, logit_scale;
    bool embedding_scale_rounded; /* to the type of the model's parameters (Gemma) */
    bool has_experts;             /* some layer, of any stage, has a mixture of experts */
    double logit_softcap;         /* of the head, as d9d_op_vocab_opts.softcap; 0: none */
    int64_t learnt_positions;     /* rows of a table that is added to the embedding; 0: none */
    bool embed_norm;              /* a norm behind the embedding too, of the final norm's kind */
    d9d_block_mlm_head_shape mlm_head; /* before the head of a masked LM; hidden 0: none */
    bool new_head; /* a checkpoint may lack the head, which then is random: d9d_param_spec.from_task
                    */
    double embed_dropout; /* of what the first layer takes, in training; 0: none */
    bool has_padding;     /* the embedding does not train the row of the id `padding` */
    int64_t padding;
} d9d_decoder_shape;

/* Create this stage's part of a model.  `kind` and `config` are borrowed and must outlive it;
 * d9d_model_free() frees the rest.  ECONFIG if a stage would have no layer. */
D9D_API D9D_MUST_USE d9d_status d9d_decoder_create(const d9d_decoder_kind *kind,
                                                   const d9d_decoder_shape *shape,
                                                   const void *config, d9d_stage stage,
                                                   const d9d_model_opts *options, d9d_model **out);

/* For a provider's hf_names: "model.embed_tokens.", "model.layers.", "model.norm." and "lm_head.",
 * the names of these parts in HuggingFace's files. */
D9D_API extern const d9d_hf_name_pair d9d_decoder_hf_names[];

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_DECODER_MODEL_H */
