/* launch.h - how a job starts. */
#ifndef D9DI_LOOP_LAUNCH_H
#define D9DI_LOOP_LAUNCH_H

#include <stdint.h>

#include "d9d/base/status.h"

/* Tasks of the Slurm step or of the mpirun that this process is part of; 1 without either. */
int64_t d9di_launch_ranks(void);

/* What the checks of a configuration return: a file that it names and that is not there is a
 * mistake in the configuration, ECONFIG with the same sentence. */
d9d_status d9di_launch_checked(d9d_status st);

#endif /* D9DI_LOOP_LAUNCH_H */
