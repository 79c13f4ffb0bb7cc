/* step_lines.h - a file of JSON lines of steps, in their order: opened again, it ends with the last
 * step that counts.
 *
 *     {"step": 12, ...}
 */
#ifndef D9DI_TRAIN_STEP_LINES_H
#define D9DI_TRAIN_STEP_LINES_H

#include "d9d/base/writer.h"

#define D9DI_STEP_LINES_PREFIX "{\"step\": " /* of each line */

/* What is looked for in the lines that stay, from the last one backwards over at most `steps`
 * steps: the text from `begin` to `end`, which is appended to `out`. */
typedef struct d9di_step_lines_tail {
    const char *begin, *end;
    int64_t steps;
    d9d_buf *out;
} d9di_step_lines_tail;

/* Opens the file, truncated after the lines of step `done`; creates it if necessary.  A thread
 * writes it.  part NULL: nothing is looked for. */
d9d_status d9di_step_lines_open(const char *path, int64_t done, const d9d_log *log,
                                const d9di_step_lines_tail *part, d9d_writer **out);

#endif /* D9DI_TRAIN_STEP_LINES_H */
