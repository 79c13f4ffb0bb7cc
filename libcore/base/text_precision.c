/* text_precision.c - "%.64s" ends at a character.  See base/text_precision.h.
 *
 * A precision counts bytes, and the C library cuts a UTF-8 character in two.  The arguments are
 * walked as the format says, and a precision that would cut is made smaller in a copy of it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text_precision.h"

/* "%-*.64s": what follows the percent sign. */
typedef struct conversion {
    const char *end;       /* behind it */
    const char *precision; /* its digits; NULL: none, or a star */
    int stars;             /* of width and precision, each an int before the argument */
    bool star_precision;
    char length[3]; /* "", "l", "ll", "z", ... */
    char kind;
} conversion;

/* A va_list that functions can advance for their callers. */
typedef struct arguments {
    va_list list;
} arguments;

static conversion conversion_parse(const char *p)
{
    conversion c = {.stars = 0};
    size_t n;

    p += strspn(p, "-+ #0'");
    c.stars = *p == '*';
    p += *p == '*' ? 1 : strspn(p, "0123456789");
    if (*p == '.') {
        p++;
        c.star_precision = *p == '*';
        c.stars += c.star_precision;
        c.precision = c.star_precision ? NULL : p;
        p += c.star_precision ? 1 : strspn(p, "0123456789");
    }
    n = strspn(p, "hljztL");
    memcpy(c.length, p, n < 2 ? n : 2);
    p += n;
    c.kind = *p;
    c.end = *p != '\0' ? p + 1 : p;
    return c;
}

static void skip_integer(const conversion *c, arguments *a)
{
    if (strcmp(c->length, "ll") == 0)
        (void)va_arg(a->list, long long);
    else if (c->length[0] == 'l')
        (void)va_arg(a->list, long);
    else if (c->length[0] == 'j')
        (void)va_arg(a->list, intmax_t);
    else if (c->length[0] == 'z')
        (void)va_arg(a->list, size_t);
    else if (c->length[0] == 't')
        (void)va_arg(a->list, ptrdiff_t);
    else
        (void)va_arg(a->list, int);
}

/* Takes the argument of anything but a string; false for a conversion that is not known. */
static bool argument_skip(const conversion *c, arguments *a)
{
    switch (c->kind) {
    case '%':
    case 'm': return true;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'c': skip_integer(c, a); return true;
    case 'p': (void)va_arg(a->list, void *); return true;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
        if (c->length[0] == 'L')
            (void)va_arg(a->list, long double);
        else
            (void)va_arg(a->list, double);
        return true;
    default: return false;
    }
}

/* Bytes of the character that begins with this one. */
static size_t char_bytes(unsigned char lead)
{
    return lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Byte n is not read: a precision may be that of an array without an end. */
size_t d9di_text_prefix(const char *text, size_t n)
{
    const size_t bytes = strnlen(text, n);
    size_t last = bytes;

    if (bytes < n || n == 0)
        return bytes;
    do
        last--;
    while (last > 0 && bytes - last < 4 && ((unsigned char)text[last] & 0xc0) == 0x80);
    return char_bytes((unsigned char)text[last]) > bytes - last ? last : bytes;
}

/* Copies fmt up to `end`, with the precision of a string that is cut made smaller. */
static char *string_copy(char *to, const char *from, const conversion *c, const char *text)
{
    const size_t given = strtoul(c->precision, NULL, 10), fits = d9di_text_prefix(text, given);
    const size_t head = (size_t)(c->precision - from);
    const char *tail = c->precision + strspn(c->precision, "0123456789");
    char digits[24];

    (void)snprintf(digits, sizeof(digits), "%zu", fits < given ? fits : given);
    memcpy(to, from, head);
    to = stpcpy(to + head, digits);
    memcpy(to, tail, (size_t)(c->end - tail));
    return to + (c->end - tail);
}

/* Formats of numbers alone, which are many, are not walked. */
static bool has_string_precision(const char *fmt)
{
    for (const char *p = strchr(fmt, '.'); p != NULL; p = strchr(p, '.')) {
        const size_t digits = strspn(++p, "0123456789");

        if (digits > 0 && p[digits] == 's')
            return true;
    }
    return false;
}

bool d9di_text_fit_precisions(const char *fmt, va_list ap, char *out, size_t size)
{
    const char *at = strchr(fmt, '%'), *copied = fmt;
    bool known = has_string_precision(fmt) && strlen(fmt) < size;
    char *to = out;
    arguments a;

    va_copy(a.list, ap);
    for (; known && at != NULL; at = strchr(at, '%')) {
        const conversion c = conversion_parse(at + 1);

        for (int i = 0; i < c.stars; i++)
            (void)va_arg(a.list, int);
        if (c.kind == 's' && c.length[0] == '\0') {
            const char *text = va_arg(a.list, const char *);

            if (c.precision != NULL && text != NULL) {
                to = string_copy(to, copied, &c, text);
                copied = c.end;
            }
        } else {
            known = argument_skip(&c, &a);
        }
        at = c.end;
    }
    va_end(a.list);
    if (known)
        memcpy(to, copied, strlen(copied) + 1);
    return known && copied != fmt;
}
