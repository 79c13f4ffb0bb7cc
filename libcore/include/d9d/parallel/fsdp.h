/* fsdp.h - fully sharded data parallelism (FSDP): sharded parameters, unsharded while a layer needs
 * them; gradients reduce-scattered.
 *
 *     D9D_TRY(d9d_fsdp_create(model, dev, &opts, &s));
 *     D9D_TRY(d9d_module_materialise(model->module, dev, true));
 *     each step:
 *         each micro-batch:
 *             d9d_fsdp_pre_forward(s, true, true);
 *             forward
 *             d9d_fsdp_pre_backward(s, it_is_the_last);
 *             backward
 *         D9D_TRY(d9d_fsdp_post_backward(s));    // the last reductions are enqueued
 *         ... read shard.grad, after d9d_param_wait_grad() for each ...
 *         D9D_TRY(d9d_fsdp_wait_grads(s));       // shard.grad of all is the sum over ranks
 *         ... update the unit that forward needs first ...
 *         D9D_TRY(d9d_fsdp_prefetch(s, 0));      // its weights, for the next step
 *         ... update the others ...
 *
 * FSDP owns the model's units (d9d/nn/param_unit.h).  A unit's parameters are unsharded by an
 * all-gather for forward and again for backward, overlapped with the previous units' computation.
 * They are resharded after each pass, after backward only, or after the step (`reshard`). Gradients
 * of sharded parameters are reduce-scattered when backward leaves the unit: after every
 * micro-batch, or with `reduce_once` after the last one; until then the full gradients are
 * accumulated. Gradients of replicated parameters are all-reduced in buckets, as soon as backward
 * has finished the last gradient of a bucket.
 *
 *     backward of      | unit 4   | unit 3   | unit 2   | unit 1  |
 *     concurrently       unshard 3  unshard 2  unshard 1
 *                                   reduce 4   reduce 3   reduce 2   reduce 1
 *
 * At the edges of a step no computation of the model is left to overlap with.  The gradient norm
 * starts with the gradients that are ready, those of the last units, and waits for each reduction
 * before it reads it.  The first units' weights are prefetched as soon as their update is enqueued,
 * overlapped with the updates of the others:
 *
 *     norm of          4 | 3 | 2 | 1 |   update of  1 | 2 | 3, 4 |     forward of  1 | 2 ...
 *     concurrently     reduce 2 reduce 1                unshard 1  unshard 2
 *
 * The next forward uses prefetched weights, whichever it is.  If the shards change otherwise, or no
 * forward comes, they are dropped.
 *
 * GPUs of one host unshard by reading peer memory (d9d/comm/comm.h).  Between d9d_fsdp_wait_grads()
 * and the next forward the shards may change, except those that were prefetched.
 *
 * On the CPU all of this runs in order.  If nothing is sharded and nothing is reduced, create
 * returns NULL, which every call accepts.
 */
#ifndef D9D_PARALLEL_FSDP_H
#define D9D_PARALLEL_FSDP_H

#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How long parameters stay unsharded.  All-gathers of a unit in a step of n micro-batches: 2 n, n,
 * 1. */
typedef enum d9d_fsdp_reshard_policy {
    D9D_RESHARD_AFTER_FORWARD,  /* ZeRO-3: unsharded again for backward */
    D9D_RESHARD_AFTER_BACKWARD, /* from forward to backward */
    D9D_RESHARD_AFTER_STEP      /* over all micro-batches: ZeRO-2, with `reduce_once` ZeRO-1 */
} d9d_fsdp_reshard_policy;

typedef struct d9d_fsdp_opts {
    bool with_grads;
    bool reduce_once;
    d9d_fsdp_reshard_policy reshard;
    int prefetch; /* units that are unsharded ahead of the one that computes; 0: none */
    uint64_t bucket_bytes;
    /* In which gradients travel (FSDP2's reduce_dtype).  D9D_BF16: those of float32 are rounded
     * once, and still summed in float32 and in rank order.  D9D_F32: as they are accumulated. */
    d9d_dtype reduce_dtype;
    /* Parameters with a recipe of FP8 are gathered in 8 bits: their copies are unsharded, and
     * local.data has no memory (d9d/tape/param.h). */
    bool float8_all_gather;
    /* Gradients have memory from backward until the hook of
     * d9d_fsdp_set_post_accumulate_grad_hook() has returned, a unit's at a time. */
    bool release_grads;
} d9d_fsdp_opts;

typedef struct d9d_fsdp d9d_fsdp;

/* Peak bytes of unsharded units, reached in every step: the largest unit's parameters and
 * gradients, or with `reduce_once` all gradients and with a later `reshard` all parameters.  The
 * shards themselves and prefetched units are not counted.  0 where nothing is sharded.  With
 * `release_grads` the largest unit's other gradients are counted too, shards among them. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_bytes(const d9d_model *m, const d9d_fsdp_opts *opts,
                                               uint64_t *out);

/* Take over model->units.  Their parameters are placed (d9d/parallel/parallel_plan.h) and have no
 * memory yet; this allocates the gradients that are reduced.  EINVAL for a placed parameter that is
 * in no unit.  d9d_fsdp_free() it before the model.  With `release_grads` never NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_create(d9d_model *m, d9d_device *dev,
                                                const d9d_fsdp_opts *opts, d9d_fsdp **out);
/* Between steps: the shards are about to move to other addresses; drops what was prefetched.
 * Collective: over their groups. */
D9D_API void d9d_fsdp_invalidate(d9d_fsdp *s);
/* Call before the model is freed. */
D9D_API void d9d_fsdp_free(d9d_fsdp *s);

/* A forward comes next.  `with_backward`: a backward of it comes too; `backward_follows`: directly
 * after it. */
D9D_API void d9d_fsdp_pre_forward(d9d_fsdp *s, bool with_backward, bool backward_follows);
/* A backward comes next, or its dgrad or wgrad alone.  `last`: the last one of this step that adds
 * to gradients of parameters. */
D9D_API void d9d_fsdp_pre_backward(d9d_fsdp *s, bool last);
/* After the last backward: all reductions are enqueued, and shard.grad is valid after
 * d9d_param_wait_grad().  Collective: over the groups of the parameters. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_post_backward(d9d_fsdp *s);
/* d9d_fsdp_post_backward() if it was not called; then the device's stream waits for all reductions,
 * and until no peer reads this rank's shards: they may change.  Collective: as
 * d9d_fsdp_post_backward(). */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_wait_grads(d9d_fsdp *s);

/* A hook before reductions, as DDP's comm hook: called with this rank's own gradient of a parameter
 * when that is about to be reduced, on the device's stream.  It only reads.  NULL: none. */
typedef d9d_status d9d_fsdp_grad_hook(void *arg, const d9d_param *p, const d9d_tensor *grad);
D9D_API void d9d_fsdp_set_grad_hook(d9d_fsdp *s, d9d_fsdp_grad_hook *hook, void *arg);
/* A hook before the last reductions of a step: called once a step with a unit's parameters, when
 * its backward is done with it on this rank.  It may add to their local gradients.  NULL: none. */
typedef d9d_status d9d_fsdp_unit_hook(void *arg, const d9d_params *unit);
D9D_API void d9d_fsdp_set_unit_hook(d9d_fsdp *s, d9d_fsdp_unit_hook *hook, void *arg);
/* A hook after reductions, as torch's register_post_accumulate_grad_hook(): called once a step with
 * parameters whose shard.grad is final on the device's stream, while backward of earlier units is
 * still to come.  Neither this rank nor any other reads their weights again in this step, so it may
 * update them.  After it the gradients are cleared, and their memory is free: with `release_grads`
 * only.  NULL: they stay until they are cleared. */
typedef d9d_status d9d_fsdp_post_accumulate_grad_hook(void *arg, const d9d_params *p);
D9D_API void d9d_fsdp_set_post_accumulate_grad_hook(d9d_fsdp *s,
                                                    d9d_fsdp_post_accumulate_grad_hook *hook,
                                                    void *arg);

/* Most units that are prefetched at once: as many as forward has unsharded at once, the one that
 * computes and the next. */
enum { D9D_FSDP_PREFETCH_MAX = 2 };
/* The number of units that can be prefetched, and their parameters, in the order of forward. */
D9D_API size_t d9d_fsdp_first_units(const d9d_fsdp *s,
                                    const d9d_params *first[D9D_FSDP_PREFETCH_MAX]);
/* The update of first[i] is enqueued: unshard the unit while the other updates run.  Collective:
 * over the groups of its parameters. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_prefetch(d9d_fsdp *s, size_t i);
/* A step is done, and the shards may change.  What was prefetched since stays. */
D9D_API void d9d_fsdp_forget_scales(d9d_fsdp *s);
/* Drop what was prefetched; the next forward unshards it again. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_reshard(d9d_fsdp *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_FSDP_H */
