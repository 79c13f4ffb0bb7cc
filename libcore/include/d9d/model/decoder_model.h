/* decoder_model.h - a language model of layers, for authors of models.
 *
 *     ids --embed--> x --layers.0--> x ... x --layers.L-1--> x --norm--> hidden --head--> losses
 *
 * Models differ by their layers.  An author describes one, its structure and its forward; the rest
 * of a d9d_model stands here: both ends, names, units, stages of a pipeline, recomputation, taps.
 * The families in libcore/models/ are made so.
 *
 *     typedef struct layer {
 *         d9d_decoder_layer base;       // first
 *         d9d_block_norm norm;
 *         d9d_block_ffn ffn;
 *     } layer;
 *
 *     static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *how)
 *     {
 *         const dims *c = base->config;
 *         layer *l = (layer *)base;
 *
 *         D9D_BLOCK_ADD(&base->module, "norm", norm, &l->norm, how, c->hidden, 1e-6f, false);
 *         D9D_BLOCK_ADD(&base->module, "mlp", ffn, &l->ffn, how, c->hidden, c->intermediate);
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
 *     static const d9d_decoder_kind mine = {
 *         sizeof(mine), .name = "mine", .layer = sizeof(layer), .init = init, .forward = forward};
 *
 * and the provider's create() (d9d/model/provider.h) fills a d9d_decoder_shape and calls
 * d9d_decoder_create().  examples/plugins/llama.c is all of a model.
 *
 * Parameters are called embed.token_embedding.all.weight, layers.N.*, norm.weight and
 * head.lm_head.all.weight, or as the kind says.  N counts over all stages, so a checkpoint is the
 * same on any.
 */
#ifndef D9D_MODEL_DECODER_MODEL_H
#define D9D_MODEL_DECODER_MODEL_H

#include "d9d/model/model.h"
#include "d9d/model/provider.h"
#include "d9d/nn/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a layer begins with; all of it is set before init(), by d9d_decoder_create(). */
typedef struct d9d_decoder_layer {
    d9d_module module;                   /* of its parameters: a unit */
    const struct d9d_decoder_kind *kind; /* which it is of */
    const void *config;                  /* the model's */
    const d9d_block_rope *rope;          /* one for all layers */
    int64_t number;                      /* from 0, over all stages */
    bool recompute_ffn;                  /* its kind's ffn() alone is computed again in backward */
} d9d_decoder_layer;

/* What its parts are called in the root; a layer's number follows a point. */
typedef struct d9d_decoder_names {
    const char *embed, *layers, *norm, *head;
} d9d_decoder_names;

typedef struct d9d_decoder_kind {
    size_t size;      /* sizeof(d9d_decoder_kind) */
    const char *name; /* of the model, in messages */
    size_t layer;     /* bytes of a layer, which begins with a d9d_decoder_layer; zeroed at first */
    /* Declare its parameters: structure alone, no memory.  They are released with the model. */
    d9d_status (*init)(d9d_decoder_layer *l, const d9d_block_opts *how);
    /* in->x to y, [B, S, H] both, the residual included.  Where activations are computed again it
     * is called a second time, in backward. */
    d9d_status (*forward)(d9d_decoder_layer *l, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y);
    /* NULL, or what the layer keeps in generation: usually what its block does
     * (d9d_block_attention_cache_spec()), which in->cache then gives to it. */
    void (*cache_spec)(const d9d_decoder_layer *l, d9d_block_cache_spec *out);
    /* NULL, or the layer's second half, to which forward() is the first: x to y, the residual
     * included.  Selective recomputation is of it alone; NULL: of the whole layer. */
    d9d_status (*ffn)(d9d_decoder_layer *l, d9d_tape *t, d9d_var *x, d9d_var **y);
    /* NULL, or the layer's mixture of experts, whose loads are then known; NULL of one without. */
    d9d_block_moe *(*mixture)(d9d_decoder_layer *l);
    /* NULL, or what one layer adds to d9d_model_ops.flops_per_token. */
    double (*flops_per_token)(const d9d_decoder_layer *l, int64_t s);
    const d9d_decoder_names *names; /* NULL: those above */
} d9d_decoder_kind;

/* Its dimensions, and what its ends are made with. */
typedef struct d9d_decoder_shape {
    int64_t layers, hidden, vocab, max_positions;
    double init_std;     /* of matrices: N(0, init_std); 0: 0.02; below: as a d9d_block_opts of 0 */
    double norm_eps;     /* of the final norm */
    bool zero_centred;   /* likewise */
    d9d_block_rope rope; /* base, features, style, scaling; features 0: nothing turns */
    /* Ranges of ids that are parameters of their own, `vocab` in sum; borrowed.  NULL: one, "all".
     */
    const d9d_block_vocab_split *splits;
    size_t n_splits;
    bool no_head; /* ends with the norm: another head stands there (d9d/model/head.h) */
    bool tied;    /* the head is the embedding, which the last stage then has too */
    int64_t virtual_pre, virtual_post; /* d9d_stage_layers() */
} d9d_decoder_shape;

/* This stage's part of a model.  `kind` and `config` are kept and must live as long;
 * d9d_model_free() lets go of the rest.  ECONFIG where a stage would have no layer. */
D9D_API D9D_MUST_USE d9d_status d9d_decoder_create(const d9d_decoder_kind *kind,
                                                   const d9d_decoder_shape *shape,
                                                   const void *config, d9d_stage stage,
                                                   const d9d_model_opts *options, d9d_model **out);

/* For a provider's hf_names: "model.embed_tokens.", "model.layers.", "model.norm." and "lm_head.",
 * where HuggingFace's files have the parts of such a model. */
D9D_API extern const d9d_hf_name_pair d9d_decoder_hf_names[];

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_DECODER_MODEL_H */
