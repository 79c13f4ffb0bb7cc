/* text.c - see base/text.h. */
#include "base/text.h"

#include <string.h>

#include "d9d/base/point.h"

static void blank_controls(char *s)
{
    for (; *s != '\0'; s++)
        if (((unsigned char)*s < 0x20 && *s != '\n') || *s == 0x7f)
            *s = '?';
}

static void mark_cut(char *s, size_t size)
{
    size_t end = size - sizeof("...");

    while (end > 0 && ((unsigned char)s[end] & 0xc0) == 0x80)
        end--;
    memcpy(s + end, "...", sizeof("..."));
}

bool d9di_text_vformat(char *out, size_t size, const char *fmt, va_list ap)
{
    const int n = d9d_point_vformat(out, size, fmt, ap);

    if (n < 0)
        out[0] = '\0';
    else if ((size_t)n >= size)
        mark_cut(out, size);
    blank_controls(out);
    return n >= 0;
}
