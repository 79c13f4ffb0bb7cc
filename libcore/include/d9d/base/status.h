/* status.h - status codes and the per-thread error record.
 *
 * Every fallible d9d function returns d9d_status and nothing else; outputs come
 * last and are set only on success.  The first function that knows what is wrong
 * records one whole sentence with D9D_FAIL(), naming the object and the numbers;
 * every caller above forwards the code with D9D_TRY() and adds no text.  Only
 * main() in tools/ prints the record, and only main() exits.
 *
 *     d9d_status d9d_index_open(d9d_index **out, const char *path)
 *     {
 *         d9d_index *ix = NULL;
 *         d9d_status st;
 *
 *         D9D_TRY_OR(st, index_alloc(&ix), out);
 *         D9D_TRY_OR(st, index_map(ix, path), out);
 *         *out = ix;
 *         ix = NULL;                    // moved to the caller
 *     out:
 *         d9d_index_free(ix);           // NULL is fine
 *         return st;
 *     }
 *
 * A worker thread that fails hands its record to the thread that waits for it
 * with d9d_err_save() and d9d_err_restore(); d9d_thread_run() does so.
 */
#ifndef D9D_BASE_STATUS_H
#define D9D_BASE_STATUS_H

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One list feeds the enum, the names, the texts and the exit codes.  Values are
 * part of the ABI: append, never renumber.  The exit code is 2 where retrying
 * cannot help because the request itself is wrong, 75 where the same command goes on, 76
 * where a machine is suspect: retry on others. */
#define D9D_STATUS_MAP(X)                                                                          \
    X(OK, 0, 0, "success")                                                                         \
    X(EINVAL, -1, 1, "invalid argument")                                                           \
    X(ENOMEM, -2, 1, "out of host memory")                                                         \
    X(EOOM, -3, 1, "out of device memory")                                                         \
    X(EIO, -4, 1, "input/output error")                                                            \
    X(EFORMAT, -5, 1, "malformed data")                                                            \
    X(ENOTFOUND, -6, 2, "not found")                                                               \
    X(ECONFIG, -7, 2, "invalid configuration")                                                     \
    X(ECUDA, -8, 1, "CUDA error")                                                                  \
    X(ECOMM, -9, 1, "communication error")                                                         \
    X(ETIMEOUT, -10, 1, "timed out")                                                               \
    X(EINTR, -11, 75, "interrupted")                                                               \
    X(ENOTSUP, -12, 2, "not supported")                                                            \
    X(EMISMATCH, -13, 2, "does not match")                                                         \
    X(ENUMERIC, -14, 1, "non-finite number")                                                       \
    X(EVERIFY, -15, 1, "verification failed")                                                      \
    X(EPATH, -16, 2, "unusable path")                                                              \
    X(ECORRUPT, -17, 76, "silent data corruption")

typedef enum d9d_status {
#define X(name, value, exit_code, text) D9D_##name = (value),
    D9D_STATUS_MAP(X)
#undef X
} d9d_status;

/* Static strings, never NULL: "D9D_EIO" and "input/output error". */
D9D_API const char *d9d_status_name(d9d_status st);
D9D_API const char *d9d_status_text(d9d_status st);

/* The exit code of a tool that ends with `st`: 0, 1, 2, 75 or 76. */
D9D_API int d9d_status_exit_code(d9d_status st);

/* The sentence of the last failure on this thread, or "".  Borrowed: valid until
 * the next D9D_FAIL() on the same thread. */
D9D_API const char *d9d_err_message(void);

/* One line per D9D_TRY() that the failure passed through, innermost first.  Empty
 * unless D9D_DEBUG is set in the environment.  Borrowed, as above. */
D9D_API const char *d9d_err_trace(void);

/* Carry a failure from one thread to another.  `text` receives the sentence, cut
 * to fit; d9d_err_restore() makes it this thread's record and returns `st`. */
typedef struct d9d_err_copy {
    d9d_status st;
    char text[2048];
} d9d_err_copy;
D9D_API void d9d_err_save(d9d_err_copy *copy, d9d_status st);
D9D_API d9d_status d9d_err_restore(const d9d_err_copy *copy);

/* Implementation of the macros below. */
D9D_API d9d_status d9d_err_set(d9d_status st, const char *file, int line, const char *fmt, ...)
    D9D_PRINTF(4, 5);
D9D_API d9d_status d9d_err_pass(d9d_status st, const char *file, int line);

#ifdef __clang_analyzer__ /* which must see that the status given is the status returned */
#define D9D_FAIL(st, ...) ((void)d9d_err_set((st), __FILE__, __LINE__, __VA_ARGS__), (st))
#define D9D_PASS(st)      ((void)d9d_err_pass((st), __FILE__, __LINE__), (st))
#else
#define D9D_FAIL(st, ...) d9d_err_set((st), __FILE__, __LINE__, __VA_ARGS__)
#define D9D_PASS(st)      d9d_err_pass((st), __FILE__, __LINE__)
#endif

#define D9D_TRY(expr)                                                                              \
    do {                                                                                           \
        d9d_status try_st_ = (expr);                                                               \
        if (try_st_ != D9D_OK)                                                                     \
            return D9D_PASS(try_st_);                                                              \
    } while (0)

#define D9D_TRY_OR(st, expr, label)                                                                \
    do {                                                                                           \
        (st) = (expr);                                                                             \
        if ((st) != D9D_OK) {                                                                      \
            (void)D9D_PASS(st);                                                                    \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_STATUS_H */
