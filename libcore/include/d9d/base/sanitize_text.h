/* sanitize_text.h - text from files made safe to print: no escape sequences, no invalid UTF-8. */
#ifndef D9D_BASE_SANITIZE_TEXT_H
#define D9D_BASE_SANITIZE_TEXT_H

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Append `text` with U+FFFD for control characters and for bytes that are not UTF-8. */
D9D_API D9D_MUST_USE d9d_status d9d_text_sanitize(d9d_buf *out, const char *text);

/* Terminal columns of the sanitised text. */
D9D_API int d9d_text_width(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_SANITIZE_TEXT_H */
