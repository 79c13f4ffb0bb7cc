/* text_precision.h - "%.64s" that ends at a UTF-8 character. */
#ifndef D9DI_BASE_TEXT_PRECISION_H
#define D9DI_BASE_TEXT_PRECISION_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the longest prefix of a text that has at most n bytes and ends at a UTF-8 character;
 * byte n is not read. */
size_t d9di_text_prefix(const char *text, size_t n);
/* Copies a format of vsnprintf(), with precisions that would divide a character made smaller.
 * False, with `out` undefined, if it has no precision of a string, or a conversion that is not
 * known, or does not fit.  `ap` stays as it is. */
bool d9di_text_fit_precisions(const char *fmt, va_list ap, char *out, size_t size);

#endif /* D9DI_BASE_TEXT_PRECISION_H */
