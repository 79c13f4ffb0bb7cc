/* sanitize_text.h - text from files, made fit to be shown: no escape sequences, no broken UTF-8. */
#ifndef D9DI_METRIC_SANITIZE_TEXT_H
#define D9DI_METRIC_SANITIZE_TEXT_H

#include "d9d/base/mem.h"

/* Append `text` with U+FFFD for control characters and for bytes that are no UTF-8. */
d9d_status d9di_plain_put(d9d_buf *out, const char *text);

/* Columns of a terminal that it takes then. */
int d9di_plain_width(const char *text);

#endif /* D9DI_METRIC_SANITIZE_TEXT_H */
