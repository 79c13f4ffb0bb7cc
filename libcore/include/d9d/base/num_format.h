/* num_format.h - numbers as files have them, with a ".", whatever the locale of the process is.
 *
 * The tools leave LC_NUMERIC alone; a plugin, or a program that the library is a part of, may not.
 * d9d_buf_printf(), d9d_arena_printf() and the sentences of D9D_FAIL() are such text already.
 */
#ifndef D9D_BASE_NUM_FORMAT_H
#define D9D_BASE_NUM_FORMAT_H

#include <stdarg.h>
#include <stddef.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* vsnprintf, snprintf and strtod of the locale "C". */
D9D_API int d9d_num_vformat(char *out, size_t size, const char *fmt, va_list ap) D9D_PRINTF(3, 0);
D9D_API int d9d_num_format(char *out, size_t size, const char *fmt, ...) D9D_PRINTF(3, 4);
D9D_API double d9d_num_parse(const char *text, char **end);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_NUM_FORMAT_H */
