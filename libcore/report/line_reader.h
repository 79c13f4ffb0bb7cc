/* line_reader.h - reads a file of any length line by line. */
#ifndef D9DI_REPORT_LINE_READER_H
#define D9DI_REPORT_LINE_READER_H

#include <stdbool.h>

#include "d9d/base/mem.h"

/* Called with one line without its newline; set *enough to stop.  A last line without a newline is
 * not passed. */
typedef d9d_status (*d9di_line_reader_fn)(void *arg, const d9d_buf *line, int64_t number,
                                          bool *enough);

d9d_status d9di_line_reader_read(const char *path, d9di_line_reader_fn fn, void *arg);

/* The number that follows `begin` at the start of a line; -1 if the line starts differently. */
int64_t d9di_line_reader_number_after(const d9d_buf *line, const char *begin);

#endif /* D9DI_REPORT_LINE_READER_H */
