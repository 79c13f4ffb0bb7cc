/* hex.h - bytes as hexadecimal digits, two a byte, the upper half first. */
#ifndef D9D_BASE_HEX_H
#define D9D_BASE_HEX_H

#include <stddef.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes 2 n lower-case digits and a NUL. */
D9D_API void d9d_hex_format(const void *bytes, size_t n, char *out);
/* Reads up to 2 n digits of either case into n bytes, of which the last ones stay as they are if
 * the text ends before or has another character.  Returns how many digits it has read: 2 n if all.
 */
D9D_API size_t d9d_hex_parse(const char *text, size_t n, void *bytes);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_HEX_H */
