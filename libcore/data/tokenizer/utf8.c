/* utf8.c - UTF-8 validation. */
#include "data/tokenizer/utf8.h"

#include "d9d/data/tokenizer/tokenizer.h"

/* Width of the well-formed character at s; 0 if there is none (Unicode, table 3-7). */
static unsigned well_formed_width(const unsigned char *s, size_t n)
{
    unsigned char lo = 0x80, hi = 0xbf;
    unsigned w, i;

    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    w = d9di_utf8_width(s[0]);
    if (w > n)
        return 0;
    switch (s[0]) {
    case 0xe0: lo = 0xa0; break;
    case 0xed: hi = 0x9f; break;
    case 0xf0: lo = 0x90; break;
    case 0xf4: hi = 0x8f; break;
    default: break;
    }
    if (s[1] < lo || s[1] > hi)
        return 0;
    for (i = 2; i < w; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return w;
}

size_t d9d_utf8_valid_up_to(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;

    while ((i += d9di_utf8_ascii_prefix(text + i, n - i)) < n)
        do {
            const unsigned w = well_formed_width(s + i, n - i);

            if (w == 0)
                return i;
            i += w;
        } while (i < n && s[i] >= 0x80);
    return n;
}
