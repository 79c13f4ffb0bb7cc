/* fsdp.h - parameters that ranks keep in parts, whole while they are needed; gradients summed.
 *
 *     D9D_TRY(d9d_fsdp_create(model, dev, &how, &s));
 *     D9D_TRY(d9d_module_materialise(model->module, dev, true));
 *     each step:
 *         each micro-batch:
 *             d9d_fsdp_pre_forward(s, true, true);
 *             forward
 *             d9d_fsdp_pre_backward(s, it_is_the_last);
 *             backward
 *         D9D_TRY(d9d_fsdp_post_backward(s));        // the last sums are queued,
 *         ... what reads own_grad behind d9d_param_wait_grad() ...
 *         D9D_TRY(d9d_fsdp_wait_grads(s));         // own_grad of every parameter is the sum over
 * ranks
 *         ... update the unit that forward needs first ...
 *         D9D_TRY(d9d_fsdp_prefetch(s, 0));    // its weights, for the next step
 *         ... update the others ...
 *
 * The keeper of a model's units (d9d/nn/param_unit.h).  A unit's parameters are gathered when it is
 * opened, for forward and again for backward, while the unit before it computes; they are dropped
 * when it is closed, with `keep` by backward.  Gradients of parts are summed and scattered when
 * backward closes the unit: after every micro-batch, or with `reduce_once` after the last one,
 * until when they are kept whole.  Gradients that several ranks have whole are summed in buckets,
 * as soon as backward has finished the last one of a bucket.
 *
 *     backward of     | unit 4  | unit 3  | unit 2  | unit 1  |
 *     beside it         gather 3  gather 2  gather 1
 *                                 sum 4     sum 3     sum 2     sum 1
 *
 * At the edges of a step nothing of the model computes that could be beside.  The norm begins with
 * the gradients that are there, the last units', and awaits each sum before it reads it; the first
 * units' weights are gathered as soon as their update is queued, beside that of the others:
 *
 *     norm of          4 | 3 | 2 | 1 |   update of  1 | 2 | 3, 4 |     forward of  1 | 2 ...
 *     beside it        sum 2  sum 1                     gather 1   gather 2
 *
 * Weights that are gathered ahead are used by whatever forward comes next; where parts change
 * otherwise, or nothing comes, they are dropped.
 *
 * GPUs of one host gather by reading each other's parts (d9d/comm/comm.h); between
 * d9d_fsdp_wait_grads() and the next forward these may change, but for those gathered ahead.
 *
 * On the CPU everything is done in turn.  Without parts and sums there is nothing to keep: create
 * gives NULL, which every call takes.
 */
#ifndef D9D_PARALLEL_FSDP_H
#define D9D_PARALLEL_FSDP_H

#include "d9d/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_fsdp_opts {
    bool with_grads;
    bool reduce_once;
    bool keep_unsharded; /* whole parameters from forward to backward: half as many are gathered */
    uint64_t bucket_bytes;
} d9d_fsdp_opts;

typedef struct d9d_fsdp d9d_fsdp;

/* Bytes that units have beside what is kept, at least once in every step: the largest unit's
 * parameters and gradients, or with `reduce_once` all gradients and with `keep` all parameters; 0
 * where all is whole. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_bytes(const d9d_model *m, const d9d_fsdp_opts *how,
                                               uint64_t *out);

/* Keep model->units, whose parameters are placed and have no memory yet; takes that of gradients
 * which are summed.  EINVAL for a placed parameter that is in no unit. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_create(d9d_model *m, d9d_device *dev,
                                                const d9d_fsdp_opts *how, d9d_fsdp **out);
/* Between steps: parameters that are kept go to other places; drops what was gathered ahead.
 * Collective: over their groups. */
D9D_API void d9d_fsdp_invalidate(d9d_fsdp *s);
/* While the model stands. */
D9D_API void d9d_fsdp_free(d9d_fsdp *s);

/* A forward comes next; `learns`: its backward too; `back_at_once`: and right behind it. */
D9D_API void d9d_fsdp_pre_forward(d9d_fsdp *s, bool learns, bool back_at_once);
/* A backward comes next, or one half of one; `last`: of the gradients of parameters in this step.
 */
D9D_API void d9d_fsdp_pre_backward(d9d_fsdp *s, bool last);
/* Behind the last backward: all sums are queued, and own_grad is there behind
 * d9d_param_wait_grad(). Collective: over the groups of the parameters. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_post_backward(d9d_fsdp *s);
/* The same, if it was not called, and the device's stream goes on when all sums are there and
 * nobody reads this rank's parts any more: they may change. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_wait_grads(d9d_fsdp *s);

/* So many units are gathered ahead at most: as many as forward has whole at once, the one that
 * computes and the next. */
enum { D9D_FSDP_PREFETCH_MAX = 2 };
/* How many there are, and their parameters, in the order of forward. */
D9D_API size_t d9d_fsdp_first_units(const d9d_fsdp *s,
                                    const d9d_params *first[D9D_FSDP_PREFETCH_MAX]);
/* The update of first[i] is queued: gather the unit beside what follows.  Collective: over the
 * groups of its parameters. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_prefetch(d9d_fsdp *s, size_t i);
/* Let go of what was gathered ahead; a forward gathers it again. */
D9D_API D9D_MUST_USE d9d_status d9d_fsdp_reshard(d9d_fsdp *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PARALLEL_FSDP_H */
