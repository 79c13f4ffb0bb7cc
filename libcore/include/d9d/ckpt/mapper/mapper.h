/* mapper.h - a checkpoint mapping (state dict conversion) as a graph that is declared before it is
 * run.
 *
 * A mapper is a set of steps between named tensors.  Connected steps form a group, the smallest
 * unit of the mapping:
 *
 *     mlp.experts.0.up_proj.weight [I,H] --.
 *     mlp.experts.1.up_proj.weight [I,H] --+-- stack(0) -- transpose(1,2) -->
 *     ...                                --'     mlp.grouped_experts.up_proj.weight [E,H,I]
 *
 * Three phases, in this order:
 *   declare   steps are added side by side, whole mappers one after another; names that
 *             collide are errors
 *   plan      the graph meets a source (names, dtypes, shapes): every missing, unused or
 *             mis-shaped tensor is listed and EMISMATCH, before any tensor byte is read;
 *             the shape of every output is known
 *   run       a sink pulls the bytes of the outputs, span by span, from as many threads as
 *             it has
 * Everything is in the order of declaration, whatever the number of threads.
 *
 * Only cast computes on elements.  Planning therefore turns each output into boxes of source
 * tensors ("matrix 3 of this output is that tensor transposed"), however long the chain of
 * operations.  Any span of any output can then be read by itself, and costs only the source bytes
 * that it needs.  What is contiguous on both sides is read directly to its destination; the rest is
 * copied in bands of 1 MiB.  So memory is what the sink asks for at a time, not a group or a
 * tensor.
 */
#ifndef D9D_CKPT_MAPPER_MAPPER_H
#define D9D_CKPT_MAPPER_MAPPER_H

#include <limits.h>

#include "d9d/base/hash.h"
#include "d9d/base/log.h"
#include "d9d/ckpt/safetensors/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- declaring ------------------------------------------------ *
 *
 *     D9D_TRY(d9d_mapper_create(&m));
 *     D9D_TRY(d9d_mapper_rename(m, "wte.weight", "model.embed_tokens.weight"));
 *     D9D_TRY(d9d_mapper_stack(m, experts, 8, "up", 0));
 *     D9D_TRY(d9d_mapper_create(&next));
 *     D9D_TRY(d9d_mapper_transpose(next, "up", 1, 2));
 *     D9D_TRY(d9d_mapper_compose(m, next));             // up = transpose(stack(experts))
 *
 * Names are copied.  Each call adds one step in parallel with the existing ones.  ECONFIG names a
 * tensor that two steps take as input or two steps produce.  Dimensions count from 0, or from the
 * end when negative.  After a failure a mapper may only be freed. */
typedef struct d9d_mapper d9d_mapper;

D9D_API D9D_MUST_USE d9d_status d9d_mapper_create(d9d_mapper **out);
D9D_API void d9d_mapper_free(d9d_mapper *m);

D9D_API D9D_MUST_USE d9d_status d9d_mapper_identity(d9d_mapper *m, const char *name);
D9D_API D9D_MUST_USE d9d_status d9d_mapper_rename(d9d_mapper *m, const char *from, const char *to);
/* Swaps two dimensions. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_transpose(d9d_mapper *m, const char *name, int d0,
                                                     int d1);
/* Stacks n tensors of one shape along a new dimension `dim` of size n. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_stack(d9d_mapper *m, const char *const *from, size_t n,
                                                 const char *to, int dim);
/* The inverse of stack; dimension `dim` must have size n. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_unstack(d9d_mapper *m, const char *from,
                                                   const char *const *to, size_t n, int dim);
/* Concatenates along an existing dimension; the inputs agree in all others. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_concat(d9d_mapper *m, const char *const *from, size_t n,
                                                  const char *to, int dim);
/* parent.name becomes name, for n names.  Each is a group of its own. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_select(d9d_mapper *m, const char *parent,
                                                  const char *const *names, size_t n);
/* Divides a dimension into n parts of ceil(size / n); the last one may be shorter, none may be
 * empty (torch.chunk). */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_chunk(d9d_mapper *m, const char *from,
                                                 const char *const *to, size_t n, int dim);
/* Divides a dimension into n parts of the given sizes, whose sum must be the dimension's size: the
 * inverse of an unequal concat. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_split(d9d_mapper *m, const char *from,
                                                 const char *const *to, const int64_t *sizes,
                                                 size_t n, int dim);
/* Replaces dimension `dim` by n dimensions of these sizes, whose product must be its size
 * (torch.unflatten).  One of the sizes may be -1: what remains. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_unflatten(d9d_mapper *m, const char *name, int dim,
                                                     const int64_t *sizes, size_t n);
/* Merges dimensions start_dim to end_dim, both included, into one (torch.flatten).  With unflatten
 * and split it takes fused tensors apart:
 *
 *     GPT-NeoX's query_key_value [A*3*D,H]   unflatten(0, {A,3,D}), split along 1, flatten(0, 2)
 *     GPT-OSS's gate_up_proj [E,H,2*I]       unflatten(2, {I,2}), split along 2 + 1, flatten(2, 3)
 */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_flatten(d9d_mapper *m, const char *name, int start_dim,
                                                   int end_dim);
/* Removes a dimension of size 1, or with D9D_SQUEEZE_ALL all of them; inserts one. */
#define D9D_SQUEEZE_ALL INT_MIN
D9D_API D9D_MUST_USE d9d_status d9d_mapper_squeeze(d9d_mapper *m, const char *name, int dim);
D9D_API D9D_MUST_USE d9d_status d9d_mapper_unsqueeze(d9d_mapper *m, const char *name, int dim);
/* Casts any floating type to float32, bfloat16, float16 or float64, rounded to nearest even. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_cast(d9d_mapper *m, const char *name, d9d_dtype to);
/* Takes a tensor and produces nothing: the explicit way to leave a tensor out. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_drop(d9d_mapper *m, const char *name);
/* The same bytes under n names (tied weights written out). */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_duplicate(d9d_mapper *m, const char *from,
                                                     const char *const *to, size_t n);

/* How a tensor is distributed over a mesh: one placement for each mesh dimension, in their order.
 * With `shard` set, coordinate i of `mesh_size` holds shard i of the tensor's dimension `dim`: the
 * elements [min(i*c, s), min((i+1)*c, s)) with c = ceil(s / mesh_size).  This is DTensor's rule;
 * the last shards may be shorter or empty.  Without `shard` every coordinate holds a replica.  A
 * later mesh dimension divides what the earlier ones left. */
typedef struct d9d_mapper_placement {
    int64_t mesh_size; /* size of the mesh in this dimension */
    bool shard;
    int dim; /* of the tensor */
} d9d_mapper_placement;
enum { D9D_MAX_MESH = 8 };

/* The shard of a global tensor at mesh coordinate `at` [n]. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_distribute(d9d_mapper *m, const char *name,
                                                      const d9d_mapper_placement *mesh,
                                                      const int64_t *at, int n);
/* The global tensor from the shards of all coordinates, which `from` names in row-major order (the
 * last coordinate fastest).  Of replicas the one at coordinate 0 is read; all must have the right
 * shape. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_gather(d9d_mapper *m, const char *const *from,
                                                  size_t n_from, const char *to,
                                                  const d9d_mapper_placement *mesh, int n);

/* Sets the shape that an input must have.  ENOTFOUND unless `input` is an input. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_expect(d9d_mapper *m, const char *input, int ndim,
                                                  const int64_t *shape);

/* --- composing; the call takes ownership of `part`, also on failure ----------- */

/* Parallel composition: adds every step of `part`, with prefixes before its inputs and outputs.
 */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_union(d9d_mapper *m, d9d_mapper *part,
                                                 const char *from_prefix, const char *to_prefix);
/* Sequential composition: m becomes m followed by `part`.  A name that one side does not mention
 * passes through it. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_compose(d9d_mapper *m, d9d_mapper *part);
/* Reduces m to the share of worker `current` of `total`.  Groups are sorted in byte order of the
 * least of their input names; group i stays if i % total == current.  Inputs of other groups are no
 * longer inputs of m. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_shard(d9d_mapper *m, uint64_t total, uint64_t current);
/* Adds the identity of every output of `of`: a mapper that writes what `of` reads. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_identities(d9d_mapper *m, const d9d_mapper *of);
/* True if m has no step.  Composing with an empty mapper changes nothing. */
D9D_API bool d9d_mapper_is_empty(const d9d_mapper *m);

/* Names of all inputs or outputs, in order of declaration; borrowed. */
D9D_API size_t d9d_mapper_input_count(const d9d_mapper *m);
D9D_API const char *d9d_mapper_input(const d9d_mapper *m, size_t i);
D9D_API size_t d9d_mapper_output_count(const d9d_mapper *m);
D9D_API const char *d9d_mapper_output(const d9d_mapper *m, size_t i);

/* --- sources and sinks ------------------------------------------------------ */

/* Source of tensors: names with dtype and shape, bytes on demand. */
typedef struct d9d_tensor_source {
    void *self;
    size_t n;
    const d9d_safetensors_tensor *(*at)(void *self, size_t i);
    const char *(*path)(void *self, size_t i); /* file of tensor i, for messages; "": none */
    /* Reads n bytes at byte `at` of tensor i.  Thread-safe. */
    d9d_status (*read)(void *self, size_t i, uint64_t at, void *dst, uint64_t n);
    /* Hint that these bytes will be read soon; may be NULL. */
    void (*prefetch)(void *self, size_t i, uint64_t at, uint64_t n);
    /* Hashes everything that decides the tensors' bytes.  With an equal fingerprint and an equal
     * plan the outputs are equal, so an interrupted run can be resumed.  May be NULL. */
    void (*fingerprint)(void *self, d9d_hasher *h);
    /* Sets *out to whether a model that does not have tensor i loses nothing.  NULL: none is so. */
    d9d_status (*is_spare)(void *self, size_t i, bool *out);
} d9d_tensor_source;

/* Reads bytes of the outputs on demand.  A run lends one to the sink for each thread. */
typedef struct d9d_map_reader d9d_map_reader;

/* Destination of the outputs. begin() sees every output before the first byte and sets the number
 * of work items and the total bytes. fill() writes one whole work item, from any thread.  Items
 * start in their order.
 *
 *     static d9d_status fill(void *self, size_t item, d9d_map_reader *reader)   // one item per
 * output
 *     {
 *         struct memory *m = self;
 *
 *         D9D_TRY(d9d_map_read(reader, item, 0, m->data[item], m->bytes[item]));
 *         d9d_map_reader_add_progress(reader, m->bytes[item]);
 *         return D9D_OK;
 *     } */
typedef struct d9d_tensor_sink {
    void *self;
    d9d_status (*begin)(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                        size_t *n_items, uint64_t *bytes);
    d9d_status (*fill)(void *self, size_t item, d9d_map_reader *reader);
} d9d_tensor_sink;

/* Reads n bytes at byte `at` of output i, whole elements, into `dst`. */
D9D_API D9D_MUST_USE d9d_status d9d_map_read(d9d_map_reader *m, size_t i, uint64_t at, void *dst,
                                             uint64_t n);
/* Reads the box [start, start + size) of output i, dense, into `dst`. */
D9D_API D9D_MUST_USE d9d_status d9d_map_read_slice(d9d_map_reader *m, size_t i,
                                                   const int64_t *start, const int64_t *size,
                                                   void *dst);
/* Hint that these bytes will be read soon, so that their sources are prefetched. */
D9D_API void d9d_map_prefetch(d9d_map_reader *m, size_t i, uint64_t at, uint64_t n);
/* Page-aligned scratch memory of this thread, valid until the next call. */
D9D_API D9D_MUST_USE d9d_status d9d_map_reader_scratch(d9d_map_reader *m, uint64_t n, void **out);
/* Reports that n more bytes are done, for the progress log. */
D9D_API void d9d_map_reader_add_progress(d9d_map_reader *m, uint64_t n);
/* How many threads call fill() concurrently. */
D9D_API int d9d_map_reader_jobs(const d9d_map_reader *m);

/* --- plans ------------------------------------------------------------------ */

typedef struct d9d_map_plan d9d_map_plan;

/* What happens to finite numbers outside the range of a cast's type. */
typedef enum d9d_cast_overflow {
    D9D_CAST_OVERFLOW_ERROR,    /* ECONFIG names the tensor, how many and the largest */
    D9D_CAST_OVERFLOW_SATURATE, /* the largest finite number of the type; ENOTSUP for reads of
                                 * slices
                                 */
    D9D_CAST_OVERFLOW_INF       /* infinity; a warning counts such values, as for SATURATE */
} d9d_cast_overflow;

typedef struct d9d_map_plan_opts {
    bool cast; /* cast every floating output to `cast_to` */
    d9d_dtype cast_to;
    d9d_cast_overflow overflow;
    const char *keep_suffix; /* outputs whose names end with this keep their dtype; NULL: none */
    bool keep_as_float32;    /* they are cast to float32 instead */
    bool floating;           /* every tensor that is used must have a floating type */
    bool allow_unused;       /* ignore source tensors that no step takes */
    const char *source;      /* names of the two sides in messages; NULL: "source" and "mapper" */
    const char *mapper;      /*   "ckpt/in" and "qwen3_moe" */
    /* Called with one sentence for each mismatch; NULL: the error record has the first few. */
    void (*on_problem)(void *arg, const char *sentence);
    void *arg;
} d9d_map_plan_opts;

/* Binds mapper and source; both are borrowed until the plan is freed.  EMISMATCH if they do not
 * fit. */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_create(const d9d_mapper *m,
                                                    const d9d_tensor_source *src,
                                                    const d9d_map_plan_opts *opt,
                                                    d9d_map_plan **out);
D9D_API void d9d_map_plan_free(d9d_map_plan *p);
/* Checks names only: does the source have every tensor that the mapper takes, and no other?
 * EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_check_names(const d9d_mapper *m,
                                                         const d9d_tensor_source *src,
                                                         const d9d_map_plan_opts *opt);
/* Outputs in order of declaration; offsets are 0. */
D9D_API size_t d9d_map_plan_output_count(const d9d_map_plan *p);
D9D_API const d9d_safetensors_tensor *d9d_map_plan_output(const d9d_map_plan *p, size_t i);
D9D_API uint64_t d9d_map_plan_bytes(const d9d_map_plan *p); /* of all outputs */
/* Upper bound of the memory that run allocates, for a sink that is filled in chunks of
 * D9D_TENSOR_SINK_CHUNK bytes. */
#define D9D_TENSOR_SINK_CHUNK (16ull << 20)
D9D_API uint64_t d9d_map_plan_peak_bytes(const d9d_map_plan *p, int jobs);
/* Appends the plan as "text", "json" or "dot": groups, inputs with file and offset, operations,
 * outputs, bytes.  Text merges groups whose names differ only by numbers, unless ALL is set.  BOXES
 * adds the regions of source tensors that make up each output (JSON, and text with ALL). */
enum { D9D_MAP_PLAN_ALL = 1, D9D_MAP_PLAN_BOXES = 2 };
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_print(const d9d_map_plan *p, const char *format,
                                                   unsigned flags, d9d_buf *out);
/* A hash of everything that decides the bytes of the outputs.  ENOTSUP if the source has no
 * fingerprint. */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_fingerprint(const d9d_map_plan *p, d9d_hash *out);
/* Fills the sink on `jobs` threads (0: one per processor). */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_run(const d9d_map_plan *p, const d9d_tensor_sink *sink,
                                                 int jobs, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_MAPPER_MAPPER_H */
