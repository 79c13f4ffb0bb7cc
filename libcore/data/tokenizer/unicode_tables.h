/* unicode_tables.h - tables of the differences between Unicode libraries; unicode_tables.py
 * generates unicode_tables.c. */
#ifndef D9DI_DATA_TOKENIZER_UNICODE_TABLES_H
#define D9DI_DATA_TOKENIZER_UNICODE_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/utf8.h"

struct d9di_unicode_range {
    uint32_t first, last;
};
struct d9di_unicode_alias {
    uint32_t first, last, alias;
};

/* Every step-th character from `first` on; `lower` is the lowercase of the first. */
struct d9di_unicode_lower {
    uint32_t first, last, step, lower;
};

extern const struct d9di_unicode_alias d9di_unicode_alias[];
extern const struct d9di_unicode_range d9di_unicode_letter[], d9di_unicode_number[],
    d9di_unicode_mark[];
extern const struct d9di_unicode_range d9di_unicode_word[], d9di_unicode_numeric[],
    d9di_unicode_inert[];
extern const size_t d9di_unicode_alias_n, d9di_unicode_letter_n, d9di_unicode_number_n,
    d9di_unicode_mark_n;
extern const struct d9di_unicode_range d9di_unicode_punct[], d9di_unicode_control[],
    d9di_unicode_nonspacing[], d9di_unicode_accent[], d9di_unicode_extend[];
extern const struct d9di_unicode_lower d9di_unicode_lower[];
extern const size_t d9di_unicode_word_n, d9di_unicode_numeric_n, d9di_unicode_inert_n;
extern const size_t d9di_unicode_punct_n, d9di_unicode_lower_n, d9di_unicode_control_n,
    d9di_unicode_nonspacing_n, d9di_unicode_accent_n, d9di_unicode_extend_n;

/* True if `c` is in one of `n` ascending ranges. */
static inline bool d9di_unicode_in(const struct d9di_unicode_range *r, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (c > r[mid].last)
            lo = mid + 1;
        else if (c < r[mid].first)
            hi = mid;
        else
            return true;
    }
    return false;
}

/* The lowercase of one character without context; U+0130 has two and is not among them. */
static inline uint32_t d9di_unicode_to_lower(uint32_t c)
{
    size_t lo = 0, hi = d9di_unicode_lower_n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const struct d9di_unicode_lower *r = &d9di_unicode_lower[mid];

        if (c > r->last)
            lo = mid + 1;
        else if (c < r->first)
            hi = mid;
        else
            return (c - r->first) % r->step == 0 ? r->lower + (c - r->first) : c;
    }
    return c;
}

/* White_Space: 25 code points, unchanged since Unicode 6.3. */
static inline bool d9di_unicode_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* The end of the space that begins at text[at]. */
static inline size_t d9di_unicode_skip_space(const char *text, size_t n, size_t at)
{
    unsigned w;

    while (at < n && d9di_unicode_space(d9di_utf8_decode(text + at, &w)))
        at += w;
    return at;
}

/* The start, not before `from`, of the space that ends before text[at]. */
static inline size_t d9di_unicode_space_start(const char *text, size_t from, size_t at)
{
    while (at > from) {
        const size_t before = d9di_utf8_prev(text, at);
        unsigned w;

        if (!d9di_unicode_space(d9di_utf8_decode(text + before, &w)))
            break;
        at = before;
    }
    return at;
}

#endif
