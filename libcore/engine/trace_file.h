/* trace_file.h - a trace on its way to its file, by a thread: no step waits for a file system. */
#ifndef D9DI_ENGINE_TRACE_FILE_H
#define D9DI_ENGINE_TRACE_FILE_H

#include "d9d/base/log.h"
#include "d9d/base/mem.h"

typedef struct d9di_trace_file d9di_trace_file;

/* Takes `text`, which goes to DIR/rank-N.json, and `top`, which the log says when it is there.
 * What cannot be written is a warning.  Before the next one begins, the last has ended. */
d9d_status d9di_trace_file_begin(const char *dir, int rank, d9d_buf *text, d9d_buf *top,
                                 const d9d_log *log, d9di_trace_file **out);
/* Waits until it is written, until ten seconds after it began at most.  False: it is not; NULL is.
 * Where it is, *f becomes NULL. */
bool d9di_trace_file_end(d9di_trace_file **f);
/* The same at the end of a run: what is not written by then is left to the thread, with a warning.
 */
void d9di_trace_file_detach(d9di_trace_file *f);

#endif /* D9DI_ENGINE_TRACE_FILE_H */
