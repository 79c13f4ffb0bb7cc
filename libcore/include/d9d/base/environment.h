/* environment.h - environment variables that a site sets for other programs and that affect this
 * one: a table of them, and an action for each.
 *
 *     d9d_environment env;
 *     d9d_environment_read(D9D_ENVIRONMENT_GPU, getenv, &env); // reads, changes nothing
 *     D9D_TRY(d9d_environment_check(&env));                    // fails for an unusable value
 *     d9d_environment_apply(&env);                             // before the library reads them
 *     d9d_environment_log(&env, D9D_ENVIRONMENT_GPU, log);     // one line each
 *
 * Variables that are fine, or not set, are not listed.
 */
#ifndef D9D_BASE_ENVIRONMENT_H
#define D9D_BASE_ENVIRONMENT_H

#include <stddef.h>

#include "d9d/base/log.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What reads a variable: a bitwise OR of these. */
enum {
    D9D_ENVIRONMENT_PROCESS = 1, /* thread counts of any program */
    D9D_ENVIRONMENT_GPU = 2,     /* the CUDA driver and libraries */
    D9D_ENVIRONMENT_NO_GPU = 4,  /* a process that would use a GPU and finds none */
    D9D_ENVIRONMENT_NCCL = 8,
    D9D_ENVIRONMENT_MPI = 16,
    D9D_ENVIRONMENT_RANKS = 32,      /* jobs of several ranks */
    D9D_ENVIRONMENT_GPU_ALONE = 64,  /* the CUDA driver of a job of one rank, */
    D9D_ENVIRONMENT_GPU_RANKS = 128, /* and of one of several */
};

typedef enum d9d_environment_action {
    D9D_ENVIRONMENT_KEPT,    /* it stays; its effect is logged */
    D9D_ENVIRONMENT_CHANGED, /* it is set to `value`; logged if it had another one */
    D9D_ENVIRONMENT_REFUSED  /* an error: d9d_environment_check() fails */
} d9d_environment_action;

typedef struct d9d_environment_var {
    unsigned use;
    d9d_environment_action action;
    const char *name;
    char value[32];
    char text[384]; /* the log line; "": none */
} d9d_environment_var;

typedef struct d9d_environment {
    d9d_environment_var vars[24];
    size_t n;
} d9d_environment;

/* Read the variables of `uses`, in the order of the table, and decide on each.  `get` is getenv(),
 * or a test's.
 */
D9D_API void d9d_environment_read(unsigned uses, char *(*get)(const char *name),
                                  d9d_environment *out);
/* ECONFIG for the first variable that is refused. */
D9D_API D9D_MUST_USE d9d_status d9d_environment_check(const d9d_environment *e);
/* Set the variables that change.  Not thread-safe, as setenv() is not. */
D9D_API void d9d_environment_apply(const d9d_environment *e);
/* Log a warning for each variable of `uses` that is kept or changed and has a text. */
D9D_API void d9d_environment_log(const d9d_environment *e, unsigned uses, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_ENVIRONMENT_H */
