/* child.h - start a program. */
#ifndef D9D_BASE_CHILD_H
#define D9D_BASE_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Start args[0], which is looked for in PATH, with these descriptors as standard input and output,
 * the environment of this process and no blocked signals.  `args` ends with NULL.  own_group: it
 * leads a process group, so that kill(-pid) ends what it starts too.  Returns 0 or an errno, and
 * sets *pid only on success.  The caller waits for it. */
D9D_API int d9d_child_start(const char *const *args, int input, int output, bool own_group,
                            pid_t *pid);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_CHILD_H */
