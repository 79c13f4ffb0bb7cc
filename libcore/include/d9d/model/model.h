/* model.h - what the loops know of a model: a tree of parameters and a forward.
 *
 *     d9d_model *m;
 *     D9D_TRY(provider->create(config, D9D_WHOLE_MODEL, &options, &m));
 *     D9D_TRY(d9d_module_bind(m->module));
 *     D9D_TRY(d9d_module_materialise(m->module, dev, true));
 *     D9D_TRY(d9d_module_reset(m->module, seed));
 *     D9D_TRY(m->ops->forward(m, tape, &in, &out));     // out.loss [B*S]
 */
#ifndef D9D_MODEL_MODEL_H
#define D9D_MODEL_MODEL_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/model/head.h"
#include "d9d/nn/block.h"
#include "d9d/nn/parallel_groups.h"
#include "d9d/nn/param_unit.h"
#include "d9d/pipe/stage.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every layer keeps of the tokens that were seen: d9d/model/kv_cache.h. */
typedef struct d9d_kv_cache {
    int64_t layers, tokens, seqs;             /* tokens: Z of them, of any rows */
    d9d_tensor (*entry)[D9D_BLOCK_CACHE_MAX]; /* [layers], as ops->cells() lists them */
} d9d_kv_cache;

#define D9D_IGNORE_INDEX (-100) /* a label that does not count */

/* Hears what comes out of the embedding (layer 0) and of layer l (l + 1, counted over all stages),
 * as it goes into the next: [B, S, H], with tp ranks [T/tp, H]. */
typedef struct d9d_hidden_state_hook {
    d9d_status (*call)(void *arg, d9d_tape *t, int64_t layer, d9d_var *x);
    void *arg;
} d9d_hidden_state_hook;

typedef struct d9d_model_in {
    const d9d_tensor *ids;       /* [B, S] int32; first stage */
    d9d_var *hidden;             /* [B, S, H], with tp ranks [T/tp, H]; other stages */
    const d9d_tensor *positions; /* [B, S] int32 */
    const d9d_tensor *labels;    /* [B, S] int32, already shifted; last stage; NULL: no loss */
    const d9d_tensor *segments;  /* as d9d_op_attention() takes them; NULL: rows are whole */
    bool loss_is_root;           /* the sum of all losses is trained on: backward takes no seed, see
                                  * d9d_op_linear_cross_entropy_root() */
    /* Generation, with recording off: B is 1, the keys of `segments` [N, 4] are cells of the cache,
     * those of the T tokens go to cells `at` [T] int32, and what is of rows is in `rows` [N] int32.
     * cache NULL: there is none. */
    const d9d_kv_cache *cache;
    const d9d_tensor *token_slots;
    const d9d_tensor *pick; /* [N] int32: tokens of which logits are wanted; NULL: none */
    const d9d_op_pool_index
        *pool; /* the batch's documents, for tasks that ask for them; NULL: others */
    const d9d_hidden_state_hook *hook; /* NULL, and for models without ops->taps: nobody hears */
    const d9d_tensor *seq_slots;       /* see cache */
} d9d_model_in;

/* Some columns of what a task makes of each document, [N, n]. */
typedef struct d9d_model_columns {
    d9d_var *v;
    int64_t first; /* the first of them */
} d9d_model_columns;

typedef struct d9d_model_out {
    /* As it came in: what the next stage takes; after the final norm on the last. */
    d9d_var *hidden;
    /* [B*S] float32: -log p of each label, 0 where ignored; the same on all tp ranks.  NULL
     * without labels. */
    d9d_var *loss;
    d9d_var *logits; /* [B*S, V], or of `pick` [N, V] float32, or NULL */
    /* int32 on the device, of the rows of a task's logits, where they are not those of positions;
     * read before forward() is called again. */
    const d9d_tensor *labels;
    const d9d_model_columns *values; /* of a task in inference: its rows, from any stage; or NULL */
    size_t n_values;
} d9d_model_out;

typedef enum d9d_model_recompute_mode {
    D9D_RECOMPUTE_OFF,
    D9D_RECOMPUTE_FULL,
    D9D_RECOMPUTE_SELECTIVE
} d9d_model_recompute_mode;

typedef struct d9d_model_opts {
    d9d_dtype dtype;                    /* of parameters and activations */
    d9d_model_recompute_mode recompute; /* FULL: each layer; SELECTIVE: each layer's FFN half */
    d9d_head head;                      /* the task's, with its size */
} d9d_model_opts;

typedef struct d9d_model d9d_model;
typedef struct d9d_model_ops {
    size_t size; /* sizeof(d9d_model_ops) */
    const char *name;
    d9d_status (*forward)(d9d_model *m, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out);
    /* Floating-point operations of forward and backward for one token of a sequence of s:
     * 6 N_mm + 6 L A D s (causal attention counted half; experts count top_k of E; the input
     * embedding not at all).  NULL: 6 for every element of a matrix, the first unit of the first
     * stage left out. */
    double (*flops_per_token)(const d9d_model *m, int64_t s);
    void (*free)(d9d_model *m);
    /* NULL, or: what a layer of this stage, from 0, keeps.  Such a model takes a cache and `pick`.
     */
    void (*cache_spec)(const d9d_model *m, int64_t layer, d9d_block_cache_spec *out);
    bool hooks; /* forward tells in->tap */
} d9d_model_ops;

struct d9d_model {
    const d9d_model_ops *ops;
    d9d_module *module; /* root of the parameters of this stage */
    d9d_stage stage;
    int64_t hidden, vocab, layers; /* layers: of this stage */
    int64_t max_positions;         /* of a row */
    d9d_dtype dtype;               /* of activations */
    d9d_groups groups;  /* what its blocks read; a plan fills it (d9d/parallel/parallel_plan.h) */
    d9d_module **units; /* that forward opens, in its order; one may be opened twice */
    size_t n_units;
    d9d_block_moe **mixtures; /* of this stage, where loads of experts are to be known */
    size_t n_mixtures;
    d9d_module *tied; /* a module that the first and the last stage both have, under one name: its
                       * gradients are summed over the two; NULL: none, or one stage has it */
    struct d9d_model_added *added; /* d9d_model_add_linear() */
};

/* --- for authors of models ------------------------------------------------------------ */

/* `child` is part of the model's root under this name, and a unit, opened after those before; one
 * that is a unit already, again. */
D9D_API D9D_MUST_USE d9d_status d9d_model_add_unit(d9d_model *m, const char *name,
                                                   d9d_module *child);
/* A matrix [out, in] besides the model's own, such as a task's head: a unit of this name, freed
 * with the model.  init_std 0: 0.02. */
D9D_API D9D_MUST_USE d9d_status d9d_model_add_linear(d9d_model *m, const char *name,
                                                     d9d_dtype dtype, double init_std, int64_t in,
                                                     int64_t out);
/* The one of this name; NULL: there is none, as on other stages. */
D9D_API d9d_block_linear *d9d_model_find_linear(const d9d_model *m, const char *name);
/* What goes into a layer: the inputs of its unit, of which each layer's begin with its x, and the
 * same inside it.
 *
 *     d9d_var *v[D9D_MODEL_LAYER_INPUTS];
 *     D9D_TRY(d9d_model_layer_pack(t, in, i, v, &n));       // v[1] and on
 *     D9D_TRY(d9d_param_unit_run(..., v, n, &v[0]));
 *
 * A member of d9d_model_layer_in that came later is at the end. */
enum { D9D_MODEL_LAYER_INPUTS = 5 + D9D_BLOCK_CACHE_MAX };
typedef struct d9d_model_layer_in {
    d9d_var *x;                   /* [B, S, H] */
    const d9d_tensor *positions;  /* [B, S] int32 */
    const d9d_tensor *segments;   /* as d9d_op_attention() takes them; NULL: rows are whole */
    const d9d_block_cache *cache; /* generation: for the layer's block; NULL: there is none */
} d9d_model_layer_in;
D9D_API D9D_MUST_USE d9d_status d9d_model_layer_pack(d9d_tape *t, const d9d_model_in *in,
                                                     int64_t layer,
                                                     d9d_var *v[D9D_MODEL_LAYER_INPUTS], size_t *n);
/* out->cache is `room`, or NULL. */
D9D_API void d9d_model_layer_unpack(d9d_var *const *v, size_t n, d9d_block_cache *room,
                                    d9d_model_layer_in *out);

/* out->hidden, or what a tap hears, as one row for each of the batch's documents: [M, H], M of them
 * on the first of the ranks that share them, as many rows of zeros on the others
 * (d9d/data/loader/pooling.h). Collective: over the tp and cp ranks, as
 * d9d_op_reduce_scatter_rows(). */
D9D_API D9D_MUST_USE d9d_status d9d_model_pool(const d9d_model *m, d9d_tape *t, d9d_var *x,
                                               const d9d_op_pool_index *pool, d9d_var **y);
/* The end of a language model, from out->hidden [B, S, H] under the head as a unit: out->loss of
 * in->labels, and out->logits of in->pick.  Without either nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_model_loss(d9d_block_vocab *head, d9d_tape *t,
                                               const d9d_model_in *in, d9d_model_out *out);

/* ops->flops_per_token(), or what stands for it. */
D9D_API double d9d_model_flops(const d9d_model *m, int64_t s);
D9D_API void d9d_model_free(d9d_model *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_MODEL_H */
