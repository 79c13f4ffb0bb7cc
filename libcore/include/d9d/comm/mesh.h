/* mesh.h - the ranks of a job as an array with named axes, and the groups along them.
 *
 * The ranks are numbered row by row, the last axis fastest, so that the ranks which talk most
 * are neighbours:
 *
 *     pipeline  dp_replicate  dp_shard  cp_shard  cp_replicate  tp
 *
 *     dp_shard 2, tp 2:    rank 0  1     shard 0, tp 0 1
 *                               2  3     shard 1, tp 0 1
 *
 * A group is any set of axes: the ranks that differ in these coordinates alone, in order.
 *
 *     D9D_TRY(d9d_mesh_open(boot, &degrees, "cpu", &how, &mesh));
 *     D9D_TRY(d9d_mesh_group(mesh, D9D_AXIS(TP), &tp));
 *     D9D_TRY(d9d_mesh_group(mesh, D9D_AXIS(DP_SHARD) | D9D_AXIS(CP_SHARD), &shard));
 *
 * Experts divide the ranks of one pipeline stage in another way: all of its dp, cp and tp ranks
 * are cut into rows of `expert` neighbours, each of which holds a part of the experts, and the
 * columns hold the same part.
 *
 *     8 ranks, expert 4:   0 1 2 3     EXPERT {0 1 2 3}   EXPERT_REPLICATE {0 4}
 *                          4 5 6 7
 */
#ifndef D9D_COMM_MESH_H
#define D9D_COMM_MESH_H

#include "d9d/base/log.h"
#include "d9d/comm/bootstrap.h"
#include "d9d/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a configuration's "mesh" section; all at least 1. */
typedef struct d9d_parallel_degrees {
    int64_t pipeline_parallel, data_parallel_replicate, data_parallel_shard;
    int64_t context_parallel_replicate, context_parallel_shard, tensor_parallel;
    int64_t expert_parallel;
} d9d_parallel_degrees;

/* Degrees against the number of ranks: ECONFIG shows the product, and whether expert_parallel
 * divides the ranks of a stage. */
D9D_API D9D_MUST_USE d9d_status d9d_parallel_degrees_check(const d9d_parallel_degrees *d,
                                                           int64_t ranks);

/* "dps 4 tp 2": the degrees above 1, "local" without any; cut to fit; returns buf. */
D9D_API char *d9d_parallel_degrees_text(const d9d_parallel_degrees *d, char *buf, size_t n);
/* How many ranks they make, but at most 2^31 - 1. */
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

/* A set of axes is a sum of these. */
#define D9D_AXIS(name)     (1u << D9D_AXIS_##name)
#define D9D_AXES_DP        (D9D_AXIS(DP_REPLICATE) | D9D_AXIS(DP_SHARD)) /* other samples */
#define D9D_AXES_CP        (D9D_AXIS(CP_SHARD) | D9D_AXIS(CP_REPLICATE)) /* other positions */
#define D9D_AXES_TOKENS    (D9D_AXES_DP | D9D_AXES_CP)                   /* other tokens */
#define D9D_AXES_SHARD     (D9D_AXIS(DP_SHARD) | D9D_AXIS(CP_SHARD))     /* cut the weights */
#define D9D_AXES_REPLICATE (D9D_AXIS(DP_REPLICATE) | D9D_AXIS(CP_REPLICATE))
#define D9D_AXES_STAGE     (D9D_AXES_TOKENS | D9D_AXIS(TP)) /* of one pipeline stage */
#define D9D_AXES_WORLD     (D9D_AXES_STAGE | D9D_AXIS(PP))
/* Sets of their own, not to be combined. */
#define D9D_AXES_EXPERT           (1u << 16)
#define D9D_AXES_EXPERT_REPLICATE (1u << 17)

/* The number of a rank of the world in its group of `axes`. */
D9D_API int d9d_parallel_degrees_index(const d9d_parallel_degrees *d, unsigned axes, int64_t rank);

typedef struct d9d_mesh d9d_mesh;

/* While a mesh is open the boot's exchanges go through its world.  A call that takes longer than
 * the limit ends the job: the log gets one sentence, which names the ranks that have not come, all
 * ranks are ended through the launcher, and this process by `end`, or by SIGKILL where that is NULL
 * or returns. */
typedef struct d9d_mesh_opts {
    double timeout_s;         /* of one collective call; 0: none */
    const char *timeout_name; /* what that is called: see d9d_mesh_set_timeout() */
    double stopped_timeout_s; /* the same while a rank of this host is stopped (SIGSTOP) for as
                               * long, where it is less; 0: no less */
    const char *flight_dir;   /* where the flight recorder writes, or NULL (d9d/comm/flight.h) */
    const d9d_log *log;
    void (*exit_fn)(int code); /* _exit */
    /* NULL, or: gives memory of the device that is only kept for later back to the driver. */
    void (*trim)(void *arg);
    void *trim_arg;
} d9d_mesh_opts;

/* Collective: over the world.  `net` is "cpu" (MPI), "cuda" (NCCL, on `stream`'s GPU) or
 * "sim", of an imagined boot, on `stream`'s d9d_sim; a world of one needs none.  A process
 * opens one mesh on the CPU in its life: MPI starts once. ECONFIG when the degrees do not make the
 * boot's number of ranks, ENOTSUP when this build or machine has no MPI or NCCL. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_open(d9d_bootstrap *boot,
                                              const d9d_parallel_degrees *degrees, const char *net,
                                              d9d_stream stream, const d9d_mesh_opts *how,
                                              d9d_mesh **out);
/* This rank fails alone: closing waits for nobody.  Where there is a flight recorder and a rank
 * before this one fails too, a second later at most, that one speaks:
 * d9d_bootstrap_failure_reported(). */
D9D_API void d9d_mesh_abandon(d9d_mesh *m);
/* Collective: over the world, unless a call has failed. */
D9D_API void d9d_mesh_close(d9d_mesh *m);

D9D_API const d9d_parallel_degrees *d9d_mesh_degrees(const d9d_mesh *m);
D9D_API d9d_bootstrap *d9d_mesh_bootstrap(const d9d_mesh *m);
D9D_API int d9d_mesh_rank(const d9d_mesh *m); /* in the world */
D9D_API int d9d_mesh_size(const d9d_mesh *m);

/* This rank's number in the group of `axes`, and the group's size; without communication. */
D9D_API int d9d_mesh_index(const d9d_mesh *m, unsigned axes);
D9D_API int d9d_mesh_count(const d9d_mesh *m, unsigned axes);

/* The group of `axes`, borrowed; NULL when it is this rank alone.  The first call for a set makes
 * the groups.  Collective: over the world, every rank with the same sets in the same order. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_group(d9d_mesh *m, unsigned axes, d9d_comm **out);

/* Another group of the same ranks with a queue of its own: number 1 and on; 0 is
 * d9d_mesh_group()'s. Collective, as that. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_group_dup(d9d_mesh *m, unsigned axes, int number,
                                                   d9d_comm **out);

/* "dps 1 tp 0": the coordinates of the axes that have more than one rank, "local" without any;
 * into buf, cut to fit; returns buf.  What a log calls a rank. */
D9D_API char *d9d_mesh_text(const d9d_mesh *m, char *buf, size_t n);

/* What the groups hold of the devices is given back; no call may be made or under way until
 * wake() has made it anew.  The groups stay what they are.  Collective: over the world. */
D9D_API void d9d_mesh_suspend(d9d_mesh *m);
D9D_API D9D_MUST_USE d9d_status d9d_mesh_resume(d9d_mesh *m);

/* Another limit for calls from here on, 0: none, and what a job that it ends says of it, borrowed:
 * "trainer.timeout.save_timeout".  NULL: nothing. */
D9D_API void d9d_mesh_set_timeout(d9d_mesh *m, double seconds, const char *limit);

/* Collective: over the world.  Rank 0 returns at once, the others when rank 0 has called
 * d9d_mesh_root_first_end().  Every rank calls both. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_root_first_begin(d9d_mesh *m);
D9D_API D9D_MUST_USE d9d_status d9d_mesh_root_first_end(d9d_mesh *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_COMM_MESH_H */
