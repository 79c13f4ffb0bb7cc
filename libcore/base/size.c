/* size.c - parsing of byte sizes.  See d9d/base/size.h. */
#include "d9d/base/size.h"

#include <math.h>
#include <string.h>

#include "d9d/base/num_format.h"

static bool suffix_factor(const char *s, double *factor)
{
    static const char letters[] = "kmgt";
    const char *hit = *s != '\0' ? strchr(letters, *s | 0x20) : NULL;
    const bool binary = hit != NULL && s[1] == 'i';

    *factor = hit != NULL ? pow(binary ? 1024 : 1000, (double)(hit - letters + 1)) : 1;
    s += (hit != NULL) + binary;
    if (*s == 'B')
        s++;
    else if (binary)
        return false;
    return *s == '\0';
}

bool d9d_size_parse(const char *text, uint64_t *out)
{
    char *end;
    const double v = d9d_num_parse(text, &end);
    double factor;

    if (end == text || !suffix_factor(end, &factor) || !(v >= 0) || v * factor >= 0x1p62)
        return false;
    *out = (uint64_t)(v * factor);
    return true;
}
