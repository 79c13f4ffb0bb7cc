/* run_dir.h - the run directory: its paths and its manifest. */
#ifndef D9DI_JOB_RUN_DIR_H
#define D9DI_JOB_RUN_DIR_H

#include "d9d/base/fs.h"
#include "d9d/job/job.h"

#define D9DI_RUN_DIR_SCHEMA "d9d.run.v1" /* of manifest.json */
enum { D9DI_RUN_DIR_ID_SIZE = 33 };

typedef struct d9di_run_dir {
    /* In the arena. */
    const char *path, *checkpoints, *metrics, *samples, *completions, *flight, *export, *adapter;
    const char *config, *manifest, *events; /* config.json, manifest.json, tensorboard/ */
} d9di_run_dir;

/* Sets the paths only; creates nothing. */
d9d_status d9di_run_dir_set_paths(const d9d_job_trainer_section *t, d9d_arena *a,
                                  d9di_run_dir *out);
/* ECONFIG if the checkpoints, traces or exported model of a run would overwrite each other. */
d9d_status d9di_run_dir_check(const d9d_train_config *c, const d9di_run_dir *r);
/* Refuses to overwrite foreign files.  ECONFIG if a file under one of the names below is not from a
 * run; EPATH if it is a link or no regular file:
 *
 *     name                         written by              accepted content
 *     manifest.json, config.json   rank 0, each start      JSON with the schema, with a model
 *     metrics.jsonl                rank 0, appended        empty, or a line that is a record
 *     samples.jsonl                rank 0, appended        empty, or a line of a step's samples
 *     completions.jsonl            rank 0, appended        empty, or a line of a completion
 *     flight/rank-N.bin            each rank, each start   a flight recorder's ring
 *     checkpoints/step-N           each rank               d9d/checkpointer/checkpointer.h
 *     export/, adapter/            rank 0 at the end       refused if they are not empty
 *     tensorboard/N.d9d            rank 0, one per start   by name
 *
 * manifest.json and config.json are checked only if the directory has no records of a run. */
d9d_status d9di_run_dir_check_foreign(const d9di_run_dir *r);
/* Creates the directory, and writes config.json and manifest.json (d9d.run.v1), which lists
 * `hosts`. `id` is read from an existing manifest, or else set to 32 random hex digits. */
d9d_status d9di_run_dir_create(const d9di_run_dir *r, const d9d_job_run_section *run,
                               const json_t *resolved, const json_t *hosts, int64_t restarts,
                               char id[D9DI_RUN_DIR_ID_SIZE]);

/* Creates the checkpoint directory, and locks "CHECKPOINTS/.lock-run" until the file is released:
 * EIO if another process holds it.  Two runs that write into one directory at a time would remove
 * each other's checkpoints. */
d9d_status d9di_run_dir_lock_checkpoints(const d9di_run_dir *r, d9d_file *out);

/* Reads the id that the last start wrote; "" if there was none. */
d9d_status d9di_run_dir_read_id(const d9di_run_dir *r, char id[D9DI_RUN_DIR_ID_SIZE]);

/* Watches the identity of the directory.  check() is EIO once the directory was removed or renamed:
 * writes to its open files would succeed, but nobody would find them. */
typedef struct d9di_run_dir_watch d9di_run_dir_watch;
d9d_status d9di_run_dir_watch_open(const char *path, d9di_run_dir_watch **out);
d9d_status d9di_run_dir_watch_check(void *held);
void d9di_run_dir_watch_free(void *held);

/* Writes a small file of this rank into the checkpoint directory, "CHECKPOINTS/.rank-N", which
 * holds the id.  It finds out early if the rank cannot write there. */
d9d_status d9di_run_dir_write_rank_file(const d9di_run_dir *r, int rank, const char *id);
void d9di_run_dir_remove_rank_file(const d9di_run_dir *r, int rank);

/* On another rank, after rank 0 has created the directory: ECONFIG unless it and its checkpoint
 * directory, which may be elsewhere, have rank 0's file with this id.  Waits a few seconds for a
 * network file system to show them. */
d9d_status d9di_run_dir_check_id(const d9di_run_dir *r, const char *id);

#endif /* D9DI_JOB_RUN_DIR_H */
