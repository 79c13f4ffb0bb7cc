/* fsdp_fp8.h - one parameter that is gathered in 8 bits (trainer.fp8): shards to the quantised
 * copies that products read, with the bits of quantising after a gather.
 *
 *     shard --amax--> maxima == largest over ranks ==> maxima of the full parameter, once a step
 *     shard, maxima --encode--> e4m3 == all-gather ==> rows; their transpose is cols
 *
 * The full parameter has no memory in its own type.  With a scale for each row, elements of rows
 * and of cols are rounded under other scales: each copy is gathered, in the pass that reads it.
 * With one scale they are the same bytes, which are gathered once.
 */
#ifndef D9DI_PARALLEL_FSDP_FP8_H
#define D9DI_PARALLEL_FSDP_FP8_H

#include "parallel/fsdp_param.h"

/* Does unsharding make the copies of p, instead of its data?  Not where something else reads that:
 * norms for an adapter's magnitudes, or spec.reads_data. */
bool d9di_fsdp_fp8_is_used(const d9d_param *p, bool float8_all_gather);

/* Largest magnitudes over all ranks, of several parameters one after the other: they say the scales
 * of the full parameters. */
typedef struct d9di_fsdp_fp8_maxima {
    d9d_tensor data; /* [n] int32, allocated when they are first found */
    int64_t n;
    bool is_current; /* the shards have not changed since */
} d9di_fsdp_fp8_maxima;
/* Elements of one parameter's. */
int64_t d9di_fsdp_fp8_maxima_count(const d9d_param *p);
/* Find those of n parameters that are sharded over the same ranks, on their group's stream; only
 * parameters that are gathered in 8 bits have some.  Nothing to do if they are current.
 * Collective: over the group. */
d9d_status d9di_fsdp_fp8_maxima_find(d9di_fsdp_fp8_maxima *a, d9di_fsdp_param *t,
                                     d9d_param *const *p, size_t n, d9d_device *dev);

/* Copies, as bits. */
enum { D9DI_FSDP_FP8_ROWS = 1, D9DI_FSDP_FP8_COLS = 2 };
/* Those that products read in forward, or in backward without recomputation. */
unsigned d9di_fsdp_fp8_wanted(const d9d_param *p, bool forward);
/* Those of `wanted` that p does not have. */
unsigned d9di_fsdp_fp8_missing(const d9d_param *p, unsigned wanted);

/* Unshard: p gets the copies t->fp8.coming from all ranks' shards.  As
 * d9di_fsdp_param_unshard_start() and _finish(). */
d9d_status d9di_fsdp_fp8_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);
d9d_status d9di_fsdp_fp8_finish(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev);

#endif /* D9DI_PARALLEL_FSDP_FP8_H */
