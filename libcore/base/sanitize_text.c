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

size_t d9d_text_broken_length(const char *s, size_t n)
{
    static const struct {
        unsigned char first, last, min, max; /* lead bytes, and the bytes that may follow them */
        size_t most;                         /* without the last byte of the character */
    } leads[] = {{0xe0, 0xe0, 0xa0, 0xbf, 2}, {0xe1, 0xec, 0x80, 0xbf, 2},
                 {0xed, 0xed, 0x80, 0x9f, 2}, {0xee, 0xef, 0x80, 0xbf, 2},
                 {0xf0, 0xf0, 0x90, 0xbf, 3}, {0xf1, 0xf3, 0x80, 0xbf, 3},
                 {0xf4, 0xf4, 0x80, 0x8f, 3}};
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 1;

    for (size_t k = 0; k < sizeof(leads) / sizeof(leads[0]); k++)
        if (p[0] >= leads[k].first && p[0] <= leads[k].last && n > 1 && p[1] >= leads[k].min &&
            p[1] <= leads[k].max)
            for (i = 2; i < leads[k].most && i < n && (p[i] & 0xc0) == 0x80;)
                i++;
    return i;
}

d9d_status d9d_text_repair(d9d_buf *out, const char *text, size_t n)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;

    for (size_t i = 0; i < n;) {
        utf8proc_int32_t code;
        const utf8proc_ssize_t step = utf8proc_iterate(p + i, (utf8proc_ssize_t)(n - i), &code);
        const bool whole = step > 0 && code != 0;

        D9D_TRY(d9d_buf_append(out, whole ? text + i : replacement,
                               whole ? (size_t)step : sizeof(replacement) - 1));
        i += whole ? (size_t)step : d9d_text_broken_length(text + i, n - i);
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
