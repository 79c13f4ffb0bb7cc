/* sanitize_text.h - text from files made safe to print: no escape sequences, no invalid UTF-8. */
#ifndef D9D_BASE_SANITIZE_TEXT_H
#define D9D_BASE_SANITIZE_TEXT_H

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Append `text` with U+FFFD for control characters and for bytes that are not UTF-8. */
D9D_API D9D_MUST_USE d9d_status d9d_text_sanitize(d9d_buf *out, const char *text);

/* Append text [n] with U+FFFD for what is not UTF-8, one for the beginning of a character that does
 * not end, and for each zero byte: `out` is a string of C.  ENOMEM. */
D9D_API D9D_MUST_USE d9d_status d9d_text_repair(d9d_buf *out, const char *text, size_t n);

/* Bytes at the start of text [n], n > 0, where no whole character is, that one U+FFFD stands for:
 * as many as might begin a character ("maximal subpart", Unicode 3.9), one at least. */
D9D_API size_t d9d_text_broken_length(const char *text, size_t n);

/* Terminal columns of the sanitised text. */
D9D_API int d9d_text_width(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_SANITIZE_TEXT_H */
