/* launch.h - how many ranks the launcher started. */
#ifndef D9DI_LOOP_LAUNCH_H
#define D9DI_LOOP_LAUNCH_H

#include <stdint.h>

/* Tasks of the Slurm step or of the mpirun that this process is part of; 1 without either. */
int64_t d9di_launch_ranks(void);

#endif /* D9DI_LOOP_LAUNCH_H */
