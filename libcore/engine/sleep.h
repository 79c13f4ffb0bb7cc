/* sleep.h - a job that gives its devices to others and takes them back, between two steps.
 *
 *     D9D_TRY(d9di_sleep_begin(&how));      // all tensors to the host, groups closed
 *     D9D_TRY(d9di_sleep_wait(&how));    // until rank 0 has SIGUSR2, or is told to leave
 *     D9D_TRY(d9di_sleep_end(&how));        // all is where it was, bit for bit
 *
 * Every tensor keeps its identity and has another address.  What stays on a GPU is what its driver
 * needs for the process.  The host must have room for what the device had: EOOM, and then nothing
 * has moved.  Where the device has no room any more the job fails, and its checkpoints are good.
 *
 * Collective: over the job. */
#ifndef D9DI_ENGINE_SLEEP_H
#define D9DI_ENGINE_SLEEP_H

#include "d9d/comm/mesh.h"
#include "d9d/job/preemption.h"
#include "d9d/tensor/tensor.h"

typedef struct d9di_sleep_opts {
    d9d_device *dev;
    d9d_mesh *mesh;
    d9d_bootstrap *boot;
    d9d_preemption *preemption;
    const d9d_log *log;
} d9di_sleep_opts;

d9d_status d9di_sleep_begin(const d9di_sleep_opts *how);
d9d_status d9di_sleep_wait(const d9di_sleep_opts *how);
d9d_status d9di_sleep_end(const d9di_sleep_opts *how);

#endif /* D9DI_ENGINE_SLEEP_H */
