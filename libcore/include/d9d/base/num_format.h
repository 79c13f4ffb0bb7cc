/* num_format.h - numbers formatted and parsed with a "." whatever the process's locale is.
 *
 * The tools leave LC_NUMERIC alone; a plugin, or a program that links the library, may not.
 * d9d_buf_printf(), d9d_arena_printf() and the messages of D9D_FAIL() use the "C" locale already.
 */
#ifndef D9D_BASE_NUM_FORMAT_H
#define D9D_BASE_NUM_FORMAT_H

#include <stdarg.h>
#include <stddef.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* vsnprintf, snprintf and strtod in the "C" locale.  A precision of strings ("%.64s", "%.*s")
 * ends at a UTF-8 character, where one byte more would divide it. */
D9D_API int d9d_num_vformat(char *out, size_t size, const char *fmt, va_list ap) D9D_PRINTF(3, 0);
D9D_API int d9d_num_format(char *out, size_t size, const char *fmt, ...) D9D_PRINTF(3, 4);
D9D_API double d9d_num_parse(const char *text, char **end);

/* The end of a noun behind a count, "%d rank%s": "s", but of one nothing. */
#define D9D_PLURAL(n) ((n) == 1 ? "" : "s")

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_NUM_FORMAT_H */
