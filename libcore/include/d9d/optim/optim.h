/* optim.h - optimizers: AdamW, Adam, schedule-free AdamW, Lion, Muon, Adafactor and SGD, for
 * float32 and bfloat16 weights.
 *
 *     d9d_optimizer *opt;
 *     D9D_TRY(d9d_optimizer_create(&config, dev, &params, seed, &opt));
 *     ...
 *     D9D_TRY(d9d_optimizer_step(opt, lr, scale));
 *
 * A step multiplies every gradient by *scale, a float32 on the device: the loss weight and the
 * clipping factor in one.  It updates each trainable parameter that has a gradient.  The others
 * keep their state and their step count, as in torch.optim.  Per parameter with gradient g and step
 * count n from 1,
 *
 *   adamw  p -= lr wd p;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *          p -= lr (m / (1-b1^n)) / (sqrt(v / (1-b2^n)) + eps)
 *   adam   g += wd p first, instead of the decay (or the same with decoupled_weight_decay)
 *   lion   p -= lr wd p;  p -= lr sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
 *   muon   m = mom m + (1-mom) g;  u = (1-mom) g + mom m (or m);  o = orthogonalized u
 *          p -= lr wd p;  p -= lr' o
 *   adafactor  V = second moment of g, factored;  u = g / sqrt(V);  p -= lr wd p
 *          p -= lr u / max(1, rms(u) / clip_threshold)
 *   schedule_free_adamw  v = b2 v + (1-b2) g^2;  u = g / (sqrt(v / (1-b2^n)) + eps) + wd y
 *          y += c (z - y) + lr (b1 (1-c) - 1) u;  z -= lr u
 *   sgd    g += wd p;  u = mom u + (1-damp) g (u = g at first);  p -= lr u  (or g + mom u)
 *
 * in float32.  The key weight_update says how a bfloat16 parameter is updated:
 *
 *   master      p is a float32 master weight: the 16 bits that the parameter lacks are stored in
 *               an int16 state "master_residual" (d9d_optim_arrays in d9d/kernels/optim.h)
 *   stochastic  stochastic rounding by Philox keyed by (seed, tensor, element, step), so that all
 *               replicas round alike
 *   nearest     rounded to nearest: an update under half of a weight's last bit is lost
 *
 * Other states are float32, or bfloat16 by the key state_dtype.  States of adam and lion in
 * bfloat16 are rounded stochastically too, except with nearest; those of sgd to nearest.
 * stochastic_adamw is adamw with "stochastic", for bfloat16 parameters only.
 *
 * With state_dtype int8 the states of adam and lion have 8 bits for each element and a bfloat16
 * scale for every 32 of a row: "<parameter>.exp_avg" of int8 and "<parameter>.exp_avg_scale",
 * "exp_avg_sq" of uint8 and "exp_avg_sq_scale" (kernels/common/state_blocks.h).  A row is the last
 * dimension of the whole parameter, and no mesh divides a block, so that all meshes give the same
 * bits.  Vectors, and matrices with rows under 32, keep float32.
 *
 * Parameter groups give some parameters other values of the section, by their names; layer_lr_decay
 * gives layer i of L the rate lr decay^(L-1-i), what is declared before the layers (the embedding)
 * lr decay^L, and what follows them (the norm, the head) lr:
 *
 *     "groups": [{"pattern": ".*norm.*|.*\\.bias", "weight_decay": 0},
 *                {"pattern": "embed\\..*", "lr_scale": 0.1}]
 *
 * Muon (Jordan et al. 2024) is for the matrices of layers, each expert's by itself; AdamW with the
 * keys of "adamw" updates everything else: embeddings, heads, norms, biases, routers.  A group's
 * "kind" says otherwise.  With X = u / |u|, X' being X transposed where it has more rows than
 * columns, and |u| the Frobenius norm, Newton-Schulz does ns_steps times
 *
 *     A = X X';  X = a X + (b A + c A A) X           ns_coefficients a, b, c
 *
 * after which the singular values of o = X are near 1.  A matrix [rows, columns] has the rate
 * lr' = lr sqrt(max(1, rows / columns)) with adjust_lr_fn "original", and 0.2 lr sqrt(max(rows,
 * columns)) with "match_rms_adamw".  Words and defaults are those of torch.optim.Muon.
 *
 * Adafactor (Shazeer and Stern 2018) stores of a matrix's second moment the means R of its rows and
 * C of its columns, one number each; matrices of a stack are factored one by one.  With w =
 * n^beta2_decay,
 *
 *     R += w (mean of g^2 along a row - R);  C += w (mean of g^2 along a column - C)
 *     V = R C / max(mean of R, eps1);  u = g / sqrt(max(V, eps1^2))
 *
 * and V += w (g^2 - V) for a vector.  rms() is the root mean square over the whole parameter.  With
 * scale_parameter lr is multiplied by max(eps2, rms(p)); with relative_step it is at most 1 /
 * sqrt(n). Both are off, as transformers' users have them; torch.optim.Adafactor has both, with
 * eps1 1.2e-7.
 *
 * Schedule-free AdamW (Defazio et al. 2024) trains y, which is what a parameter has, and evaluates
 * the average x of z, where y = b1 x + (1-b1) z.  The lr of step n is lr min(1, n / warmup_steps),
 * which weighs lr^weight_lr_power n^r in x; c is its part of the weights of all steps so far.
 * Formulas, words and defaults are those of facebookresearch/schedule_free.
 *
 * A run may also keep an exponential moving average of the weights, with any other optimizer: see
 * d9d_optimizer_set_ema().
 *
 * State is sharded like its parameter and is saved like a parameter, as "<parameter>.<state>".  A
 * kind of optimizer is a table, d9d_optimizer_kind; the built-in kinds are rows of
 * libcore/optim/registry.c.
 */
#ifndef D9D_OPTIM_OPTIM_H
#define D9D_OPTIM_OPTIM_H

#include "d9d/config/config.h"
#include "d9d/nn/module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The "optimizer" section: {"name": "adamw", "lr": 1e-3, ...}.  A union of the rows' tables;
 * use as D9D_KEY_UNION(S, optimizer, D9D_REQUIRED, d9d_optimizer_tag, d9d_optimizer_choices, ...).
 */
D9D_API extern const char *const d9d_optimizer_tag[];          /* {"name", NULL} */
D9D_API extern const d9d_table *const d9d_optimizer_choices[]; /* NULL-ended */

/* The base learning rate in a bound section; the schedule multiplies it. */
D9D_API double d9d_optimizer_lr(const d9d_union *section);

/* An entry of "groups": values of the parameters that match and that no earlier entry has. */
typedef struct d9d_optimizer_group {
    const char *pattern; /* d9d/config/name_pattern.h; of the parameter's whole name */
    double lr_scale;     /* factor of the learning rate */
    double weight_decay; /* NaN: the section's; so are the next */
    d9d_list betas;      /* empty: the section's */
    double eps;
    int kind; /* -1: as the section says */
} d9d_optimizer_group;
D9D_API extern const d9d_key d9d_optimizer_group_elem;

/* The keys of groups, for the table of a kind whose struct S has d9d_list groups and double
 * layer_lr_decay.  A group's values replace the section's keys of the same names, where the table
 * has them. */
#define D9D_OPTIMIZER_GROUP_KEYS(S)                                                                \
    D9D_KEY_LIST(S, groups, "[]", &d9d_optimizer_group_elem,                                       \
                 "parameters with other values, by the patterns of their names"),                  \
        D9D_KEY_REAL(S, layer_lr_decay, "1", 0, 1,                                                 \
                     "the learning rate of each layer is that of the next one times this",         \
                     .flags = D9D_ABOVE_MIN)

/* --- kinds ---------------------------------------------------------------------------- */

enum { D9D_OPTIMIZER_STATES = 3 };

/* How a bfloat16 parameter is updated: see above. */
typedef enum d9d_optimizer_weight_update {
    D9D_UPDATE_MASTER,
    D9D_UPDATE_STOCHASTIC,
    D9D_UPDATE_NEAREST
} d9d_optimizer_weight_update;

/* One update of one parameter. */
typedef struct d9d_optimizer_update {
    const d9d_device *dev;
    const d9d_param *param;
    /* The kind's arrays, in the order of `states`.  With D9D_UPDATE_MASTER the residual of a
     * bfloat16 parameter follows; for other types it has no data. */
    d9d_tensor *state;
    d9d_tensor *state_scale; /* the scale of each of `states`, where they are in 8 bits */
    d9d_dtype state_dtype;
    const float *scale; /* on the device; NaN: skip the step, change nothing */
    double lr;
    int64_t step; /* from 1 */
    uint64_t seed;
    void *self; /* of the kind's open() */
} d9d_optimizer_update;

typedef struct d9d_optimizer_kind d9d_optimizer_kind;

/* What updates a parameter. */
typedef struct d9d_optimizer_choice {
    const d9d_optimizer_kind *kind;
    const void *config; /* of that kind */
    double lr_scale;    /* factor of the section's learning rate */
} d9d_optimizer_choice;

/* What a kind may use beside the shards of a step. */
typedef struct d9d_optimizer_open_opts {
    d9d_device *dev;
    const d9d_params *params; /* all parameters of the optimizer */
    d9d_comm *group;          /* d9d_optimizer_set_group() */
} d9d_optimizer_open_opts;

/* `config` is the section's struct, whose first member is the base learning rate, a double. */
struct d9d_optimizer_kind {
    size_t size;                                  /* sizeof(d9d_optimizer_kind) */
    const d9d_table *table;                       /* of its configuration section */
    const char *states[D9D_OPTIMIZER_STATES + 1]; /* names; NULL-ended */
    /* How many of `states` this configuration uses.  NULL: all. */
    int (*n_states)(const void *config);
    /* Type of the states of a parameter.  NULL: the parameter's type.  D9D_I8: the first state is
     * int8, the others are uint8, and each has a bfloat16 scale for every D9D_STATE_BLOCK elements
     * of a row, as a state "<state>_scale". */
    d9d_dtype (*state_dtype)(const void *config, const d9d_param *p);
    /* Can this optimizer update the parameter?  NULL: any. */
    d9d_status (*accepts)(const d9d_param *p);
    /* Update the parameter's shard from shard.grad times *scale, and the state. */
    d9d_status (*update)(const void *config, const d9d_optimizer_update *u);
    /* update() for all parameters of a step in one call (multi-tensor apply), or of a group where
     * there are groups.  NULL: one by one. */
    d9d_status (*update_list)(const void *config, const d9d_optimizer_update *u, size_t n);
    bool partial_lists_ok; /* update_list may be called several times a step, each time for a part
                              of the parameters */
    /* How bfloat16 parameters are updated.  With D9D_UPDATE_MASTER each also has a state
     * "master_residual", int16, initially zero.  NULL: unknown. */
    d9d_optimizer_weight_update (*weight_update)(const void *config);
    /* For a kind that leaves some parameters to others: change *out, which is this kind.  The other
     * kind must not choose again.  NULL: this kind updates all parameters. */
    d9d_status (*choose)(const void *config, const d9d_param *p, d9d_optimizer_choice *out);
    /* For a kind whose updates need the shards of other ranks: called when the state has memory.
     * Collective over the group, and so are then the updates.  Both or neither may be NULL. */
    d9d_status (*open)(const d9d_optimizer_open_opts *opts, void **self);
    void (*close)(void *self);
    /* The dimensions along which a state of the parameter has one number for all, a mean for
     * instance: bit d for dimension d, whose size is then 1.  -1: the parameter has no such state.
     * NULL: each state has the parameter's shape. */
    int (*state_reduced)(const void *config, const d9d_param *p, int state);
    /* For a kind that evaluates other weights than it trains: replace the parameter's, and its
     * residual, by those.  Only after a step; *scale is not NaN.  NULL: the same weights. */
    d9d_status (*average)(const void *config, const d9d_optimizer_update *u);
};

/* --- optimizers -------------------------------------------------------------------------- */

typedef struct d9d_optimizer d9d_optimizer;

/* Create an optimizer.  With a device it allocates zeroed state for every trainable parameter. With
 * dev NULL state has shapes and no memory until d9d_optimizer_fill().  `whole` are the parameters
 * of the whole model, of which `params` may be a pipeline stage's; NULL: the same.  `params` and
 * all that it refers to must outlive the optimizer.  ECONFIG: stochastic_adamw for a parameter that
 * is not bfloat16; a group whose pattern matches no trainable parameter of the whole model, or with
 * a key that the optimizer lacks; layer_lr_decay for a model without layers. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_create(const d9d_union *section, d9d_device *dev,
                                                     const d9d_params *params,
                                                     const d9d_params *whole, uint64_t seed,
                                                     d9d_optimizer **out);
/* Can so many ranks of tensor parallelism divide the rows of matrices?  ECONFIG if they divide a
 * block of states in 8 bits. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_check_rowwise(const d9d_optimizer *o, int64_t ranks);
/* True if the kind needs d9d_optimizer_set_group() where several ranks have parts of a parameter.
 */
D9D_API bool d9d_optimizer_needs_group(const d9d_optimizer *o);
/* The ranks that have parts or copies of these parameters, in any order: those of a pipeline stage.
 * Before d9d_optimizer_fill(), which is then collective over the group, and so is each step. */
D9D_API void d9d_optimizer_set_group(d9d_optimizer *o, d9d_comm *group);
/* Keep all state in pinned host memory, which an update streams over the bus: the same bits, for
 * less device memory and more time.  Before it has memory.  d9d_optimizer_fill() is then EOOM, with
 * both numbers, if the host has less than that available. */
D9D_API void d9d_optimizer_set_offload(d9d_optimizer *o);
/* Allocate zeroed state on a device; once. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_fill(d9d_optimizer *o, d9d_device *dev);
D9D_API void d9d_optimizer_free(d9d_optimizer *o);
D9D_API const char *d9d_optimizer_name(const d9d_optimizer *o); /* "adamw" */
/* Bytes of its state on this rank, in the device's memory and the host's; also valid before it is
 * allocated. */
D9D_API uint64_t d9d_optimizer_bytes(const d9d_optimizer *o);
D9D_API uint64_t d9d_optimizer_host_bytes(const d9d_optimizer *o);
/* Of both, the bytes of master-weight residuals. */
D9D_API uint64_t d9d_optimizer_residual_bytes(const d9d_optimizer *o);
/* Append one line for each type of trainable parameter, with the update and its memory: "adamw:
 * bfloat16 weights updated as float32 master weights; bytes a parameter: weights 2, gradients 4,
 * exp_avg 4, exp_avg_sq 4, master_residual 2, in all 16"; and one for each group, with what it has
 * of the whole model.  ENOMEM. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_describe(const d9d_optimizer *o, d9d_buf *out);

/* Order of updates, so that the first units' weights can be prefetched early.  In each step from
 * here on, the parameters of first[0..n) are updated first, list by list, then the others.  When
 * the updates of list i are enqueued, enqueued(arg, i) is called.  No bit of the result depends on
 * the order.  A kind without partial_lists_ok updates all at once, and the calls follow.
 * Parameters that are not the optimizer's are ignored.  Once, before the first step. */
typedef d9d_status d9d_optimizer_enqueued_fn(void *arg, size_t i);
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_set_order(d9d_optimizer *o,
                                                        const d9d_params *const *first, size_t n,
                                                        d9d_optimizer_enqueued_fn *enqueued,
                                                        void *arg);
/* One update at learning rate `lr`; `scale` is one float32 on the device. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_step(d9d_optimizer *o, double lr,
                                                   const d9d_tensor *scale);

/* An update of some parameters alone, whose gradients are final before others' are: those of a
 * layer that backward has left.  Each at most once between two steps; d9d_optimizer_step() then
 * updates those that still have a gradient.  No bit depends on the division.  Parameters that are
 * not the optimizer's are ignored. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_step_some(d9d_optimizer *o, const d9d_params *some,
                                                        double lr, const d9d_tensor *scale);
/* ECONFIG for a kind that updates all its parameters in one call. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_check_step_some(const d9d_optimizer *o);

/* --- averages of weights ----------------------------------------------------------------- */

/* An exponential moving average of each trainable parameter: the weights as of step start_step, and
 * every every_steps steps after it
 *
 *     ema = decay ema + (1 - decay) p
 *
 * of type float32, or bfloat16, which is rounded stochastically.  It is a state "<parameter>.ema",
 * sharded and saved like others.  Until start_step it is the weights as of a multiple of
 * every_steps, from which a run goes on whose start_step is earlier now. */
typedef struct d9d_ema_opts {
    double decay;
    int64_t every_steps, start_step;
    d9d_dtype dtype;
} d9d_ema_opts;

/* Keep such an average.  Before the optimizer has memory; once.  ECONFIG for a kind that averages
 * itself. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_set_ema(d9d_optimizer *o, const d9d_ema_opts *opts);

/* Are there averages, of an EMA or of a kind? */
D9D_API bool d9d_optimizer_has_averages(const d9d_optimizer *o);
/* Put the averages into the place of the weights, and the weights back, to the bit.  They need a
 * copy of the shards meanwhile.  A parameter without a step, or before start_step, keeps its
 * weights.  Unsharded copies of the weights are stale after either call. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_use_averages(d9d_optimizer *o);
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_use_weights(d9d_optimizer *o);

/* What a checkpoint must hold: state arrays, with the parameter whose sharding they have, and the
 * step counts, one int64 for each of `params` in order (0 for frozen ones). */
typedef struct d9d_optimizer_state {
    const char *name;       /* "model.norm.weight.exp_avg"; borrowed */
    const d9d_param *param; /* with the state's shapes, where the kind has state_reduced() */
    d9d_tensor *tensor;
    bool residual; /* of a master weight; zero if a checkpoint lacks it */
} d9d_optimizer_state;
D9D_API size_t d9d_optimizer_state_count(const d9d_optimizer *o);
D9D_API d9d_optimizer_state d9d_optimizer_state_at(d9d_optimizer *o, size_t i);
D9D_API int64_t *d9d_optimizer_steps(d9d_optimizer *o, size_t *n);

/* --- gradient norm and clipping ----------------------------------------------------- */

/* Finalising the gradients of a step: gradient norm, clipping factor and loss, without a
 * device-to-host synchronisation:
 *
 *     D9D_TRY(d9d_grad_finalize_init(dev, n_micro, 0, world, &finalize));
 *     ... backward of every micro-batch; it adds its losses to finalize.loss ...
 *     D9D_TRY(d9d_grad_finalize_enqueue(&finalize, &params,
 *                 &(d9d_grad_finalize_local){.targets = targets}, max_norm));
 *     D9D_TRY(d9d_optimizer_step(opt, lr, &finalize.scale));
 *     D9D_TRY(d9d_readback_enqueue(back, d9d_tensor_data(&finalize.report)));
 *     // later: a d9d_grad_finalize_report
 *
 * One all-reduce over the world, on the device, sums losses, targets and squares.  The norm is the
 * 2-norm of all gradients divided by the number of targets.  It is summed in float64, in the order
 * of `params` and then of the ranks; parameters without a gradient count as zero.  Gradients may
 * still be in flight (d9d/tape/param.h): the squares of the others are summed meanwhile.
 *
 * A step whose loss or norm is not finite updates nothing, on any rank, and neither does any step
 * after it: see grad_scale in d9d/kernels/optim.h. */
typedef struct d9d_grad_finalize_report {
    double targets, squares, flags, saved; /* sums over ranks */
    double loss, norm;                     /* sum of all losses; norm of the mean gradient */
} d9d_grad_finalize_report;

/* This rank's contribution to a step. */
typedef struct d9d_grad_finalize_local {
    double targets;      /* targets that no other rank counts */
    bool is_replica;     /* another rank has the same losses; ignore those here */
    double flag, saved;  /* any numbers; summed over ranks */
    const double *extra; /* [n_extra] */
} d9d_grad_finalize_local;

typedef struct d9d_grad_finalize {
    d9d_tensor
        loss; /* [micro-batches] float64; d9d_grad_finalize_enqueue() sums it over ranks in place */
    d9d_tensor
        extra; /* float64: sums of d9d_grad_finalize_local.extra, directly before the report */
    d9d_tensor report; /* float64: a d9d_grad_finalize_report */
    d9d_tensor scale;  /* float32: what the optimizer multiplies gradients by, clipping included */
    d9d_tensor all;    /* these, contiguous */
    d9d_comm *world;   /* NULL: a single rank */
    struct d9di_grad_squares *squares; /* of d9d_grad_finalize_set_released(); or NULL */
} d9d_grad_finalize;
D9D_API D9D_MUST_USE d9d_status d9d_grad_finalize_init(d9d_device *dev, int64_t micro_batches,
                                                       int64_t n_extra, d9d_comm *world,
                                                       d9d_grad_finalize *out);
D9D_API void d9d_grad_finalize_release(d9d_grad_finalize *e); /* zeroes it */
/* Collective: over the world. */
D9D_API D9D_MUST_USE d9d_status d9d_grad_finalize_enqueue(d9d_grad_finalize *e,
                                                          const d9d_params *params,
                                                          const d9d_grad_finalize_local *local,
                                                          double max_norm);

/* Gradients that are released within backward, as d9d/parallel/fsdp.h does: their updates do not
 * wait for the norm.
 *
 *     D9D_TRY(d9d_grad_finalize_set_released(&finalize, &params));    // once
 *     ... forward of all micro-batches; it adds its losses to finalize.loss ...
 *     D9D_TRY(d9d_grad_finalize_begin(&finalize, step, &local));
 *     ... backward; whenever some gradients are final:
 *         D9D_TRY(d9d_grad_finalize_add(&finalize, &some));
 *         D9D_TRY(d9d_optimizer_step_some(opt, &some, lr, &finalize.scale));
 *     D9D_TRY(d9d_grad_finalize_enqueue(&finalize, &params, &local, NAN));
 *
 * begin() sums losses and targets over the world, and makes `scale` 1 / targets.  From a gradient
 * that is not finite on, this rank updates nothing, neither in this step nor in any after it.  The
 * report has the norm that a step without release has, to the bit.  max_norm cannot be kept. */
D9D_API D9D_MUST_USE d9d_status d9d_grad_finalize_set_released(d9d_grad_finalize *e,
                                                               const d9d_params *params);
/* Of step `step`, counted from any number; of `local` it reads targets and is_replica.  Collective:
 * over the world. */
D9D_API D9D_MUST_USE d9d_status d9d_grad_finalize_begin(d9d_grad_finalize *e, int64_t step,
                                                        const d9d_grad_finalize_local *local);
/* The squares of some gradients, each once a step. */
D9D_API D9D_MUST_USE d9d_status d9d_grad_finalize_add(d9d_grad_finalize *e, const d9d_params *some);
/* The last parameter, which backward reaches first, whose released gradient of the newest step or
 * the one before it was not finite on this rank; NULL if each was. */
D9D_API D9D_MUST_USE d9d_status d9d_grad_finalize_find_nonfinite(const d9d_grad_finalize *e,
                                                                 int64_t step,
                                                                 const d9d_param **out);

/* The first parameter whose gradient (or whose data) has a NaN or an infinity, and its index there;
 * NULL if none has. */
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_find_nonfinite_grad(d9d_device *dev,
                                                                  const d9d_params *params,
                                                                  const d9d_param **out,
                                                                  int64_t *index);
D9D_API D9D_MUST_USE d9d_status d9d_optimizer_find_nonfinite_param(d9d_device *dev,
                                                                   const d9d_params *params,
                                                                   const d9d_param **out,
                                                                   int64_t *index);

#ifdef __cplusplus
}
#endif
#endif /* D9D_OPTIM_OPTIM_H */
