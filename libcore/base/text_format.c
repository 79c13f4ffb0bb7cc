/* text_format.c - formatting of text for people.  See base/text_format.h. */
#include "base/text_format.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"

/* Bytes of the control character at s, C1 (U+0080 to U+009F) included; 0 if it is none. */
static size_t control_at(const char *s)
{
    const unsigned char c = (unsigned char)s[0];

    if (c == 0xc2 && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0)
        return 2;
    return c < 0x20 || c == 0x7f;
}

static void blank_controls(char *s)
{
    char *to = s;

    while (*s != '\0') {
        const size_t n = control_at(s);

        *to++ = n > 0 ? '?' : *s;
        s += n > 0 ? n : 1;
    }
    *to = '\0';
}

static void put_ellipsis(char *s, size_t size)
{
    size_t end = size - sizeof("...");

    while (end > 0 && ((unsigned char)s[end] & 0xc0) == 0x80)
        end--;
    memcpy(s + end, "...", sizeof("..."));
}

/* Drop the middle of a message that does not fit: it is usually a long path.  The subject and the
 * reason stay. */
D9D_PRINTF(4, 0)
static bool cut_middle(char *out, size_t size, size_t n, const char *fmt, va_list ap)
{
    const size_t width = size - sizeof("...");
    size_t head = width / 2, tail = n - (width - head);
    char *whole = malloc(n + 1);

    if (whole == NULL)
        return false;
    (void)d9d_num_vformat(whole, n + 1, fmt, ap);
    while (head > 0 && ((unsigned char)whole[head] & 0xc0) == 0x80)
        head--;
    while (((unsigned char)whole[tail] & 0xc0) == 0x80)
        tail++;
    memcpy(out, whole, head);
    memcpy(out + head, "...", 3);
    memcpy(out + head + 3, whole + tail, n - tail + 1);
    free(whole);
    return true;
}

bool d9di_text_vformat(char *out, size_t size, const char *fmt, va_list ap)
{
    va_list again;
    int n;

    va_copy(again, ap);
    n = d9d_num_vformat(out, size, fmt, ap);
    if (n < 0)
        out[0] = '\0';
    else if ((size_t)n >= size && !cut_middle(out, size, (size_t)n, fmt, again))
        put_ellipsis(out, size);
    va_end(again);
    blank_controls(out);
    return n >= 0;
}
