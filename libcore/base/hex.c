/* hex.c - see d9d/base/hex.h. */
#include "d9d/base/hex.h"

void d9d_hex_format(const void *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i++) {
        *out++ = digits[p[i] >> 4];
        *out++ = digits[p[i] & 15];
    }
    *out = '\0';
}

/* -1: it is no digit. */
static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

size_t d9d_hex_parse(const char *text, size_t n, void *bytes)
{
    unsigned char *p = bytes;
    int upper = 0;

    for (size_t i = 0; i < 2 * n; i++) {
        const int d = digit_value(text[i]);

        if (d < 0)
            return i;
        if (i % 2 == 0)
            upper = d;
        else
            p[i / 2] = (unsigned char)(upper << 4 | d);
    }
    return 2 * n;
}
