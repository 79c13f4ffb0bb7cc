/* mesh.h - the device mesh: the ranks of a job as an array with named axes, and the process groups
 * along the axes.
 *
 * The ranks are numbered row-major, the last axis fastest, so that the ranks which communicate most
 * are neighbours:
 *
 *     pipeline  dp_replicate  dp_shard  cp_shard  cp_replicate  tp
 *
 *     dp_shard 2, tp 2:    rank 0  1     shard 0, tp 0 1
 *                               2  3     shard 1, tp 0 1
 *
 * A group belongs to a set of axes: it has the ranks that differ in these coordinates only, in
 * order.
 *
 *     D9D_TRY(d9d_mesh_open(bootstrap, &degrees, "cpu", stream, &opts, &mesh));
 *     D9D_TRY(d9d_mesh_group(mesh, D9D_AXIS(TP), &tp));
 *     D9D_TRY(d9d_mesh_group(mesh, D9D_AXIS(DP_SHARD) | D9D_AXIS(CP_SHARD), &shard));
 *
 * Expert parallelism divides the dp, cp and tp ranks of one pipeline stage in another way.  Rows of
 * `expert` neighbours each hold all experts, divided among them; the ranks of a column hold the
 * same experts.  A column is divided where dp_replicate divides the stage, so that experts too are
 * sharded inside a replica only (HSDP):
 *
 *     dp_replicate 2, 8 ranks,    0 1     EXPERT {0 1}   EXPERT_SHARD {0 2}   EXPERT_REPLICATE {0
 * 4} expert 2:                   2 3
 *                                 ---
 *                                 4 5
 *                                 6 7
 *
 * With expert_parallel_local a row is an array [nodes, local] of its own: EXPERT_LOCAL has the
 * neighbours of one node, EXPERT_ACROSS the ranks with the same number on each node.
 *
 * Rows of `expert` ranks over several replicas leave columns that are replicated only.  Where rows
 * do not end where replicas end, columns are sharded as a whole.
 *
 * The mesh owns its groups; close it after everything that uses them.
 */
#ifndef D9D_COMM_MESH_H
#define D9D_COMM_MESH_H

#include "d9d/base/log.h"
#include "d9d/comm/bootstrap.h"
#include "d9d/comm/comm.h"
#include "d9d/comm/cp_method.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The "mesh" section of a configuration; all degrees at least 1. */
typedef struct d9d_parallel_degrees {
    int64_t pipeline_parallel, data_parallel_replicate, data_parallel_shard;
    int64_t context_parallel_replicate, context_parallel_shard, tensor_parallel;
    int64_t expert_parallel;
    int64_t expert_parallel_local; /* divides expert_parallel; 0 and 1: rows are not divided */
    int context_parallel_method;   /* d9d_cp_method */
} d9d_parallel_degrees;

/* The members in their order, to compare, sort and hash: the struct has bytes that nobody sets. */
enum { D9D_N_PARALLEL_DEGREES = 9 };
D9D_API void d9d_parallel_degrees_values(const d9d_parallel_degrees *d,
                                         int64_t out[D9D_N_PARALLEL_DEGREES]);
D9D_API bool d9d_parallel_degrees_equal(const d9d_parallel_degrees *a,
                                        const d9d_parallel_degrees *b);

/* Check the degrees against the number of ranks.  ECONFIG shows the product; also if
 * expert_parallel does not divide the ranks of a stage, or expert_parallel_local that. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_degrees_check(const d9d_parallel_degrees *d,
                                                           int64_t ranks);

/* "dps 4 cps 2 all_to_all": the degrees above 1, and a method of context parallelism other than the
 * default; "local" if there are none.  Truncated to fit buf; returns buf. */
D9D_API char *d9d_parallel_degrees_text(const d9d_parallel_degrees *d, char *buf, size_t n);
/* The product of the degrees, at most 2^31 - 1. */
D9D_API int64_t d9d_parallel_degrees_ranks(const d9d_parallel_degrees *d);

typedef enum d9d_mesh_axis {
    D9D_AXIS_PP,
    D9D_AXIS_DP_REPLICATE,
    D9D_AXIS_DP_SHARD,
    D9D_AXIS_CP_SHARD,
    D9D_AXIS_CP_REPLICATE,
    D9D_AXIS_TP,
    D9D_AXIS_COUNT
} d9d_mesh_axis;

/* A set of axes is a bitwise OR of these. */
#define D9D_AXIS(name)     (1u << D9D_AXIS_##name)
#define D9D_AXES_DP        (D9D_AXIS(DP_REPLICATE) | D9D_AXIS(DP_SHARD)) /* other samples */
#define D9D_AXES_CP        (D9D_AXIS(CP_SHARD) | D9D_AXIS(CP_REPLICATE)) /* other positions */
#define D9D_AXES_TOKENS    (D9D_AXES_DP | D9D_AXES_CP)                   /* other tokens */
#define D9D_AXES_SHARD     (D9D_AXIS(DP_SHARD) | D9D_AXIS(CP_SHARD))     /* shard weights (FSDP) */
#define D9D_AXES_REPLICATE (D9D_AXIS(DP_REPLICATE) | D9D_AXIS(CP_REPLICATE))
#define D9D_AXES_STAGE     (D9D_AXES_TOKENS | D9D_AXIS(TP)) /* the ranks of one pipeline stage */
#define D9D_AXES_WORLD     (D9D_AXES_STAGE | D9D_AXIS(PP))
/* Not to be combined with the axes above. */
#define D9D_AXES_EXPERT_ACROSS    (1u << 16)
#define D9D_AXES_EXPERT_LOCAL     (1u << 19)
#define D9D_AXES_EXPERT           (D9D_AXES_EXPERT_ACROSS | D9D_AXES_EXPERT_LOCAL)
#define D9D_AXES_EXPERT_REPLICATE (1u << 17)
#define D9D_AXES_EXPERT_SHARD     (1u << 18)
#define D9D_AXES_EXPERT_STAGE     (D9D_AXES_EXPERT | D9D_AXES_EXPERT_REPLICATE | D9D_AXES_EXPERT_SHARD)

/* The rank in its group over `axes` of world rank `rank`. */
D9D_API int d9d_parallel_degrees_index(const d9d_parallel_degrees *d, unsigned axes, int64_t rank);

typedef struct d9d_mesh d9d_mesh;

/* Options of d9d_mesh_open().  While a mesh is open, the bootstrap's exchanges use the mesh's world
 * group.
 *
 * A watchdog ends the job when a call takes longer than the timeout.  It logs one sentence that
 * names the ranks which have not made the call, aborts all ranks through the launcher, and ends
 * this process by `exit_fn`.  If that is NULL or returns, the process gets SIGKILL. */
typedef struct d9d_mesh_opts {
    double timeout_s;         /* of one collective call, in seconds; 0: none */
    const char *timeout_name; /* configuration key of the timeout: see d9d_mesh_set_timeout() */
    double stopped_timeout_s; /* shorter timeout that applies while a rank of this host is stopped
                                 (SIGSTOP) for as long; 0: none */
    const char *flight_dir;   /* directory of the flight recorder, or NULL (d9d/comm/flight.h) */
    const d9d_log *log;
    void (*exit_fn)(int code); /* _exit */
    /* Returns the cached device memory to the driver; NULL: none. */
    void (*trim)(void *arg);
    void *trim_arg;
} d9d_mesh_opts;

/* Open the mesh.  `backend` is "cpu" (MPI), "cuda" (NCCL, on the GPU of `stream`) or "sim"
 * (simulated: of a simulated bootstrap, on the d9d_sim of `stream`); a world of one needs none.  A
 * process can open one CPU mesh in its life, because MPI starts once.  ECONFIG if the degrees do
 * not give the bootstrap's number of ranks; ENOTSUP if this build or machine has no MPI or NCCL.
 * Collective over the world. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_open(d9d_bootstrap *bootstrap,
                                              const d9d_parallel_degrees *degrees,
                                              const char *backend, d9d_stream stream,
                                              const d9d_mesh_opts *opts, d9d_mesh **out);
/* Mark this rank as failed alone, so that closing does not wait for others.  With a flight
 * recorder, if a lower rank fails within a second too, that rank reports the failure:
 * d9d_bootstrap_failure_reported(). */
D9D_API void d9d_mesh_abandon(d9d_mesh *m);
/* Close the mesh and its groups.  Collective over the world, unless a call has failed. */
D9D_API void d9d_mesh_close(d9d_mesh *m);

D9D_API const d9d_parallel_degrees *d9d_mesh_degrees(const d9d_mesh *m);
D9D_API d9d_bootstrap *d9d_mesh_bootstrap(const d9d_mesh *m);
D9D_API int d9d_mesh_rank(const d9d_mesh *m); /* in the world */
D9D_API int d9d_mesh_size(const d9d_mesh *m);

/* This rank's number in its group over `axes`, and the size of that group; no communication. */
D9D_API int d9d_mesh_index(const d9d_mesh *m, unsigned axes);
D9D_API int d9d_mesh_count(const d9d_mesh *m, unsigned axes);

/* The group over `axes`, borrowed; NULL if it has this rank only.  The first call for a set creates
 * the groups.  Collective over the world: every rank asks for the same sets in the same order. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_group(d9d_mesh *m, unsigned axes, d9d_comm **out);

/* Another communicator with the same ranks and a stream of its own, numbered from 1; 0 is
 * d9d_mesh_group()'s.  Collective, as that is. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_group_dup(d9d_mesh *m, unsigned axes, int number,
                                                   d9d_comm **out);

/* "dps 1 tp 0": the coordinates of the axes with more than one rank, or "local".  Truncated to fit
 * buf; returns buf.  Logs name a rank so. */
D9D_API char *d9d_mesh_text(const d9d_mesh *m, char *buf, size_t n);

/* Release the device resources of all groups, and create them again.  The d9d_comm pointers stay
 * valid, but no call may be pending or be made between the two.  Collective over the world. */
D9D_API void d9d_mesh_suspend(d9d_mesh *m);
D9D_API D9D_MUST_USE d9d_status d9d_mesh_resume(d9d_mesh *m);

/* Set the timeout of later calls in seconds, 0: none.  `timeout_name` is the configuration key that
 * the message of a timeout names, such as "trainer.timeout.save_timeout"; borrowed; NULL: none. */
D9D_API void d9d_mesh_set_timeout(d9d_mesh *m, double seconds, const char *timeout_name);

/* Calls fn(self, true) before, and fn(self, false) after every call of a group that makes `stream`
 * wait for other ranks: to measure how long it does.  On a GPU the calls enqueue the wait, so that
 * fn records events.  fn NULL: nobody is told.  Not collective. */
D9D_API void d9d_mesh_observe_waits(d9d_mesh *m, d9d_stream stream,
                                    void (*fn)(void *self, bool begins), void *self);

/* Rank 0 first: begin() returns at once on rank 0, and on the others when rank 0 has called end().
 * Every rank calls both.  Collective over the world. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_root_first_begin(d9d_mesh *m);
D9D_API D9D_MUST_USE d9d_status d9d_mesh_root_first_end(d9d_mesh *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_MESH_H */
