/* fast_split.c - see fast_split.h. */
#include "data/tokenizer/fast_split.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of 8 bytes is the lowest");

enum { CODE_POINTS = 0x110000 };

enum class { OTHER, LETTER, NUMBER, SPACE, NEWLINE }; /* NEWLINE: \r and \n */

struct rules {
    const char *pattern;
    size_t numbers;     /* most numbers of a match */
    bool any_prefix;    /* any character may precede letters; otherwise only a space */
    bool number_prefix; /* a space may precede numbers */
    bool newlines;      /* line ends terminate white space and may follow other characters */
    bool fold;          /* contractions are case-insensitive */
    bool marks;         /* marks count as letters */
};

static const struct rules known_rules[] = {
    /* GPT-2; ByteLevel with use_regex */
    {.pattern =
         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     .numbers = SIZE_MAX,
     .number_prefix = true},
    /* Qwen2, Qwen3 */
    {.pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     .numbers = 1,
     .any_prefix = true,
     .newlines = true,
     .fold = true},
    /* Llama 3, cl100k */
    {.pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     .numbers = 3,
     .any_prefix = true,
     .newlines = true,
     .fold = true},
    /* Qwen3.5 */
    {.pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     .numbers = 1,
     .any_prefix = true,
     .newlines = true,
     .fold = true,
     .marks = true},
};

struct d9di_fast_split {
    struct rules rules;
    uint8_t class_of[CODE_POINTS];
};

typedef const unsigned char *cursor;

/* --- runs ------------------------------------------------------------------------- */

static inline uint8_t class_at(const d9di_fast_split *s, cursor p, unsigned *width)
{
    if (*p < 0x80) {
        *width = 1;
        return s->class_of[*p];
    }
    return s->class_of[d9di_utf8_decode((const char *)p, width)];
}

/* Number of leading ASCII letters among the 8 bytes at p. */
static inline unsigned ascii_letters(cursor p)
{
    const uint64_t each = UINT64_C(0x0101010101010101);
    uint64_t word, low, letter;

    memcpy(&word, p, sizeof(word));
    low = (word | 0x20 * each) & 0x7f * each;
    letter = (low + (0x80 - 'a') * each) & ~(low + (0x80 - 'z' - 1) * each) & ~word & 0x80 * each;
    letter ^= 0x80 * each;
    return letter == 0 ? 8 : (unsigned)__builtin_ctzll(letter) / 8;
}

static cursor skip_letters(const d9di_fast_split *s, cursor p, cursor end)
{
    unsigned w;

    for (;;) {
        while (end - p >= 8 && *p < 0x80) {
            const unsigned k = ascii_letters(p);

            p += k;
            if (k < 8)
                break;
        }
        if (p == end || class_at(s, p, &w) != LETTER)
            return p;
        do
            p += w;
        while (p < end && *p >= 0x80 && class_at(s, p, &w) == LETTER);
    }
}

static cursor skip_class(const d9di_fast_split *s, uint8_t class, cursor p, cursor end,
                         size_t max_count)
{
    unsigned w;

    while (p < end && max_count > 0 && class_at(s, p, &w) == class) {
        p += w;
        max_count--;
    }
    return p;
}

static cursor skip_others(const d9di_fast_split *s, cursor p, cursor end)
{
    p = skip_class(s, OTHER, p, end, SIZE_MAX);
    return s->rules.newlines ? skip_class(s, NEWLINE, p, end, SIZE_MAX) : p;
}

static cursor skip_space(const d9di_fast_split *s, cursor start, cursor end)
{
    cursor p = start, last = start, behind_newline = NULL;

    while (p < end) {
        unsigned w;
        const uint8_t class = class_at(s, p, &w);

        if (class != SPACE && class != NEWLINE)
            break;
        last = p;
        p += w;
        if (class == NEWLINE)
            behind_newline = p;
    }
    if (behind_newline && s->rules.newlines)
        return behind_newline;
    return p < end && last > start ? last : p;
}

/* The end of the contraction that begins with the apostrophe at p; NULL if there is none. */
static cursor match_contraction(const d9di_fast_split *s, cursor p, cursor end)
{
    const size_t n = (size_t)(end - p);
    const unsigned char fold = s->rules.fold ? 0x20 : 0;
    unsigned char a, b;

    if (n < 2)
        return NULL;
    a = p[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return p + 2;
    if (n < 3)
        return NULL;
    if (fold && p[1] == 0xc5 && p[2] == 0xbf) /* the long s (U+017F) folds to s */
        return p + 3;
    b = p[2] | fold;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? p + 3
                                                                                      : NULL;
}

/* --- matches ----------------------------------------------------------------------- */

static cursor match_other(const d9di_fast_split *s, cursor p, cursor behind, cursor end)
{
    cursor q = *p == '\'' ? match_contraction(s, p, end) : NULL;
    unsigned w;

    if (q)
        return q;
    if (s->rules.any_prefix && behind < end && class_at(s, behind, &w) == LETTER)
        return skip_letters(s, behind + w, end);
    return skip_others(s, behind, end);
}

static cursor match_space(const d9di_fast_split *s, cursor p, cursor behind, cursor end)
{
    unsigned w;

    if (behind < end && (*p == ' ' || s->rules.any_prefix)) {
        const uint8_t next = class_at(s, behind, &w);

        if (next == LETTER)
            return skip_letters(s, behind + w, end);
        if (next == OTHER && *p == ' ')
            return skip_others(s, behind + w, end);
        if (next == NUMBER && *p == ' ' && s->rules.number_prefix)
            return skip_class(s, NUMBER, behind + w, end, s->rules.numbers - 1);
    }
    return skip_space(s, p, end);
}

/* The end of the match that begins at p < end. */
static inline cursor match_next(const d9di_fast_split *s, cursor p, cursor end)
{
    unsigned w;

    switch (class_at(s, p, &w)) {
    case LETTER: return skip_letters(s, p + w, end);
    case NUMBER: return skip_class(s, NUMBER, p + w, end, s->rules.numbers - 1);
    case SPACE: return match_space(s, p, p + w, end);
    case NEWLINE: return skip_space(s, p, end);
    default: return match_other(s, p, p + w, end);
    }
}

size_t d9di_fast_split_find(const d9di_fast_split *s, const char *text, size_t n, size_t at,
                            size_t *ends, size_t max)
{
    const cursor start = (cursor)text, end = start + n;
    cursor p = start + at;
    size_t count = 0;

    while (p < end && count < max) {
        p = match_next(s, p, end);
        ends[count++] = (size_t)(p - start);
    }
    return count;
}

/* --- creation ------------------------------------------------------------------------- */

static void set_class(d9di_fast_split *s, const struct d9di_unicode_range *r, size_t n,
                      uint8_t class)
{
    for (size_t i = 0; i < n; i++)
        memset(s->class_of + r[i].first, class, r[i].last - r[i].first + 1);
}

const char *d9di_fast_split_pattern(size_t i)
{
    return i < sizeof(known_rules) / sizeof(known_rules[0]) ? known_rules[i].pattern : NULL;
}

d9d_status d9di_fast_split_create(const char *pattern, size_t n, d9di_fast_split **out)
{
    const struct rules *rules = NULL;
    d9di_fast_split *s;

    *out = NULL;
    for (size_t i = 0; i < sizeof(known_rules) / sizeof(known_rules[0]); i++)
        if (strlen(known_rules[i].pattern) == n && memcmp(known_rules[i].pattern, pattern, n) == 0)
            rules = &known_rules[i];
    if (!rules)
        return D9D_OK;
    s = calloc(1, sizeof(*s));
    if (!s)
        return D9D_FAIL(D9D_ENOMEM, "no memory to split text with");
    s->rules = *rules;
    set_class(s, d9di_unicode_letter, d9di_unicode_letter_n, LETTER);
    set_class(s, d9di_unicode_number, d9di_unicode_number_n, NUMBER);
    if (rules->marks)
        set_class(s, d9di_unicode_mark, d9di_unicode_mark_n, LETTER);
    for (uint32_t c = 0; c <= 0x3000; c++)
        if (d9di_unicode_space(c))
            s->class_of[c] = c == '\r' || c == '\n' ? NEWLINE : SPACE;
    *out = s;
    return D9D_OK;
}

void d9di_fast_split_free(d9di_fast_split *s)
{
    free(s);
}
