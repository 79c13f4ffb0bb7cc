/* text_format.h - formatting of text for people: log lines and error messages. */
#ifndef D9DI_BASE_TEXT_FORMAT_H
#define D9DI_BASE_TEXT_FORMAT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "d9d/base/export.h"

/* As vsnprintf in the "C" locale, with three differences.  If the text does not fit, its middle
 * becomes "..." and no UTF-8 sequence is split.  Control characters, newlines too, become "?",
 * because file names may contain escape sequences.  False, with `out` empty, if `fmt` cannot be
 * formatted.  size is at least 8. */
bool d9di_text_vformat(char *out, size_t size, const char *fmt, va_list ap) D9D_PRINTF(3, 0);

#endif /* D9DI_BASE_TEXT_FORMAT_H */
