/* log.h - log lines, and progress of long work.
 *
 * The library prints nothing by itself.  A d9d_log says where lines go: the tools pass one that
 * writes to stderr, tests pass NULL or one that records.  NULL is a silent log everywhere.
 *
 *     d9d_log_info(log, "sharding %zu files", n);
 *
 *     d9d_progress p;
 *     d9d_progress_start(&p, log, "map", "B", total_bytes);
 *     ... d9d_progress_add(&p, n); ...        // from one thread
 *     d9d_progress_end(&p);
 *
 * On a terminal, progress is one line that is redrawn at most ten times a second.  Anywhere else it
 * is a plain line every `every_s` seconds (30 by default), so that a Slurm log stays readable.  A
 * line has done/total, rate and time left.
 */
#ifndef D9D_BASE_LOG_H
#define D9D_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_log_level {
    D9D_LOG_ERROR,
    D9D_LOG_WARN,
    D9D_LOG_INFO,
    D9D_LOG_DEBUG
} d9d_log_level;

typedef struct d9d_log {
    /* Write one line, without its newline.  May be called from any thread. */
    void (*line)(void *arg, d9d_log_level level, const char *text);
    /* Redraw the status line; "" clears it.  NULL where there is no terminal. */
    void (*status)(void *arg, const char *text);
    void *arg;
    d9d_log_level level; /* lines above it are dropped */
    double every_s;      /* seconds between progress lines without a terminal; 0 means 30 */
} d9d_log;

D9D_API void d9d_log_write(const d9d_log *log, d9d_log_level level, const char *fmt, ...)
    D9D_PRINTF(3, 4);

#define d9d_log_warn(log, ...)  d9d_log_write((log), D9D_LOG_WARN, __VA_ARGS__)
#define d9d_log_info(log, ...)  d9d_log_write((log), D9D_LOG_INFO, __VA_ARGS__)
#define d9d_log_debug(log, ...) d9d_log_write((log), D9D_LOG_DEBUG, __VA_ARGS__)

typedef struct d9d_progress {
    const d9d_log *log;
    const char *label;           /* borrowed: "map", "train" */
    const char *unit;            /* borrowed: "B" is scaled to kB, MB, GB; else shown as it is */
    uint64_t done, total, first; /* total 0: unknown; first: done at the start (a resume) */
    int64_t start_ns, last_ns;
    char note[96]; /* appended to the line: "loss 2.31" */
} d9d_progress;

D9D_API void d9d_progress_start(d9d_progress *p, const d9d_log *log, const char *what,
                                const char *unit, uint64_t total);
D9D_API void d9d_progress_add(d9d_progress *p, uint64_t n);
D9D_API void d9d_progress_note(d9d_progress *p, const char *fmt, ...) D9D_PRINTF(2, 3);
/* Log the line now where there is no terminal. */
D9D_API void d9d_progress_show(d9d_progress *p);
/* Clear the line; log the total and the mean rate, unless nothing was done. */
D9D_API void d9d_progress_end(d9d_progress *p);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_LOG_H */
