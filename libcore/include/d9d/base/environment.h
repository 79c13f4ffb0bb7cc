/* environment.h - variables that a site exports for other programs, and that change what this one
 * does: one table of them, and what is done about each.
 *
 *     d9d_environment env;
 *     d9d_environment_read(D9D_ENVIRONMENT_GPU, getenv, &env); // looks, and changes nothing
 *     D9D_TRY(d9d_environment_check(&env));                    // a value that cannot be used
 *     d9d_environment_apply(&env);                             // before the library reads them
 *     d9d_environment_log(&env, D9D_ENVIRONMENT_GPU, log);     // one line each
 *
 * Variables that are fine, or not set, are not in the list.
 */
#ifndef D9D_BASE_ENVIRONMENT_H
#define D9D_BASE_ENVIRONMENT_H

#include <stddef.h>

#include "d9d/base/log.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who reads a variable: a set of these. */
enum {
    D9D_ENVIRONMENT_PROCESS = 1, /* the threads of every program */
    D9D_ENVIRONMENT_GPU = 2,     /* the driver, and NVIDIA's libraries of arithmetic */
    D9D_ENVIRONMENT_NO_GPU = 4,  /* a process that finds no GPU where it would take one */
    D9D_ENVIRONMENT_NCCL = 8,
    D9D_ENVIRONMENT_MPI = 16,
    D9D_ENVIRONMENT_RANKS = 32, /* jobs of several ranks */
};

typedef enum d9d_environment_action {
    D9D_ENVIRONMENT_KEPT,    /* it stays, and what it does is said */
    D9D_ENVIRONMENT_CHANGED, /* it gets `value`; said where something else was there */
    D9D_ENVIRONMENT_REFUSED  /* nothing begins */
} d9d_environment_action;

typedef struct d9d_environment_var {
    unsigned use;
    d9d_environment_action action;
    const char *name;
    char value[32];
    char text[384]; /* what is said; "" : nothing */
} d9d_environment_var;

typedef struct d9d_environment {
    d9d_environment_var vars[24];
    size_t n;
} d9d_environment;

/* Rulings on the variables of `uses`, in the order of the table.  `get` is getenv(), or a test's.
 */
D9D_API void d9d_environment_read(unsigned uses, char *(*get)(const char *name),
                                  d9d_environment *out);
/* ECONFIG with the first that is refused. */
D9D_API D9D_MUST_USE d9d_status d9d_environment_check(const d9d_environment *e);
/* Set those that change.  Not thread-safe, as setenv() is not. */
D9D_API void d9d_environment_apply(const d9d_environment *e);
/* A line, a warning, for each of `uses` that is kept or changed and has something to say. */
D9D_API void d9d_environment_log(const d9d_environment *e, unsigned uses, const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_ENVIRONMENT_H */
