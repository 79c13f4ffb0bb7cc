/* num_format.c - number formatting in the "C" locale.  See d9d/base/num_format.h. */
#include "d9d/base/num_format.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text_precision.h"

/* Set this thread's locale to "C"; the other function restores the one that this returns. */
static locale_t enter_c_locale(void)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);

    return plain != (locale_t)0 ? uselocale(plain) : plain;
}

static void restore_locale(locale_t before)
{
    if (before != (locale_t)0)
        freelocale(uselocale(before));
}

int d9d_num_vformat(char *out, size_t size, const char *fmt, va_list ap)
{
    const locale_t before = enter_c_locale();
    int n;

    if (!d9di_text_vprint(out, size, fmt, ap, &n))
        n = vsnprintf(out, size, fmt, ap);
    restore_locale(before);
    return n;
}

int d9d_num_format(char *out, size_t size, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = d9d_num_vformat(out, size, fmt, ap);
    va_end(ap);
    return n;
}

double d9d_num_parse(const char *text, char **end)
{
    const locale_t before = enter_c_locale();
    const double v = strtod(text, end);

    restore_locale(before);
    return v;
}
