/* python_number.c - see python_number.h. */
#include "data/chat/python_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"

enum {
    DIGITS = 17,
    DIGITS_PLAIN = 16
}; /* digits of a double; largest exponent printed without "e" */

static bool is_integer(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] == '.' || text[i] == 'e' || text[i] == 'E')
            return false;
    return true;
}

/* Formats the shortest digits that read back as the same double, "d.ddde+xx". */
static void format_shortest(double v, char *out, size_t size)
{
    int digits = 0;

    do
        d9d_num_format(out, size, "%.*e", digits++, v);
    while (digits < DIGITS && d9d_num_parse(out, NULL) != v);
}

d9d_status d9di_python_number_double(double v, d9d_buf *out)
{
    char digits[40], *e;
    int exponent;

    if (isnan(v))
        return d9d_buf_append(out, "NaN", 3);
    if (isinf(v))
        return d9d_buf_printf(out, "%sInfinity", v < 0 ? "-" : "");
    format_shortest(v, digits, sizeof(digits));
    e = strchr(digits, 'e');
    exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent >= -4 && exponent < DIGITS_PLAIN) {
        const int have =
            (int)(e - digits) - (digits[0] == '-') - 1; /* digits after the first, including "." */
        const int behind = (have > 0 ? have - 1 : 0) - exponent;

        return d9d_buf_printf(out, "%.*f", behind > 1 ? behind : 1, v);
    }
    return d9d_buf_printf(out, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                          abs(exponent));
}

d9d_status d9di_python_number(const char *text, size_t n, d9d_buf *out)
{
    d9d_buf copy = {0};
    d9d_status st;

    if (is_integer(text, n))
        return n == 2 && memcmp(text, "-0", 2) == 0 ? d9d_buf_append(out, "0", 1)
                                                    : d9d_buf_append(out, text, n);
    D9D_TRY_OR(st, d9d_buf_append(&copy, text, n), out);
    st = d9di_python_number_double(d9d_num_parse(copy.data, NULL), out);
out:
    d9d_buf_release(&copy);
    return st;
}
