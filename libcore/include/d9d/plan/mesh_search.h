/* mesh_search.h - searches for the fastest mesh: plans those that divide the model and the batch,
 * and ranks them.
 *
 *     D9D_TRY(d9d_mesh_search(&config, &opts, 64, log, &arena, &s));
 *     D9D_TRY(d9d_mesh_search_print(&s, 10, &text));
 *
 * Candidates are the factorisations of N ranks into the axes of a mesh, with micro-batches of 1, 2,
 * 4, ... sequences.  Each is planned (d9d/plan/plan.h) with the least activation checkpointing that
 * fits the memory.  Of more than 512 candidates some are planned that lie evenly over all, then
 * those that differ by a step from the best eight, until no such one is left.  Pipelines are first
 * planned with 1f1b and one sequence; the best of them then with other schedules and larger
 * micro-batches.  The search omits meshes that would rank low: tensor parallelism across nodes,
 * context-parallel chunks below 256 positions, replication within a node, and micro-batches of more
 * than 65536 positions.
 *
 * All of the configuration except mesh, micro-batch, checkpointing and schedule is unchanged; in
 * particular the global batch.
 */
#ifndef D9D_PLAN_MESH_SEARCH_H
#define D9D_PLAN_MESH_SEARCH_H

#include "d9d/base/log.h"
#include "d9d/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_mesh_search_result {
    d9d_parallel_degrees mesh;
    char mesh_text[96];
    int64_t rows;                /* sequences of a micro-batch */
    int checkpointing;           /* d9d_model_recompute_mode */
    char schedule[48];           /* of the pipeline, for people; "" without one */
    d9d_pipe_schedule_opts pipe; /* with one */
    uint64_t bytes;              /* that a rank needs */
    double step_s, tokens_per_hour, mfu, bubble;
} d9d_mesh_search_result;

typedef struct d9d_mesh_search_results {
    int64_t ranks;
    uint64_t memory; /* limit per rank in bytes; 0: unknown */
    const d9d_sim_chip *chip;
    d9d_mesh_search_result *item; /* [n], in the arena: by descending tokens per hour */
    size_t n;
    int64_t meshes, planned; /* meshes that the model and the batch allow; plans made */
    bool complete;           /* false: a signal ended the search, and a better one may exist */
} d9d_mesh_search_results;

/* Searches the meshes of this many ranks.  ECONFIG if there is none, or none fits; the message has
 * the least memory that one needs.  Logs its progress.  SIGINT or SIGTERM end the search: the
 * result is then what was planned; EINTR if nothing that fits was. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_search(const d9d_train_config *config,
                                                const d9d_plan_opts *opts, int64_t ranks,
                                                const d9d_log *log, d9d_arena *a,
                                                d9d_mesh_search_results *out);

/* Appends the first `max_n` as text; d9d_mesh_search_json() returns all as d9d.suggest.v1. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_search_print(const d9d_mesh_search_results *s,
                                                      size_t max_n, d9d_buf *out);
D9D_API json_t *d9d_mesh_search_json(const d9d_mesh_search_results *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLAN_MESH_SEARCH_H */
