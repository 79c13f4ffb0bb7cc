/* text_precision.h - "%.64s" and "%.*s" that end at a UTF-8 character. */
#ifndef D9DI_BASE_TEXT_PRECISION_H
#define D9DI_BASE_TEXT_PRECISION_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "d9d/base/export.h"

/* Bytes of the longest prefix of a text that has at most n bytes and ends at a UTF-8 character;
 * byte n is not read. */
size_t d9di_text_prefix(const char *text, size_t n);
/* As vsnprintf(), which *n returns, with precisions of strings that would divide a character made
 * smaller.  False, with `out` undefined, if the format has no such precision, or a conversion that
 * is not known, or is too long.  `ap` stays as it is. */
bool d9di_text_vprint(char *out, size_t size, const char *fmt, va_list ap, int *n) D9D_PRINTF(3, 0);

#endif /* D9DI_BASE_TEXT_PRECISION_H */
