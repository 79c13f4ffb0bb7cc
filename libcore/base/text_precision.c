/* text_precision.c - "%.64s" and "%.*s" end at a character.  See base/text_precision.h.
 *
 * A precision counts bytes, and the C library cuts a UTF-8 character in two.  The arguments are
 * walked as the format says; what stands between texts with a precision is the C library's.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text_precision.h"

enum { SEGMENT_SIZE = 1024 }; /* of the text between conversions of strings */

/* "%-*.64s": what follows the percent sign. */
typedef struct conversion {
    const char *end;                 /* behind it */
    bool left;                       /* the flag - */
    int width;                       /* 0: none */
    int precision;                   /* -1: none */
    bool star_width, star_precision; /* are arguments, ints before the one that is shown */
    char length[3];                  /* "", "l", "ll", "z", ... */
    char kind;
} conversion;

/* A va_list that functions can advance for their callers. */
typedef struct arguments {
    va_list list;
} arguments;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads the number at *p, or a star. */
static int parse_number(const char **p, bool *star)
{
    char *end;
    long v;

    *star = **p == '*';
    if (*star) {
        (*p)++;
        return 0;
    }
    v = strtol(*p, &end, 10);
    *p = end;
    return (int)v;
}

static conversion conversion_parse(const char *p)
{
    const size_t flags = strspn(p, "-+ #0'");
    conversion c = {.left = memchr(p, '-', flags) != NULL, .precision = -1};
    size_t n;

    p += flags;
    if (*p == '*' || is_digit(*p))
        c.width = parse_number(&p, &c.star_width);
    if (*p == '.') {
        p++;
        c.precision = *p == '*' || is_digit(*p) ? parse_number(&p, &c.star_precision) : 0;
    }
    n = strspn(p, "hljztL");
    memcpy(c.length, p, n < 2 ? n : 2);
    p += n;
    c.kind = *p;
    c.end = *p != '\0' ? p + 1 : p;
    return c;
}

static void take_stars(conversion *c, arguments *a)
{
    if (c->star_width)
        c->width = va_arg(a->list, int);
    if (c->star_precision)
        c->precision = va_arg(a->list, int);
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

/* What vsnprintf() would write to out[0, size). */
typedef struct target {
    char *out;
    size_t size;
    int n; /* bytes so far, whether they fit or not; -1: a failure */
} target;

static char *target_place(const target *t, size_t *left)
{
    *left = (size_t)t->n < t->size ? t->size - (size_t)t->n : 0;
    return *left > 0 ? t->out + t->n : NULL;
}

static void target_advance(target *t, int n)
{
    t->n = n >= 0 && n <= INT32_MAX - t->n ? t->n + n : -1;
}

/* Prints the n bytes of a format, none of whose strings has a precision. */
D9D_PRINTF(2, 0)
static void segment_print(target *t, const char *fmt, size_t n, va_list ap)
{
    char segment[SEGMENT_SIZE], *at;
    size_t left;

    if (t->n < 0 || n == 0)
        return;
    memcpy(segment, fmt, n);
    segment[n] = '\0';
    fmt = segment;
    at = target_place(t, &left);
    target_advance(t, vsnprintf(at, left, fmt, ap));
}

static void string_print(target *t, const conversion *c, const char *text)
{
    const int width = c->left && c->width > 0 ? -c->width : c->width;
    const int fits = (int)d9di_text_prefix(text, (size_t)c->precision);
    size_t left;
    char *at;

    if (t->n < 0)
        return;
    at = target_place(t, &left);
    target_advance(t, snprintf(at, left, "%*.*s", width, fits, text));
}

/* Formats of numbers alone, which are many, are not walked. */
static bool has_string_precision(const char *fmt)
{
    for (const char *p = strchr(fmt, '.'); p != NULL; p = strchr(p, '.')) {
        p++;
        p += *p == '*' ? 1 : strspn(p, "0123456789");
        if (*p == 's')
            return true;
    }
    return false;
}

/* Prints up to the next string with a precision, which is printed too, or to the end; *next is
 * behind it.  False: a conversion is not known. */
D9D_PRINTF(2, 0)
static bool part_print(target *t, const char *fmt, arguments *a, const char **next)
{
    const char *at = fmt;
    bool known = true, found = false;
    arguments start;

    va_copy(start.list, a->list);
    while (known && !found && (at = strchr(at, '%')) != NULL) {
        conversion c = conversion_parse(at + 1);

        take_stars(&c, a);
        if (c.kind == 's' && c.length[0] == '\0') {
            const char *text = va_arg(a->list, const char *);

            found = text != NULL && c.precision >= 0;
            if (found) {
                segment_print(t, fmt, (size_t)(at - fmt), start.list);
                string_print(t, &c, text);
            }
        } else {
            known = argument_skip(&c, a);
        }
        at = c.end;
    }
    if (known && !found)
        segment_print(t, fmt, strlen(fmt), start.list);
    va_end(start.list);
    *next = found ? at : "";
    return known;
}

bool d9di_text_vprint(char *out, size_t size, const char *fmt, va_list ap, int *n)
{
    target t = {.out = out, .size = size};
    bool known = has_string_precision(fmt) && strlen(fmt) < SEGMENT_SIZE;
    arguments a;

    va_copy(a.list, ap);
    while (known && *fmt != '\0')
        known = part_print(&t, fmt, &a, &fmt);
    va_end(a.list);
    *n = t.n;
    return known;
}
