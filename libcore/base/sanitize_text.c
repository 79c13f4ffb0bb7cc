/* sanitize_text.c - text from files made safe to print.  See d9d/base/sanitize_text.h. */
#include "d9d/base/sanitize_text.h"

#include <utf8proc.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Bytes of the character at p, or 0 for one that is replaced; *width is its columns. */
static size_t decode_char(const utf8proc_uint8_t *p, int *width)
{
    utf8proc_int32_t code;
    const utf8proc_ssize_t n = utf8proc_iterate(p, -1, &code);

    *width = 1;
    if (n <= 0 || code < 0x20 || (code >= 0x7f && code < 0xa0))
        return 0;
    *width = utf8proc_charwidth(code);
    return (size_t)n;
}

d9d_status d9d_text_sanitize(d9d_buf *out, const char *text)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    int width;

    while (*p != '\0') {
        const size_t n = decode_char(p, &width);

        if (n > 0)
            D9D_TRY(d9d_buf_append(out, p, n));
        else
            D9D_TRY(d9d_buf_append(out, replacement, sizeof(replacement) - 1));
        p += n > 0 ? n : 1;
    }
    return D9D_OK;
}

int d9d_text_width(const char *text)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    int sum = 0, width;

    while (*p != '\0') {
        const size_t n = decode_char(p, &width);

        sum += width;
        p += n > 0 ? n : 1;
    }
    return sum;
}
