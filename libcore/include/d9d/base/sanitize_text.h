/* sanitize_text.h - text from files, made fit to be shown: no escape sequences, no broken UTF-8. */
#ifndef D9D_BASE_SANITIZE_TEXT_H
#define D9D_BASE_SANITIZE_TEXT_H

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Append `text` with U+FFFD for control characters and for bytes that are no UTF-8. */
D9D_API D9D_MUST_USE d9d_status d9d_text_sanitize(d9d_buf *out, const char *text);

/* Columns of a terminal that it takes then. */
D9D_API int d9d_text_width(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_SANITIZE_TEXT_H */
