/* launch.h - how a job starts. */
#ifndef D9DI_LOOP_LAUNCH_H
#define D9DI_LOOP_LAUNCH_H

#include "d9d/base/status.h"

/* What the checks of a configuration return: a file that it names and that is not there is a
 * mistake in the configuration, ECONFIG with the same sentence. */
d9d_status d9di_launch_checked(d9d_status st);

#endif /* D9DI_LOOP_LAUNCH_H */
