/* mapper.h - a checkpoint mapping as a graph that is declared before it is run.
 *
 * A mapper is a set of groups.  A group is the smallest unit of work: it takes
 * whole tensors by name, applies a short list of operations, and gives whole
 * tensors by name.
 *
 *     mlp.experts.0.up_proj.weight [I,H] --.
 *     mlp.experts.1.up_proj.weight [I,H] --+-- stack(0) -- transpose(1,2) -->
 *     ...                                --'     mlp.grouped_experts.up_proj.weight [E,H,I]
 *
 * Three steps, in this order:
 *   declare   leaves and composers build the groups; names that collide are errors
 *   plan      the groups meet a source (names, dtypes, shapes): every missing,
 *             unused or mis-shaped tensor is listed and EMISMATCH, before any
 *             tensor byte is read; shapes of all outputs are known
 *   run       group by group, in the order of the source's bytes, with memory
 *             bounded by the largest group times the jobs
 * Iteration order is the order of declaration, everywhere.
 */
#ifndef D9D_CKPT_MAPPER_H
#define D9D_CKPT_MAPPER_H

#include "d9d/base/log.h"
#include "d9d/ckpt/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_mapper d9d_mapper;

/* --- leaves: spec 10.2 --------------------------------------------------- */

D9D_API D9D_MUST_USE d9d_status d9d_map_identity(const char *name, d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_rename(const char *from, const char *to, d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_transpose(const char *name, int d0, int d1,
                                                  d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_stack(const char *const *from, size_t n, const char *to,
                                              int dim, d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_unstack(const char *from, const char *const *to, size_t n,
                                                int dim, d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_concat(const char *const *from, size_t n, const char *to,
                                               int dim, d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_chunk(const char *from, const char *const *to, size_t n,
                                              int dim, d9d_mapper **out);
D9D_API D9D_MUST_USE d9d_status d9d_map_cast(const char *name, d9d_dtype to, d9d_mapper **out);
/* Consume and give nothing: the explicit way to leave a tensor behind. */
D9D_API D9D_MUST_USE d9d_status d9d_map_drop(const char *name, d9d_mapper **out);
/* Copy under a second name too (tied weights written out). */
D9D_API D9D_MUST_USE d9d_status d9d_map_duplicate(const char *from, const char *const *to, size_t n,
                                                  d9d_mapper **out);

/* --- composers: spec 10.3; they take their parts over, also on failure ---- */

/* Side by side.  An input taken twice or an output given twice is ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_map_parallel(d9d_mapper **parts, size_t n, d9d_mapper **out);
/* One after another; names that a stage does not know pass through it. */
D9D_API D9D_MUST_USE d9d_status d9d_map_sequential(d9d_mapper **parts, size_t n, d9d_mapper **out);

D9D_API void d9d_mapper_free(d9d_mapper *m);

/* --- sources and plans ----------------------------------------------------- */

/* Where tensors come from: names with dtype and shape, bytes on demand. */
typedef struct d9d_source {
    void *self;
    size_t n;
    const d9d_st_tensor *(*at)(void *self, size_t i); /* offset: order of bytes */
    const char *(*place)(void *self, size_t i);       /* file of tensor i, for sentences */
    d9d_status (*read)(void *self, size_t i, uint64_t at, void *dst, uint64_t n); /* thread-safe */
} d9d_source;

/* Where they go.  `begin` sees every output before the first byte. */
typedef struct d9d_sink {
    void *self;
    d9d_status (*begin)(void *self, const d9d_st_tensor *outputs, size_t n);
    d9d_status (*write)(void *self, const char *name, uint64_t at, const void *src, uint64_t n);
} d9d_sink;

typedef struct d9d_map_plan d9d_map_plan;

typedef struct d9d_plan_options {
    d9d_dtype cast_to;  /* every floating output; D9D_DTYPE_COUNT: as it is */
    int allow_unused;   /* source tensors that no group takes are left behind silently */
    const char *expect; /* name for the target side in sentences, such as "qwen3_moe" */
} d9d_plan_options;

/* Bind mapper and source; the mapper is borrowed until the plan is freed. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_create(const d9d_mapper *m, const d9d_source *src,
                                                const d9d_plan_options *opt, d9d_map_plan **out);
D9D_API void d9d_plan_free(d9d_map_plan *p);
D9D_API size_t d9d_plan_output_count(const d9d_map_plan *p);
D9D_API const d9d_st_tensor *d9d_plan_output(const d9d_map_plan *p, size_t i);
D9D_API uint64_t d9d_plan_peak_bytes(const d9d_map_plan *p, int jobs); /* bound of run's memory */
/* As text, "json" or "dot": groups, operations, bytes, provenance. */
D9D_API D9D_MUST_USE d9d_status d9d_plan_print(const d9d_map_plan *p, const char *format,
                                               d9d_buf *out);
D9D_API D9D_MUST_USE d9d_status d9d_plan_run(const d9d_map_plan *p, const d9d_sink *sink, int jobs,
                                             const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_MAPPER_H */
