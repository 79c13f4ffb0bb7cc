/* job_start.h - how a job starts on its ranks, and what they tell each other. */
#ifndef D9DI_ENGINE_JOB_START_H
#define D9DI_ENGINE_JOB_START_H

#include "d9d/comm/mesh.h"
#include "d9d/device/device.h"
#include "d9d/tasks/plugin.h"
#include "tasks/tasks.h"

/* What returns when the work has begun: a path that was good and is so no longer is no mistake of
 * whoever named it, and trying again may help: EIO with the same sentence. */
d9d_status d9di_job_start_runtime_status(d9d_status st);

/* What those hear who are subscribed: the model's provider, the task (or NULL), the plugins. */
d9d_status d9di_job_start_open_events(const d9d_job *where, const d9d_union *model,
                                      const d9di_task *task, d9d_job_events **out);

/* What opening the device says of the word; in an imagined job it names a chip
 * (d9d/device/simulated.h). */
d9d_status d9di_job_start_check_device(const d9d_bootstrap *boot, const char *which);

/* Collective: over the job.  This rank's device: where several ranks share a node, "auto" and
 * "cuda" are one GPU each.  ECONFIG, on all ranks, where two have one GPU, or one has none and
 * others have. */
d9d_status d9di_job_start_open_device(d9d_bootstrap *boot, const char *which, d9d_device **out);

/* Of it, what each rank says of its device. */
typedef struct d9di_job_start_device_id {
    char kind[16], id[33];
} d9di_job_start_device_id;
d9d_status d9di_job_start_check_distinct(const d9di_job_start_device_id *all, int rank);

/* A failure of this rank alone says which rank it is, "rank 3 of 8 (n1, dps 1 tp 1): ...", and
 * waits for no other when the mesh (or NULL) is closed. */
d9d_status d9di_job_start_fail_rank(d9d_bootstrap *boot, d9d_mesh *mesh, d9d_status st);

/* Where several ranks that write this file are recorded, "OUTPUT.flight", in the arena; NULL for
 * one rank, and without a file. */
d9d_status d9di_job_start_flight_dir(const d9d_bootstrap *boot, const char *output, d9d_arena *a,
                                     const char **out);
/* All went well: records go, and the last rank takes the directory along. */
void d9di_job_start_remove_flight_dir(const d9d_bootstrap *boot, const char *output);

#endif /* D9DI_ENGINE_JOB_START_H */
