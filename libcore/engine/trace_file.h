/* trace_file.h - writes a trace in a thread, so that no step waits for the file system. */
#ifndef D9DI_ENGINE_TRACE_FILE_H
#define D9DI_ENGINE_TRACE_FILE_H

#include "d9d/base/log.h"
#include "d9d/base/mem.h"

typedef struct d9di_trace_file d9di_trace_file;

/* Takes `text`, which is written to DIR/rank-N.json, and `top`, which is logged afterwards.  A
 * write error is a warning.  The previous trace must have ended. */
d9d_status d9di_trace_file_begin(const char *dir, int rank, d9d_buf *text, d9d_buf *top,
                                 const d9d_log *log, d9di_trace_file **out);
/* Waits for the writer, until at most ten seconds after its start.  False if it has not finished;
 * true, with *f set to NULL, if it has.  A NULL *f is fine. */
bool d9di_trace_file_end(d9di_trace_file **f);
/* At the end of a run: as d9di_trace_file_end(), but an unfinished trace is left to the thread,
 * with a warning.
 */
void d9di_trace_file_detach(d9di_trace_file *f);

#endif /* D9DI_ENGINE_TRACE_FILE_H */
