/* text_format.h - one way to format what people read. */
#ifndef D9DI_BASE_TEXT_FORMAT_H
#define D9DI_BASE_TEXT_FORMAT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "d9d/base/export.h"

/* As vsnprintf of the locale "C", and: of text that does not fit the middle is "...", and
 * no UTF-8 sequence is cut; control characters become "?", newlines too, for names come from files:
 * escape sequences stay off the terminal, and no name makes a line of its own.  False when `fmt`
 * cannot be formatted; `out` is then empty.  size is at least 8. */
bool d9di_text_vformat(char *out, size_t size, const char *fmt, va_list ap) D9D_PRINTF(3, 0);

#endif /* D9DI_BASE_TEXT_FORMAT_H */
