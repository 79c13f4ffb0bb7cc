/* run_dir.h - the run directory: where it is, what describes it. */
#ifndef D9DI_JOB_RUN_DIR_H
#define D9DI_JOB_RUN_DIR_H

#include "d9d/job/job.h"

#define D9DI_RUN_DIR_SCHEMA "d9d.run.v1" /* of manifest.json */
enum { D9DI_RUN_DIR_ID_SIZE = 33 };

typedef struct d9di_run_dir {
    /* In the arena. */
    const char *path, *checkpoints, *metrics, *samples, *flight, *export, *adapter;
    const char *config, *manifest, *events; /* config.json, manifest.json, tensorboard/ */
} d9di_run_dir;

/* Names alone; nothing is made. */
d9d_status d9di_run_dir_set_paths(const d9d_job_trainer_section *t, d9d_arena *a,
                                  d9di_run_dir *out);
/* ECONFIG where checkpoints, traces or the model of a run would come into each other's way. */
d9d_status d9di_run_dir_check(const d9d_train_config *c, const d9di_run_dir *r);
/* ECONFIG where it has files of others under names that a run writes, EPATH where these are links
 * or no regular files:
 *
 *     manifest.json, config.json   rank 0, anew in each life   JSON with the schema, with a model
 *     metrics.jsonl                rank 0, appended            empty, or a line that is a record
 *     samples.jsonl                rank 0, appended            empty, or a line of a step's samples
 *     flight/rank-N.bin            each rank, anew             a ring's first word
 *     checkpoints/step-N           each rank                   d9d/checkpointer/checkpointer.h
 *     export/, adapter/            rank 0 at the end           refused where they are not empty
 *     tensorboard/N.d9d            rank 0, one a life          by name
 *
 * The first two only where the directory has no records of a run. */
d9d_status d9di_run_dir_check_foreign(const d9di_run_dir *r);
/* Make it, write config.json and manifest.json (d9d.run.v1), which lists `hosts`.  `id` is what the
 * manifest of an earlier life says, or else 32 random hex digits. */
d9d_status d9di_run_dir_create(const d9di_run_dir *r, const d9d_job_run_section *run,
                               const json_t *resolved, const json_t *hosts, int64_t restarts,
                               char id[D9DI_RUN_DIR_ID_SIZE]);

/* Remember which directory it is; from then on check() is EIO where that has been removed, or has
 * another name: its open files could be written for ever, and nobody would find them. */
typedef struct d9di_run_dir_watch d9di_run_dir_watch;
d9d_status d9di_run_dir_watch_open(const char *path, d9di_run_dir_watch **out);
d9d_status d9di_run_dir_watch_check(void *held);
void d9di_run_dir_watch_free(void *held);

/* A small file of this rank in the checkpoint directory, "CHECKPOINTS/.rank-N", which says the id:
 * what cannot be written now cannot be when a checkpoint is due. */
d9d_status d9di_run_dir_write_rank_file(const d9di_run_dir *r, int rank, const char *id);
void d9di_run_dir_remove_rank_file(const d9di_run_dir *r, int rank);

/* On another rank, when rank 0 has made it: ECONFIG unless it and its checkpoint directory, which
 * may lie elsewhere, are those with this id: rank 0 has marked it.  Waits a few seconds for a
 * network file system that does not show them yet. */
d9d_status d9di_run_dir_check_id(const d9di_run_dir *r, const char *id);

#endif /* D9DI_JOB_RUN_DIR_H */
