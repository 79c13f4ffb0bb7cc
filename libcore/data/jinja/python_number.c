/* python_number.c - see python_number.h. */
#include "data/jinja/python_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"

enum {
    DIGITS = 17,
    DIGITS_PLAIN = 16
}; /* digits of a double; largest exponent printed without "e" */

/* Formats the shortest digits that read back as the same double, "d.ddde+xx". */
static void format_shortest(double v, char *out, size_t size)
{
    int digits = 0;

    do
        d9d_num_format(out, size, "%.*e", digits++, v);
    while (digits < DIGITS && d9d_num_parse(out, NULL) != v);
}

d9d_status d9di_python_number(double v, d9d_buf *out)
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
