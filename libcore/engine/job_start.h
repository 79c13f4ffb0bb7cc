/* job_start.h - starting a job on its ranks: devices, event handlers, flight recorder. */
#ifndef D9DI_ENGINE_JOB_START_H
#define D9DI_ENGINE_JOB_START_H

#include "d9d/comm/mesh.h"
#include "d9d/device/device.h"
#include "d9d/tasks/plugin.h"
#include "tasks/tasks.h"

/* Converts an error that occurs after the job has started.  A path that was valid at the start and
 * no longer is becomes EIO with the same message: a retry may help, and the configuration is not at
 * fault. */
d9d_status d9di_job_start_runtime_status(d9d_status st);

/* Subscribes the model provider's handlers, the task's (NULL: none), then the plugins'.  The arena
 * outlives the events: it may have the section that the provider's handlers get. */
d9d_status d9di_job_start_open_events(const d9d_job *where, const d9d_union *model,
                                      const d9di_task *task, d9d_arena *a, d9d_job_events **out);

/* Checks the device name, as opening the device would; in a simulated job it names a chip
 * (d9d/device/simulated.h). */
d9d_status d9di_job_start_check_device(const d9d_bootstrap *bootstrap, const char *which);

/* Opens this rank's device: with several ranks per node, "auto" and "cuda" assign one GPU each.
 * ECONFIG, on all ranks, if two ranks have the same GPU, or if only some ranks have a GPU.
 * Collective over the job. */
d9d_status d9di_job_start_open_device(d9d_bootstrap *bootstrap, const char *which,
                                      d9d_device **out);

/* Identifies a rank's device. */
typedef struct d9di_job_start_device_id {
    char kind[16], id[33];
} d9di_job_start_device_id;
d9d_status d9di_job_start_check_distinct(const d9di_job_start_device_id *all, int rank);

/* Prefixes this rank's failure with the rank, "rank 3 of 8 (n1, dps 1 tp 1): ...".  Closing the
 * mesh (or NULL) then waits for no other rank. */
d9d_status d9di_job_start_fail_rank(d9d_bootstrap *bootstrap, d9d_mesh *mesh, d9d_status st);

/* The flight recorder's directory for several ranks, "OUTPUT.flight", in the arena; NULL for one
 * rank, and without an output file. */
d9d_status d9di_job_start_flight_dir(const d9d_bootstrap *bootstrap, const char *output,
                                     d9d_arena *a, const char **out);
/* After success: removes the rank's recording, and the last rank removes the directory. */
void d9di_job_start_remove_flight_dir(const d9d_bootstrap *bootstrap, const char *output);

#endif /* D9DI_ENGINE_JOB_START_H */
