/* model.h - a model as training and inference see it: a tree of parameters and a forward.
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
#include "d9d/data/dataset/field.h"
#include "d9d/data/loader/loader.h"
#include "d9d/model/head.h"
#include "d9d/nn/block.h"
#include "d9d/nn/parallel_groups.h"
#include "d9d/nn/param_unit.h"
#include "d9d/pipe/stage.h"
#include "d9d/pipe/stage_tensor.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The KV cache of every layer: d9d/model/kv_cache.h. */
typedef struct d9d_kv_cache {
    int64_t layers, tokens, seqs;             /* slots: tokens Z, of any sequence; seqs R */
    d9d_tensor (*entry)[D9D_BLOCK_CACHE_MAX]; /* [layers], as ops->cache_spec() lists them */
} d9d_kv_cache;

#define D9D_IGNORE_INDEX (-100) /* a label that the loss ignores */

/* Called with the output of the embedding (layer 0) and of layer l (l + 1, counted over all
 * stages), before the next layer takes it: [B, S, H], with tp ranks [T/tp, H]. */
typedef struct d9d_hidden_state_hook {
    d9d_status (*call)(void *arg, d9d_tape *t, int64_t layer, d9d_var *x);
    void *arg;
} d9d_hidden_state_hook;

/* Called with the head of a language model, a unit that is there, and the rows that it multiplies,
 * [T/tp, H]: where losses are computed, after them. */
typedef struct d9d_model_lm_head_hook {
    d9d_status (*call)(void *arg, d9d_block_vocab *head, d9d_var *rows);
    void *arg;
} d9d_model_lm_head_hook;

/* A named tensor of the batch's samples on the device, with the shape of d9d_batch_field of this
 * rank's positions (d9d/data/loader/cp_slice.h). */
typedef struct d9d_model_field {
    const char *name;
    d9d_tensor value;
    d9d_tensor rows; /* ragged: [documents] int32 rows without padding; empty otherwise */
} d9d_model_field;

/* A tensor of the tuple that goes from stage to stage (d9d_model_ops.stage_tensors). */
typedef struct d9d_model_passed {
    const char *name;
    d9d_var *v;
} d9d_model_passed;

typedef struct d9d_model_in {
    const d9d_tensor *ids;       /* [B, S] int32; first stage */
    d9d_var *hidden;             /* [B, S, H], with tp ranks [T/tp, H]; other stages */
    const d9d_tensor *positions; /* [B, S] int32 */
    const d9d_tensor *labels;    /* [B, S] int32, already shifted; last stage; NULL: no loss */
    const d9d_tensor *segments;  /* as in d9d_op_attention(); NULL: one document a sequence */
    bool loss_is_root;           /* the loss is a root: backward takes no seed, see
                                    d9d_op_linear_cross_entropy_root() */
    /* Generation, with recording off: B is 1.  The keys of `segments` [N, 4] are slots of the
     * cache. The T tokens are appended to the slots token_slots [T] int32; entries of sequences are
     * in seq_slots [N] int32.  cache NULL: none. */
    const d9d_kv_cache *cache;
    const d9d_tensor *token_slots;
    const d9d_tensor *pick;            /* [N] int32: tokens whose logits are wanted; NULL: none */
    const d9d_op_pool_index *pool;     /* the batch's documents, for tasks that pool; NULL: none */
    const d9d_hidden_state_hook *hook; /* NULL, or ignored by a model without ops->hooks */
    const d9d_tensor *seq_slots;       /* [N] int32; see cache */
    /* What the task and the model asked for; every stage of a pipeline has them. */
    const d9d_model_field *fields;
    size_t n_fields;
    const struct d9d_model_reference *reference; /* last stage, for a task that has one; NULL: none
                                                  */
    const d9d_op_document_index *documents;      /* for tasks that need them; NULL: none */
    const d9d_tensor *part_targets; /* [parts] float32: targets of each part of the task's loss in
                                       all of the step (d9d_train_task.parts); NULL: not known */
    /* What the stage before has passed on, `hidden` among it; the first stage has none. */
    const d9d_model_passed *passed;
    size_t n_passed;
    const d9d_model_lm_head_hook *lm_head_hook; /* of d9d_model_loss(), or of a task that computes
                                             the losses itself; NULL: none */
    int64_t micro; /* training: number of the micro-batch among those of the rank's step */
} d9d_model_in;

D9D_API D9D_MUST_USE d9d_status d9d_model_call_lm_head_hook(const d9d_model_in *in,
                                                            d9d_block_vocab *head, d9d_var *rows);

/* The field of this name; NULL: nobody asked for it. */
D9D_API const d9d_model_field *d9d_model_find_field(const d9d_model_in *in, const char *name);
/* What the stage before has passed on under this name; NULL: nothing, as on the first stage. */
D9D_API d9d_var *d9d_model_find_passed(const d9d_model_in *in, const char *name);

/* Some columns of a task's result for each document, [N, n]. */
typedef struct d9d_model_columns {
    d9d_var *v;
    int64_t first; /* index of the first of these columns */
} d9d_model_columns;

/* What one of a task's heads has computed, for its records; on one of the ranks that have the same.
 */
typedef struct d9d_model_head_out {
    d9d_var *logits;            /* [R, outputs], or NULL */
    const d9d_tensor *labels;   /* [R] int32, or [R, outputs] float32; NULL: no metric reads them */
    d9d_var *mask;              /* [R, 1]: 1 for rows that count here, else 0 */
    d9d_var *mean_loss, *count; /* over the rows that count, [1]; how many they are, [1, 1] */
} d9d_model_head_out;

typedef struct d9d_model_out {
    /* Of the shape of the input: the next stage's input; on the last stage, after the final norm.
     */
    d9d_var *hidden;
    /* [B*S] float32: -log p of each label, 0 where ignored; equal on all tp ranks.  NULL without
     * labels. */
    d9d_var *loss;
    d9d_var *logits; /* [B*S, V], or [N, V] float32 for `pick`, or NULL */
    /* int32 on the device: labels of the rows of a task's logits, if these are not positions; valid
     * until the next forward() */
    const d9d_tensor *labels;
    const d9d_model_columns *values; /* results of a task in inference, from any stage; or NULL */
    size_t n_values;
    const d9d_model_head_out *heads; /* [n_heads] of a task with several, or NULL */
    size_t n_heads;
    d9d_model_passed passed[D9D_STAGE_TENSORS_MAX]; /* d9d_model_pass() */
    size_t n_passed;
} d9d_model_out;

/* Pass `v` on to the next stage under a declared name; "hidden" is out->hidden and needs no call.
 * The last stage passes nothing on.  `name` is borrowed.  EINVAL for more than
 * D9D_STAGE_TENSORS_MAX. */
D9D_API D9D_MUST_USE d9d_status d9d_model_pass(d9d_model_out *out, const char *name, d9d_var *v);

/* What a frozen second model computed of the same tokens, without gradients. */
typedef struct d9d_model_reference {
    struct d9d_model *model; /* of this stage */
    d9d_model_out out;
} d9d_model_reference;

typedef enum d9d_model_recompute_mode {
    D9D_RECOMPUTE_OFF,
    D9D_RECOMPUTE_FULL,
    D9D_RECOMPUTE_SELECTIVE
} d9d_model_recompute_mode;

typedef struct d9d_model_opts {
    d9d_dtype dtype;                    /* of parameters and activations */
    d9d_model_recompute_mode recompute; /* FULL: each layer; SELECTIVE: each layer's FFN half */
    d9d_head head;                      /* the task's head, with its size */
    bool prefix_mask; /* prefix-LM: the tokens of a prompt see each other (d9d/kernels/segment.h);
                         who calls forward() sets the tape's prefixes */
} d9d_model_opts;

typedef struct d9d_model d9d_model;
typedef struct d9d_model_ops {
    size_t size; /* sizeof(d9d_model_ops) */
    const char *name;
    /* *out comes as zeros.  What it enqueues in generation depends on shapes only: a call may be
     * recorded and replayed with other contents (d9d/device/graph.h). */
    d9d_status (*forward)(d9d_model *m, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out);
    /* FLOP of forward and backward for one token of a sequence of s tokens: 6 N_mm + 6 L A D s.
     * Causal attention counts half, experts count top_k of E, the input embedding does not count,
     * frozen matrices as d9d_model_matrix_flops() says.  NULL: the matrices alone, without those of
     * the first unit of the first stage. */
    double (*flops_per_token)(const d9d_model *m, int64_t s);
    void (*free)(d9d_model *m);
    /* NULL, or the cache entries of a layer of this stage, counted from 0.  A model with cache_spec
     * accepts a cache and `pick`. */
    void (*cache_spec)(const d9d_model *m, int64_t layer, d9d_block_cache_spec *out);
    bool hooks; /* forward calls in->hook */
    /* What enters `stage` of the model's pipeline, 1 or later: *n declarations, which depend on the
     * configuration alone, so that every stage answers alike.  NULL: the hidden states,
     *     {.name = "hidden", .per = D9D_STAGE_PER_HIDDEN, .dtype = m->dtype, .rank = 1,
     *      .shape = {m->hidden}}
     * forward() finds them in in->hidden and by d9d_model_find_passed(), and gives those of the
     * next stage in out->hidden and by d9d_model_pass(). */
    d9d_status (*stage_tensors)(const d9d_model *m, int stage, d9d_stage_spec *out, size_t *n);
    bool offloads; /* forward marks its layers: d9d_tape_offload_since() */
} d9d_model_ops;

struct d9d_model {
    const d9d_model_ops *ops;
    d9d_module *module; /* root of the parameters of this stage */
    d9d_stage stage;
    int64_t hidden, vocab, layers; /* layers: of this stage */
    int64_t max_positions;         /* most positions of a sequence */
    d9d_dtype dtype;               /* of activations */
    d9d_groups groups;             /* process groups that its blocks read; a plan fills them
                                      (d9d/parallel/parallel_plan.h) */
    d9d_module **units;            /* FSDP units in the order of forward; one may occur twice */
    size_t n_units;
    d9d_block_moe **mixtures; /* of this stage, so that expert loads are counted */
    size_t n_mixtures;
    d9d_module *tied; /* a module that the first and the last stage both have, with one name: its
                         gradients are summed over the two; NULL: none, or one stage has it */
    struct d9d_model_added *added; /* d9d_model_add_linear() */
    bool has_experts;              /* some layer, of any stage, has a mixture of experts */
    bool whole_sequences; /* some layer needs whole sequences on a rank: no context parallelism */
    bool bidirectional;   /* some layer has no causal mask: padding needs segments of its own */
    bool masked_lm;       /* its losses are of masked tokens, not of next ones */
    const d9d_field_request *fields; /* [n_fields] named tensors that forward() reads, borrowed */
    size_t n_fields;
    bool dropout; /* something of this stage drops in training: d9d_tape_set_dropout_rng() */
    d9d_block_vocab *lm_head;   /* what its losses and logits are of, a unit; NULL: none here */
    d9d_block_vocab *embedding; /* of the first stage, for a model that takes virtual tokens: its
                                   forward adds d9d_model_find_linear(D9D_MODEL_PROMPT), if there is
                                   one, to what this gives; NULL: none here */
    bool takes_prompt;          /* it does so on its first stage */
    int64_t virtual_tokens;     /* P: ids [vocab, vocab + P) begin each sequence; 0: none do */
};

/* --- for authors of models ------------------------------------------------------------ */

/* Add `child` to the model's root under this name, and as an FSDP unit after those added before.  A
 * child that is a unit already is added to the order again. */
D9D_API D9D_MUST_USE d9d_status d9d_model_add_unit(d9d_model *m, const char *name,
                                                   d9d_module *child);
/* Add a matrix [out, in] to the model, such as a task's head: an FSDP unit of this name, freed with
 * the model.  init_std 0: 0.02. */
D9D_API D9D_MUST_USE d9d_status d9d_model_add_linear(d9d_model *m, const char *name,
                                                     d9d_dtype dtype, double init_std, int64_t in,
                                                     int64_t out);
/* Add a prompt of n virtual tokens, trained (prompt tuning): on the first stage a matrix [n, H]
 * called D9D_MODEL_PROMPT, normal numbers until somebody sets them.  ENOTSUP for a model that takes
 * none. */
#define D9D_MODEL_PROMPT       "prompt_embeddings"
#define D9D_MODEL_PROMPT_PARAM D9D_MODEL_PROMPT ".weight"
D9D_API D9D_MUST_USE d9d_status d9d_model_add_prompt(d9d_model *m, int64_t n);
/* The matrix of this name; NULL: none, as on other stages. */
D9D_API d9d_block_linear *d9d_model_find_linear(const d9d_model *m, const char *name);
/* A bias [out] of the matrix, NAME.bias in its unit, which begins as zeros; and the same again, or
 * NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_model_add_bias(d9d_model *m, const char *name);
D9D_API d9d_param *d9d_model_find_bias(const d9d_model *m, const char *name);
/* The inputs of a layer as the inputs of its unit (pack), and back inside the unit (unpack).  Each
 * layer's inputs begin with its x.
 *
 *     d9d_var *v[D9D_MODEL_LAYER_INPUTS];
 *     D9D_TRY(d9d_model_layer_pack(t, in, i, v, &n));       // v[1] and on
 *     D9D_TRY(d9d_param_unit_run(..., v, n, &v[0]));
 *
 * New members of d9d_model_layer_in are appended at its end. */
enum { D9D_MODEL_LAYER_INPUTS = 5 + D9D_BLOCK_CACHE_MAX };
typedef struct d9d_model_layer_in {
    d9d_var *x;                   /* [B, S, H] */
    const d9d_tensor *positions;  /* [B, S] int32 */
    const d9d_tensor *segments;   /* as in d9d_op_attention(); NULL: one document a sequence */
    const d9d_block_cache *cache; /* generation: the slots of the layer's block; NULL: none */
} d9d_model_layer_in;
D9D_API D9D_MUST_USE d9d_status d9d_model_layer_pack(d9d_tape *t, const d9d_model_in *in,
                                                     int64_t layer,
                                                     d9d_var *v[D9D_MODEL_LAYER_INPUTS], size_t *n);
/* `entries` is storage for the cache: out->cache is `entries`, or NULL without one. */
D9D_API void d9d_model_layer_unpack(d9d_var *const *v, size_t n, d9d_block_cache *entries,
                                    d9d_model_layer_in *out);

/* Pool out->hidden, or the input of a hook, to one row for each of the batch's documents: [M, H].
 * The first of the ranks that share the documents has M rows; the others have M rows of zeros
 * (d9d/data/loader/pooling.h).  Collective: over the tp and cp ranks, as
 * d9d_op_reduce_scatter_rows(). */
D9D_API D9D_MUST_USE d9d_status d9d_model_pool(const d9d_model *m, d9d_tape *t, d9d_var *x,
                                               const d9d_op_pool_index *pool, d9d_var **y);
/* [M, 1] float32: 1 for the documents that have positions and a row here, else 0.  Collective. */
D9D_API D9D_MUST_USE d9d_status d9d_model_pool_mask(const d9d_model *m, d9d_tape *t,
                                                    const d9d_op_pool_index *pool, d9d_var **y);
/* The end of a language model, from out->hidden [B, S, H], with the head as a unit: out->loss if
 * in->labels is set, and out->logits if in->pick is. */
D9D_API D9D_MUST_USE d9d_status d9d_model_loss(d9d_block_vocab *head, d9d_tape *t,
                                               const d9d_model_in *in, d9d_model_out *out);

/* --- what enters a stage ------------------------------------------------------------------- */

#define D9D_STAGE_HIDDEN "hidden" /* the name of the hidden states */

/* ops->stage_tensors(), or its default, checked. */
D9D_API D9D_MUST_USE d9d_status d9d_model_stage_specs(const d9d_model *m, int stage,
                                                      d9d_stage_spec out[D9D_STAGE_TENSORS_MAX],
                                                      size_t *n);
/* A declared tensor of the micro-batch `in`, by its ids and fields and the model's groups.  ECONFIG
 * for a field that the micro-batch does not have. */
D9D_API D9D_MUST_USE d9d_status d9d_model_stage_tensor(const d9d_model *m, const d9d_stage_spec *s,
                                                       const d9d_model_in *in,
                                                       d9d_stage_tensor *out);
/* Sort what a stage has given by n declarations: v[i] is that of specs[i], NULL if it is not there.
 * EMISMATCH, which `where` begins, for a tensor that is not declared. */
D9D_API D9D_MUST_USE d9d_status d9d_model_sort_passed(const d9d_model_out *out,
                                                      const d9d_stage_spec *specs, size_t n,
                                                      const char *where, d9d_var **v);

/* FLOP of a token with a matrix of so many elements: 2 for an element in forward, 2 for the
 * gradient of its input if something `before` it is trained, 2 for its own if it is `trained`. */
D9D_API double d9d_model_matrix_flops(double elements, bool trained, bool before);
/* Is anything below a module trained? */
D9D_API bool d9d_model_is_trained(d9d_module *m);
/* ops->flops_per_token(), or its default, of a whole model.  Adapters count nothing, and their
 * matrices as frozen ones. */
D9D_API double d9d_model_flops(const d9d_model *m, int64_t s);
/* The same of all tokens of a batch: packed documents are sequences of their own, padding is none.
 */
D9D_API double d9d_model_batch_flops(const d9d_model *m, const d9d_batch *b);
D9D_API void d9d_model_free(d9d_model *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_MODEL_H */
