/* line_reader.h - the lines of a file in turn, however long the file is. */
#ifndef D9DI_REPORT_LINE_READER_H
#define D9DI_REPORT_LINE_READER_H

#include <stdbool.h>

#include "d9d/base/mem.h"

/* One line without its end; *enough ends it.  A last one that has no end is none. */
typedef d9d_status (*d9di_line_reader_fn)(void *arg, const d9d_buf *line, int64_t number,
                                          bool *enough);

d9d_status d9di_line_reader_read(const char *path, d9di_line_reader_fn fn, void *arg);

/* What is behind `begin` at the beginning of a line, as a number; -1: it begins otherwise. */
int64_t d9di_line_reader_number_after(const d9d_buf *line, const char *begin);

#endif /* D9DI_REPORT_LINE_READER_H */
