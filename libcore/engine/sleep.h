/* sleep.h - a job that yields its devices to other jobs, and resumes, between two steps.
 *
 *     D9D_TRY(d9di_sleep_begin(&opts));     // all tensors to the host, process groups closed
 *     D9D_TRY(d9di_sleep_wait(&opts));      // until rank 0 gets SIGUSR2, or is asked to exit
 *     D9D_TRY(d9di_sleep_end(&opts));       // everything restored, bit for bit
 *
 * Tensors keep their identity and change their address.  Only the driver's context stays on a GPU.
 * The host needs memory for what the device held: EOOM otherwise, and nothing has moved.  If the
 * device has too little memory at wake-up, the job fails; its checkpoints are valid.
 *
 * Collective over the job. */
#ifndef D9DI_ENGINE_SLEEP_H
#define D9DI_ENGINE_SLEEP_H

#include "d9d/comm/mesh.h"
#include "d9d/job/preemption.h"
#include "d9d/tensor/tensor.h"

typedef struct d9di_sleep_opts {
    d9d_device *dev;
    d9d_mesh *mesh;
    d9d_bootstrap *bootstrap;
    d9d_preemption *preemption;
    const d9d_log *log;
} d9di_sleep_opts;

d9d_status d9di_sleep_begin(const d9di_sleep_opts *opts);
d9d_status d9di_sleep_wait(const d9di_sleep_opts *opts);
d9d_status d9di_sleep_end(const d9di_sleep_opts *opts);

#endif /* D9DI_ENGINE_SLEEP_H */
