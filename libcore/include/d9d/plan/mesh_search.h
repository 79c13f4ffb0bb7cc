/* mesh_search.h - which mesh to train on: all that divide the model and the batch, planned and
 * ranked.
 *
 *     D9D_TRY(d9d_mesh_search(&config, &how, 64, log, &arena, &s));
 *     D9D_TRY(d9d_mesh_search_print(&s, 10, &text));
 *
 * Every way to cut N ranks into the axes of a mesh is planned (d9d/plan/plan.h) with
 * micro-batches of 1, 2, 4, ... rows and with the least activation checkpointing that fits the
 * memory; pipelines first with 1f1b and one row, the best of them then with other schedules and
 * more rows.  What is left out would not be ranked high: tensor parallelism over nodes, context
 * parallelism beyond pieces of 256 positions, weights replicated but for whole nodes, and
 * micro-batches of more than 65536 positions.
 *
 * Everything of the configuration but mesh, micro-batch, checkpointing and schedule stays as it is,
 * the global batch above all.
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
    int64_t rows;      /* of a micro-batch */
    int checkpointing; /* d9d_model_recompute_mode */
    char schedule[48]; /* of the pipeline; "" without */
    uint64_t bytes;    /* that a rank needs */
    double step_s, tokens_per_hour, mfu, bubble;
} d9d_mesh_search_result;

typedef struct d9d_mesh_search_results {
    int64_t ranks;
    uint64_t memory; /* that they must fit; 0: unknown */
    const d9d_sim_chip *chip;
    d9d_mesh_search_result *item; /* [n], in the arena: what fits, most tokens an hour first */
    size_t n;
    int64_t meshes, planned; /* that the model and the batch allow; plans made */
} d9d_mesh_search_results;

/* ECONFIG where no mesh of so many ranks can be, or none fits: with the least that one needs.  It
 * can take minutes, of which the log hears. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_search(const d9d_train_config *config,
                                                const d9d_plan_opts *how, int64_t ranks,
                                                const d9d_log *log, d9d_arena *a,
                                                d9d_mesh_search_results *out);

/* The first `max_n`, for people, appended; all of them as d9d.suggest.v1. */
D9D_API D9D_MUST_USE d9d_status d9d_mesh_search_print(const d9d_mesh_search_results *s,
                                                      size_t max_n, d9d_buf *out);
D9D_API json_t *d9d_mesh_search_json(const d9d_mesh_search_results *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLAN_MESH_SEARCH_H */
