/* jinja_case.c - upper and lower case as in Python: full mappings of Unicode. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/jinja/jinja_text.h"
#include "data/tokenizer/utf8.h"

enum { SHARP_S = 0xdf, DOTTED_I = 0x130, SIGMA = 0x3a3, FINAL_SIGMA = 0x3c2, SMALL_SIGMA = 0x3c3 };

/* Characters whose upper case is several characters (Unicode's SpecialCasing), by code point. */
static const struct special {
    uint16_t c;
    char upper[10];
} specials[] = {{0x00df, "\x53\x53"},
                {0x0149, "\xca\xbc\x4e"},
                {0x01f0, "\x4a\xcc\x8c"},
                {0x0390, "\xce\x99\xcc\x88\xcc\x81"},
                {0x03b0, "\xce\xa5\xcc\x88\xcc\x81"},
                {0x0587, "\xd4\xb5\xd5\x92"},
                {0x1e96, "\x48\xcc\xb1"},
                {0x1e97, "\x54\xcc\x88"},
                {0x1e98, "\x57\xcc\x8a"},
                {0x1e99, "\x59\xcc\x8a"},
                {0x1e9a, "\x41\xca\xbe"},
                {0x1f50, "\xce\xa5\xcc\x93"},
                {0x1f52, "\xce\xa5\xcc\x93\xcc\x80"},
                {0x1f54, "\xce\xa5\xcc\x93\xcc\x81"},
                {0x1f56, "\xce\xa5\xcc\x93\xcd\x82"},
                {0x1f80, "\xe1\xbc\x88\xce\x99"},
                {0x1f81, "\xe1\xbc\x89\xce\x99"},
                {0x1f82, "\xe1\xbc\x8a\xce\x99"},
                {0x1f83, "\xe1\xbc\x8b\xce\x99"},
                {0x1f84, "\xe1\xbc\x8c\xce\x99"},
                {0x1f85, "\xe1\xbc\x8d\xce\x99"},
                {0x1f86, "\xe1\xbc\x8e\xce\x99"},
                {0x1f87, "\xe1\xbc\x8f\xce\x99"},
                {0x1f88, "\xe1\xbc\x88\xce\x99"},
                {0x1f89, "\xe1\xbc\x89\xce\x99"},
                {0x1f8a, "\xe1\xbc\x8a\xce\x99"},
                {0x1f8b, "\xe1\xbc\x8b\xce\x99"},
                {0x1f8c, "\xe1\xbc\x8c\xce\x99"},
                {0x1f8d, "\xe1\xbc\x8d\xce\x99"},
                {0x1f8e, "\xe1\xbc\x8e\xce\x99"},
                {0x1f8f, "\xe1\xbc\x8f\xce\x99"},
                {0x1f90, "\xe1\xbc\xa8\xce\x99"},
                {0x1f91, "\xe1\xbc\xa9\xce\x99"},
                {0x1f92, "\xe1\xbc\xaa\xce\x99"},
                {0x1f93, "\xe1\xbc\xab\xce\x99"},
                {0x1f94, "\xe1\xbc\xac\xce\x99"},
                {0x1f95, "\xe1\xbc\xad\xce\x99"},
                {0x1f96, "\xe1\xbc\xae\xce\x99"},
                {0x1f97, "\xe1\xbc\xaf\xce\x99"},
                {0x1f98, "\xe1\xbc\xa8\xce\x99"},
                {0x1f99, "\xe1\xbc\xa9\xce\x99"},
                {0x1f9a, "\xe1\xbc\xaa\xce\x99"},
                {0x1f9b, "\xe1\xbc\xab\xce\x99"},
                {0x1f9c, "\xe1\xbc\xac\xce\x99"},
                {0x1f9d, "\xe1\xbc\xad\xce\x99"},
                {0x1f9e, "\xe1\xbc\xae\xce\x99"},
                {0x1f9f, "\xe1\xbc\xaf\xce\x99"},
                {0x1fa0, "\xe1\xbd\xa8\xce\x99"},
                {0x1fa1, "\xe1\xbd\xa9\xce\x99"},
                {0x1fa2, "\xe1\xbd\xaa\xce\x99"},
                {0x1fa3, "\xe1\xbd\xab\xce\x99"},
                {0x1fa4, "\xe1\xbd\xac\xce\x99"},
                {0x1fa5, "\xe1\xbd\xad\xce\x99"},
                {0x1fa6, "\xe1\xbd\xae\xce\x99"},
                {0x1fa7, "\xe1\xbd\xaf\xce\x99"},
                {0x1fa8, "\xe1\xbd\xa8\xce\x99"},
                {0x1fa9, "\xe1\xbd\xa9\xce\x99"},
                {0x1faa, "\xe1\xbd\xaa\xce\x99"},
                {0x1fab, "\xe1\xbd\xab\xce\x99"},
                {0x1fac, "\xe1\xbd\xac\xce\x99"},
                {0x1fad, "\xe1\xbd\xad\xce\x99"},
                {0x1fae, "\xe1\xbd\xae\xce\x99"},
                {0x1faf, "\xe1\xbd\xaf\xce\x99"},
                {0x1fb2, "\xe1\xbe\xba\xce\x99"},
                {0x1fb3, "\xce\x91\xce\x99"},
                {0x1fb4, "\xce\x86\xce\x99"},
                {0x1fb6, "\xce\x91\xcd\x82"},
                {0x1fb7, "\xce\x91\xcd\x82\xce\x99"},
                {0x1fbc, "\xce\x91\xce\x99"},
                {0x1fc2, "\xe1\xbf\x8a\xce\x99"},
                {0x1fc3, "\xce\x97\xce\x99"},
                {0x1fc4, "\xce\x89\xce\x99"},
                {0x1fc6, "\xce\x97\xcd\x82"},
                {0x1fc7, "\xce\x97\xcd\x82\xce\x99"},
                {0x1fcc, "\xce\x97\xce\x99"},
                {0x1fd2, "\xce\x99\xcc\x88\xcc\x80"},
                {0x1fd3, "\xce\x99\xcc\x88\xcc\x81"},
                {0x1fd6, "\xce\x99\xcd\x82"},
                {0x1fd7, "\xce\x99\xcc\x88\xcd\x82"},
                {0x1fe2, "\xce\xa5\xcc\x88\xcc\x80"},
                {0x1fe3, "\xce\xa5\xcc\x88\xcc\x81"},
                {0x1fe4, "\xce\xa1\xcc\x93"},
                {0x1fe6, "\xce\xa5\xcd\x82"},
                {0x1fe7, "\xce\xa5\xcc\x88\xcd\x82"},
                {0x1ff2, "\xe1\xbf\xba\xce\x99"},
                {0x1ff3, "\xce\xa9\xce\x99"},
                {0x1ff4, "\xce\x8f\xce\x99"},
                {0x1ff6, "\xce\xa9\xcd\x82"},
                {0x1ff7, "\xce\xa9\xcd\x82\xce\x99"},
                {0x1ffc, "\xce\xa9\xce\x99"},
                {0xfb00, "\x46\x46"},
                {0xfb01, "\x46\x49"},
                {0xfb02, "\x46\x4c"},
                {0xfb03, "\x46\x46\x49"},
                {0xfb04, "\x46\x46\x4c"},
                {0xfb05, "\x53\x54"},
                {0xfb06, "\x53\x54"},
                {0xfb13, "\xd5\x84\xd5\x86"},
                {0xfb14, "\xd5\x84\xd4\xb5"},
                {0xfb15, "\xd5\x84\xd4\xbb"},
                {0xfb16, "\xd5\x8e\xd5\x86"},
                {0xfb17, "\xd5\x84\xd4\xbd"}};

static int compare_special(const void *key, const void *row)
{
    const uint32_t c = *(const uint32_t *)key, d = ((const struct special *)row)->c;

    return c < d ? -1 : c > d;
}

static const struct special *find_special(uint32_t c)
{
    return c < specials[0].c ? NULL
                             : bsearch(&c, specials, sizeof(specials) / sizeof(specials[0]),
                                       sizeof(specials[0]), compare_special);
}

static bool is_cased(uint32_t c)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Characters that a word's end is looked for beyond. */
static bool is_ignorable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default:
        return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 ||
               c == 0x2024 || c == 0x2027;
    }
}

/* Does a letter stand before byte `at`, or from it on, ignorable characters aside? */
static bool has_letter(const d9di_jinja_value *s, size_t at, bool before)
{
    while (before ? at > 0 : at < s->n) {
        const size_t here = before ? d9di_utf8_prev(s->text, at) : at;
        unsigned w;
        const uint32_t c = d9di_utf8_decode(s->text + here, &w);

        if (!is_ignorable(c))
            return is_cased(c);
        at = before ? here : at + w;
    }
    return false;
}

static d9d_status put_char(d9di_jinja_run *r, uint32_t c, const char *from)
{
    char text[4];

    return d9di_jinja_put_made(r, text, d9di_utf8_encode(c, text), from);
}

static d9d_status put_lower(d9di_jinja_run *r, const d9di_jinja_value *s, size_t at)
{
    unsigned w;
    const uint32_t c = d9di_utf8_decode(s->text + at, &w);

    if (c == DOTTED_I)
        return d9di_jinja_put_made(r, "i\xcc\x87", 3, s->text + at);
    if (c == SIGMA)
        return put_char(
            r, has_letter(s, at, true) && !has_letter(s, at + w, false) ? FINAL_SIGMA : SMALL_SIGMA,
            s->text + at);
    return put_char(r, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c), s->text + at);
}

static d9d_status put_upper(d9di_jinja_run *r, const char *from, bool title)
{
    unsigned w;
    const uint32_t c = d9di_utf8_decode(from, &w);
    const struct special *special = find_special(c);
    const uint32_t simple = (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c)
                                             : utf8proc_toupper((utf8proc_int32_t)c));

    if (special == NULL)
        return put_char(r, simple, from);
    if (!title)
        return d9di_jinja_put_made(r, special->upper, strlen(special->upper), from);
    /* A character of title case is its own, and a letter that has one of its own has one only. */
    if ((simple != c && c != SHARP_S) ||
        utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LT)
        return put_char(r, simple, from);
    return d9di_jinja_fail(r, "the title case of U+%04X is not supported", (unsigned)c);
}

d9d_status d9di_jinja_put_case(d9di_jinja_run *r, const d9di_jinja_value *s, d9di_jinja_case into)
{
    bool first = true; /* no letter before this one, in its word or at all */

    D9D_TRY(d9di_jinja_step(r, s->n / 256));
    for (size_t at = 0; at < s->n;) {
        unsigned w;
        const uint32_t c = d9di_utf8_decode(s->text + at, &w);

        D9D_TRY(into == D9DI_JINJA_LOWER || (into != D9DI_JINJA_UPPER && !first)
                    ? put_lower(r, s, at)
                    : put_upper(r, s->text + at, into != D9DI_JINJA_UPPER));
        first = into == D9DI_JINJA_TITLE && !is_cased(c);
        at += w;
    }
    return D9D_OK;
}

d9d_status d9di_jinja_to_case(d9di_jinja_run *r, const d9di_jinja_value *s, d9di_jinja_case into,
                              d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);

    D9D_TRY(d9di_jinja_put_case(r, s, into));
    return d9di_jinja_take(r, mark, out);
}
