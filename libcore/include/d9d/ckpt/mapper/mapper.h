/* mapper.h - a checkpoint mapping as a graph that is declared before it is run.
 *
 * A mapper is a set of steps between named tensors.  Steps that hang together make a
 * group, the smallest unit of the mapping:
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
 *             it is given
 * Everything is in the order of declaration, whatever the number of threads.
 *
 * No operation but cast computes on elements, so planning turns each output into boxes of
 * source tensors ("matrix 3 of this output is that tensor transposed"), however long the
 * chain of operations.  Any span of any output can then be made by itself, and costs what it
 * reads: what is contiguous on both sides is read straight to its place, the rest goes by
 * bands of 1 MiB.  So memory is what the sink asks for at once, not a group, nor a tensor.
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
 * Names are copied.  Each call adds one step beside those that are there; an input taken
 * twice or an output given twice is ECONFIG and names the tensor.  Dimensions count from
 * 0, or from the end when negative.  After a failure a mapper may only be freed. */
typedef struct d9d_mapper d9d_mapper;

D9D_API D9D_MUST_USE d9d_status d9d_mapper_create(d9d_mapper **out);
D9D_API void d9d_mapper_free(d9d_mapper *m);

D9D_API D9D_MUST_USE d9d_status d9d_mapper_identity(d9d_mapper *m, const char *name);
D9D_API D9D_MUST_USE d9d_status d9d_mapper_rename(d9d_mapper *m, const char *from, const char *to);
/* Swap two dimensions. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_transpose(d9d_mapper *m, const char *name, int d0,
                                                     int d1);
/* A new dimension `dim` of size n; all parts have one shape. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_stack(d9d_mapper *m, const char *const *from, size_t n,
                                                 const char *to, int dim);
/* Its inverse; dimension `dim` must have size n. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_unstack(d9d_mapper *m, const char *from,
                                                   const char *const *to, size_t n, int dim);
/* Along an existing dimension; parts agree in all others. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_concat(d9d_mapper *m, const char *const *from, size_t n,
                                                  const char *to, int dim);
/* parent.name becomes name, for n names: each a group of its own. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_select(d9d_mapper *m, const char *parent,
                                                  const char *const *names, size_t n);
/* n parts of ceil(size / n), the last one what is left; n parts must come out. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_chunk(d9d_mapper *m, const char *from,
                                                 const char *const *to, size_t n, int dim);
/* n parts of the sizes given, which must add up: what undoes a concat of unequal parts. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_split(d9d_mapper *m, const char *from,
                                                 const char *const *to, const int64_t *sizes,
                                                 size_t n, int dim);
/* Remove a dimension of size 1, or with D9D_SQUEEZE_ALL every such; insert one. */
#define D9D_SQUEEZE_ALL INT_MIN
D9D_API D9D_MUST_USE d9d_status d9d_mapper_squeeze(d9d_mapper *m, const char *name, int dim);
D9D_API D9D_MUST_USE d9d_status d9d_mapper_unsqueeze(d9d_mapper *m, const char *name, int dim);
/* From any floating type to float32, bfloat16, float16 or float64, rounded to nearest even. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_cast(d9d_mapper *m, const char *name, d9d_dtype to);
/* Take and give nothing: the explicit way to leave a tensor behind. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_drop(d9d_mapper *m, const char *name);
/* The same bytes under n names (tied weights written out). */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_duplicate(d9d_mapper *m, const char *from,
                                                     const char *const *to, size_t n);

/* How a tensor lies on a mesh: one of these for each dimension of the mesh, in its order.
 * Where `shard` is set, the coordinate i of `parts` has piece i of the tensor's dimension
 * `dim`: elements [min(i*c, s), min((i+1)*c, s)) with c = ceil(s / parts), as torch's DTensor
 * cuts, so that the last pieces may be shorter or empty; else every coordinate has it whole.
 * A later dimension of the mesh cuts what earlier ones left. */
typedef struct d9d_mapper_placement {
    int64_t mesh_size; /* size of the mesh in this dimension */
    bool shard;
    int dim; /* of the tensor */
} d9d_mapper_placement;
enum { D9D_MAX_MESH = 8 };

/* The part that the coordinate `at` [n] of the mesh has of a whole tensor. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_distribute(d9d_mapper *m, const char *name,
                                                      const d9d_mapper_placement *mesh,
                                                      const int64_t *at, int n);
/* The whole tensor of the parts of all coordinates, which are named in row-major order (the
 * last coordinate fastest).  Of parts that are replicas the one at coordinate 0 is read; all
 * must have their right shapes. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_gather(d9d_mapper *m, const char *const *from,
                                                  size_t n_from, const char *to,
                                                  const d9d_mapper_placement *mesh, int n);

/* The shape that an input must have; ENOTFOUND unless `input` is one. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_expect(d9d_mapper *m, const char *input, int ndim,
                                                  const int64_t *shape);

/* --- composing; `part` is taken over, also on failure ----------- */

/* Side by side: every step of `part`, with the prefixes before its inputs and outputs. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_union(d9d_mapper *m, d9d_mapper *part,
                                                 const char *from_prefix, const char *to_prefix);
/* One after another: m becomes m followed by `part`.  Names that one side does not know
 * pass through it. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_compose(d9d_mapper *m, d9d_mapper *part);
/* The share of one of `total` workers: groups in byte order of their first input's name (the
 * least of its inputs) are dealt round robin, and group i stays where i % total == current.
 * What the others take is no input any more. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_shard(d9d_mapper *m, uint64_t total, uint64_t current);
/* Add the identity of every output of `of`: what writes what `of` has read. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_identities(d9d_mapper *m, const d9d_mapper *of);
/* No step at all.  Composing with an empty mapper changes nothing. */
D9D_API bool d9d_mapper_is_empty(const d9d_mapper *m);

/* Names of all inputs or outputs, in order of declaration; borrowed. */
D9D_API size_t d9d_mapper_input_count(const d9d_mapper *m);
D9D_API const char *d9d_mapper_input(const d9d_mapper *m, size_t i);
D9D_API size_t d9d_mapper_output_count(const d9d_mapper *m);
D9D_API const char *d9d_mapper_output(const d9d_mapper *m, size_t i);

/* --- sources and sinks ------------------------------------------------------ */

/* Where tensors come from: names with dtype and shape, bytes on demand. */
typedef struct d9d_tensor_source {
    void *self;
    size_t n;
    const d9d_safetensors_tensor *(*at)(void *self, size_t i);
    const char *(*path)(void *self, size_t i); /* file of tensor i, for sentences; "": none */
    /* n bytes at `at` bytes into tensor i.  Thread-safe. */
    d9d_status (*read)(void *self, size_t i, uint64_t at, void *dst, uint64_t n);
    /* These bytes will be read soon; may be NULL. */
    void (*prefetch)(void *self, size_t i, uint64_t at, uint64_t n);
    /* Add all that decides the bytes: where this and the plan are the same, so are the outputs,
     * and an interrupted run can go on.  May be NULL. */
    void (*fingerprint)(void *self, d9d_hasher *h);
} d9d_tensor_source;

/* The bytes of the outputs, on demand: what a run lends to a sink, one for each thread. */
typedef struct d9d_map_reader d9d_map_reader;

/* Where they go.  `begin` sees every output before the first byte, and says of how many pieces
 * the work is made and of how many bytes in all; fill() makes one piece whole, from any
 * thread.  Pieces begin in their order.
 *
 *     static d9d_status fill(void *self, size_t piece, d9d_map_reader *make)   // a piece an output
 *     {
 *         struct memory *m = self;
 *
 *         D9D_TRY(d9d_map_read(make, piece, 0, m->data[piece], m->bytes[piece]));
 *         d9d_map_reader_add_progress(make, m->bytes[piece]);
 *         return D9D_OK;
 *     } */
typedef struct d9d_tensor_sink {
    void *self;
    d9d_status (*begin)(void *self, const d9d_safetensors_tensor *outputs, size_t n, size_t *pieces,
                        uint64_t *bytes);
    d9d_status (*fill)(void *self, size_t piece, d9d_map_reader *make);
} d9d_tensor_sink;

/* n bytes at `at` bytes into output i, whole elements, to `dst`. */
D9D_API D9D_MUST_USE d9d_status d9d_map_read(d9d_map_reader *m, size_t i, uint64_t at, void *dst,
                                             uint64_t n);
/* The box [start, start + size) of output i, dense, to `dst`. */
D9D_API D9D_MUST_USE d9d_status d9d_map_read_slice(d9d_map_reader *m, size_t i,
                                                   const int64_t *start, const int64_t *size,
                                                   void *dst);
/* Those bytes will be made soon: so that what they need is read ahead. */
D9D_API void d9d_map_prefetch(d9d_map_reader *m, size_t i, uint64_t at, uint64_t n);
/* Page-aligned memory of this thread, until the next call. */
D9D_API D9D_MUST_USE d9d_status d9d_map_reader_scratch(d9d_map_reader *m, uint64_t n, void **out);
/* n more bytes are where they belong: for the progress. */
D9D_API void d9d_map_reader_add_progress(d9d_map_reader *m, uint64_t n);
/* How many threads fill at the same time. */
D9D_API int d9d_map_reader_jobs(const d9d_map_reader *m);

/* --- plans ------------------------------------------------------------------ */

typedef struct d9d_map_plan d9d_map_plan;

/* What becomes of finite numbers that a cast has no room for. */
typedef enum d9d_cast_overflow {
    D9D_CAST_OVERFLOW_ERROR,    /* ECONFIG names the tensor, how many and the largest */
    D9D_CAST_OVERFLOW_SATURATE, /* the largest number of the type; not where boxes are made: ENOTSUP
                                 */
    D9D_CAST_OVERFLOW_INF       /* infinite.  A warning counts them here and above. */
} d9d_cast_overflow;

typedef struct d9d_map_plan_opts {
    bool cast; /* every floating output becomes `cast_to` */
    d9d_dtype cast_to;
    d9d_cast_overflow overflow;
    const char *keep_suffix; /* outputs whose names end so keep their type; NULL: none */
    bool floating;           /* every tensor that is used must be of a floating type */
    bool allow_unused;       /* source tensors that no step takes are left behind silently */
    const char *source;      /* names of the two sides in sentences; NULL: "source" and "mapper" */
    const char *mapper;      /*   "ckpt/in" and "qwen3_moe" */
    /* Called with one sentence for everything that does not fit; NULL: the first few are in
     * the error record. */
    void (*on_problem)(void *arg, const char *sentence);
    void *arg;
} d9d_map_plan_opts;

/* Bind mapper and source; both are borrowed until the plan is freed.  EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_create(const d9d_mapper *m,
                                                    const d9d_tensor_source *src,
                                                    const d9d_map_plan_opts *opt,
                                                    d9d_map_plan **out);
D9D_API void d9d_map_plan_free(d9d_map_plan *p);
/* What of that needs names alone: has the source all that the mapper takes, and nothing else?
 * EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_check_names(const d9d_mapper *m,
                                                         const d9d_tensor_source *src,
                                                         const d9d_map_plan_opts *opt);
/* Outputs in order of declaration; offsets are 0. */
D9D_API size_t d9d_map_plan_output_count(const d9d_map_plan *p);
D9D_API const d9d_safetensors_tensor *d9d_map_plan_output(const d9d_map_plan *p, size_t i);
D9D_API uint64_t d9d_map_plan_bytes(const d9d_map_plan *p); /* of all outputs */
/* What run will allocate at most, with a sink that is filled by pieces of D9D_TENSOR_SINK_CHUNK. */
#define D9D_TENSOR_SINK_CHUNK (16ull << 20)
D9D_API uint64_t d9d_map_plan_peak_bytes(const d9d_map_plan *p, int jobs);
/* "text", "json" or "dot": groups, inputs with file and offset, operations, outputs, bytes.
 * Text has one entry for groups that differ by numbers in names, unless ALL; BOXES adds, to
 * text with ALL and to JSON, the pieces of source tensors that an output is made of. */
enum { D9D_MAP_PLAN_ALL = 1, D9D_MAP_PLAN_BOXES = 2 };
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_print(const d9d_map_plan *p, const char *format,
                                                   unsigned flags, d9d_buf *out);
/* A hash of all that decides the bytes of the outputs; ENOTSUP where the source cannot tell. */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_fingerprint(const d9d_map_plan *p, d9d_hash *out);
/* Fill the sink on `jobs` threads (0: one a processor). */
D9D_API D9D_MUST_USE d9d_status d9d_map_plan_run(const d9d_map_plan *p, const d9d_tensor_sink *sink,
                                                 int jobs, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_MAPPER_MAPPER_H */
