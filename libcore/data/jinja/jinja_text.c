/* jinja_text.c - see jinja_text.h: white space, splitting, joining, replacing, numbers in text. */
#include "data/jinja/jinja_text.h"

#include <string.h>

#include "d9d/base/num_format.h"
#include "data/tokenizer/utf8.h"

/* --- characters ------------------------------------------------------------------------------- */

bool d9di_jinja_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t d9di_jinja_chars(const d9di_jinja_value *s)
{
    size_t at = d9di_utf8_ascii_prefix(s->text, s->n), n = at;

    for (; at < s->n; at++)
        n += ((unsigned char)s->text[at] & 0xc0) != 0x80;
    return n;
}

size_t d9di_jinja_offset(const d9di_jinja_value *s, size_t i)
{
    size_t at = d9di_utf8_ascii_prefix(s->text, s->n < i ? s->n : i);

    for (i -= at; i > 0; i--)
        at += d9di_utf8_width((unsigned char)s->text[at]);
    return at;
}

static bool is_stripped(const char *at, unsigned w, const d9di_jinja_value *chars)
{
    unsigned ignored;

    if (chars == NULL)
        return d9di_jinja_is_space(d9di_utf8_decode(at, &ignored));
    for (size_t i = 0; i < chars->n; i += d9di_utf8_width((unsigned char)chars->text[i]))
        if (d9di_utf8_width((unsigned char)chars->text[i]) == w &&
            memcmp(chars->text + i, at, w) == 0)
            return true;
    return false;
}

d9di_jinja_value d9di_jinja_strip(const d9di_jinja_value *s, const d9di_jinja_value *chars,
                                  int sides)
{
    d9di_jinja_value v = *s;

    while ((sides & D9DI_JINJA_LEFT) && v.n > 0) {
        const unsigned w = d9di_utf8_width((unsigned char)v.text[0]);

        if (!is_stripped(v.text, w, chars))
            break;
        v.text += w;
        v.n -= w;
    }
    while ((sides & D9DI_JINJA_RIGHT) && v.n > 0) {
        const size_t at = d9di_utf8_prev(v.text, v.n);

        if (!is_stripped(v.text + at, (unsigned)(v.n - at), chars))
            break;
        v.n = at;
    }
    return v;
}

/* --- parts of strings ------------------------------------------------------------------------- */

d9d_status d9di_jinja_replace(d9di_jinja_run *r, const d9di_jinja_value *s,
                              const d9di_jinja_value *from, const d9di_jinja_value *to,
                              int64_t count, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);
    size_t at = 0;

    D9D_TRY(d9di_jinja_step(r, s->n / 1024));
    for (; count != 0; count--) {
        const char *hit =
            from->n > 0 && s->n > at ? memmem(s->text + at, s->n - at, from->text, from->n) : NULL;
        size_t keep; /* bytes before the replacement */

        if (from->n > 0 && hit == NULL)
            break;
        keep = hit != NULL ? (size_t)(hit - s->text) - at : 0;
        D9D_TRY(d9di_jinja_put(r, s->text + at, keep));
        D9D_TRY(d9di_jinja_put(r, to->text, to->n));
        at += keep + from->n;
        if (from->n > 0)
            continue;
        if (at == s->n)
            break;
        keep = d9di_utf8_width((unsigned char)s->text[at]);
        D9D_TRY(d9di_jinja_put(r, s->text + at, keep));
        at += keep;
    }
    D9D_TRY(d9di_jinja_put(r, s->text + at, s->n - at));
    return d9di_jinja_take(r, mark, out);
}

/* The first or last separator in text[from, to); false: none. */
static bool find_separator(const char *text, size_t from, size_t to, const d9di_jinja_value *sep,
                           bool last, size_t *at)
{
    const char *hit = NULL;

    if (to - from < sep->n)
        return false;
    if (!last) {
        hit = memmem(text + from, to - from, sep->text, sep->n);
    } else {
        for (const char *p = text + to - sep->n; p >= text + from && hit == NULL; p--)
            if (memcmp(p, sep->text, sep->n) == 0)
                hit = p;
    }
    *at = hit != NULL ? (size_t)(hit - text) : 0;
    return hit != NULL;
}

static void reverse_items(d9di_jinja_seq *s)
{
    for (size_t i = 0; i < s->n / 2; i++) {
        const d9di_jinja_value v = s->items[i];

        s->items[i] = s->items[s->n - 1 - i];
        s->items[s->n - 1 - i] = v;
    }
}

static d9d_status split_at(d9di_jinja_run *r, const d9di_jinja_value *s,
                           const d9di_jinja_value *sep, int64_t max, bool from_right,
                           d9di_jinja_seq *out)
{
    size_t from = 0, to = s->n, at;

    while (max-- != 0 && find_separator(s->text, from, to, sep, from_right, &at)) {
        D9D_TRY(d9di_jinja_seq_append(r, out,
                                      from_right
                                          ? d9di_jinja_str(s->text + at + sep->n, to - at - sep->n)
                                          : d9di_jinja_str(s->text + from, at - from)));
        if (from_right)
            to = at;
        else
            from = at + sep->n;
    }
    return d9di_jinja_seq_append(r, out, d9di_jinja_str(s->text + from, to - from));
}

/* The length of the word at one end of s, which has no white space there. */
static size_t word_length(const d9di_jinja_value *s, bool from_right)
{
    size_t at = from_right ? s->n : 0;

    while (from_right ? at > 0 : at < s->n) {
        const size_t here = from_right ? d9di_utf8_prev(s->text, at) : at;
        unsigned w;

        if (d9di_jinja_is_space(d9di_utf8_decode(s->text + here, &w)))
            break;
        at = from_right ? here : at + w;
    }
    return from_right ? s->n - at : at;
}

static d9d_status split_words(d9di_jinja_run *r, const d9di_jinja_value *s, int64_t max,
                              bool from_right, d9di_jinja_seq *out)
{
    const int side = from_right ? D9DI_JINJA_RIGHT : D9DI_JINJA_LEFT;
    d9di_jinja_value rest = d9di_jinja_strip(s, NULL, side);

    while (max-- != 0 && rest.n > 0) {
        const size_t n = word_length(&rest, from_right);

        D9D_TRY(d9di_jinja_seq_append(
            r, out, d9di_jinja_str(rest.text + (from_right ? rest.n - n : 0), n)));
        rest = d9di_jinja_str(rest.text + (from_right ? 0 : n), rest.n - n);
        rest = d9di_jinja_strip(&rest, NULL, side);
    }
    rest = d9di_jinja_strip(&rest, NULL, D9DI_JINJA_LEFT | D9DI_JINJA_RIGHT);
    if (rest.n == 0)
        return D9D_OK;
    /* only the end that was split from has lost its white space */
    rest.n = from_right ? rest.n : (size_t)(s->text + s->n - rest.text);
    if (from_right) {
        rest.n += (size_t)(rest.text - s->text);
        rest.text = s->text;
    }
    return d9di_jinja_seq_append(r, out, rest);
}

d9d_status d9di_jinja_split(d9di_jinja_run *r, const d9di_jinja_value *s,
                            const d9di_jinja_value *sep, int64_t max, bool from_right,
                            d9di_jinja_value *out)
{
    D9D_TRY(d9di_jinja_step(r, s->n / 1024));
    D9D_TRY(d9di_jinja_seq_new(r, D9DI_JINJA_LIST, 0, out));
    if (sep == NULL)
        D9D_TRY(split_words(r, s, max, from_right, out->seq));
    else if (sep->n == 0)
        return d9di_jinja_fail(r, "split: the separator is empty");
    else
        D9D_TRY(split_at(r, s, sep, max, from_right, out->seq));
    if (from_right)
        reverse_items(out->seq);
    return D9D_OK;
}

static bool ends_line(uint32_t c)
{
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

d9d_status d9di_jinja_split_lines(d9di_jinja_run *r, const d9di_jinja_value *s, bool keep_ends,
                                  d9di_jinja_value *out)
{
    size_t from = 0;

    D9D_TRY(d9di_jinja_seq_new(r, D9DI_JINJA_LIST, 0, out));
    for (size_t at = 0; at < s->n;) {
        unsigned w;
        const uint32_t c = d9di_utf8_decode(s->text + at, &w);
        const size_t end = at + w + (c == '\r' && at + 1 < s->n && s->text[at + 1] == '\n');

        if (ends_line(c)) {
            D9D_TRY(d9di_jinja_seq_append(
                r, out->seq, d9di_jinja_str(s->text + from, (keep_ends ? end : at) - from)));
            from = end;
        }
        at = ends_line(c) ? end : at + w;
    }
    return from < s->n
               ? d9di_jinja_seq_append(r, out->seq, d9di_jinja_str(s->text + from, s->n - from))
               : D9D_OK;
}

d9d_status d9di_jinja_join(d9di_jinja_run *r, const d9di_jinja_value *sep,
                           const d9di_jinja_value *items, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(r, items, &s));
    for (size_t i = 0; i < s.n; i++) {
        if (i > 0)
            D9D_TRY(d9di_jinja_put(r, sep->text, sep->n));
        D9D_TRY(d9di_jinja_put_str(r, &s.items[i]));
    }
    return d9di_jinja_take(r, mark, out);
}

d9d_status d9di_jinja_put_escaped(d9di_jinja_run *r, const d9di_jinja_value *s)
{
    static const struct {
        char c;
        const char *text;
    } escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};

    for (size_t i = 0; i < s->n; i++) {
        const char *text = NULL;

        for (size_t k = 0; k < sizeof(escapes) / sizeof(escapes[0]); k++)
            if (s->text[i] == escapes[k].c)
                text = escapes[k].text;
        D9D_TRY(text != NULL ? d9di_jinja_put_text(r, text) : d9di_jinja_put(r, s->text + i, 1));
    }
    return D9D_OK;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

bool d9di_jinja_parse_int(const d9di_jinja_value *s, int base, int64_t *out, bool *big)
{
    d9di_jinja_value v = d9di_jinja_strip(s, NULL, D9DI_JINJA_LEFT | D9DI_JINJA_RIGHT);
    const bool minus = v.n > 0 && v.text[0] == '-';
    const char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
    size_t i = minus || (v.n > 0 && v.text[0] == '+');
    bool digit = false;
    int64_t sum = 0;

    *big = false;
    if (prefix && i + 2 < v.n && v.text[i] == '0' && (v.text[i + 1] | 0x20) == prefix) {
        i += 2;
        i += v.text[i] == '_';
    }
    for (; i < v.n; i++) {
        const int d = digit_of(v.text[i]);

        if (v.text[i] == '_' && digit && i + 1 < v.n) {
            digit = false;
            continue;
        }
        if (d >= base)
            return false;
        digit = true;
        *big = *big || __builtin_mul_overflow(sum, (int64_t)base, &sum) ||
               __builtin_sub_overflow(sum, (int64_t)d, &sum);
    }
    *big = *big || (!minus && sum == INT64_MIN);
    *out = *big ? 0 : minus ? sum : -sum;
    return digit && !*big;
}

/* Copies a number's digits without "_"; false: it is not like a float of Python. */
static bool copy_float(const d9di_jinja_value *v, char *to, size_t size)
{
    bool digits = false, point = false, exponent = false, last = false; /* last: was a digit */
    size_t n = 0;

    for (size_t i = 0; i < v->n; i++) {
        const char c = v->text[i];

        if (n + 2 > size)
            return false;
        if (c >= '0' && c <= '9') {
            digits = last = true;
        } else if (c == '_' && last && i + 1 < v->n && digit_of(v->text[i + 1]) < 10) {
            last = false;
            continue;
        } else if (c == '.' && !point && !exponent) {
            point = true;
            last = false;
        } else if ((c | 0x20) == 'e' && digits && !exponent && (last || v->text[i - 1] == '.')) {
            exponent = true;
            digits = last = false;
        } else if (!((c == '-' || c == '+') && (i == 0 || (v->text[i - 1] | 0x20) == 'e'))) {
            return false;
        }
        to[n++] = c;
    }
    to[n] = '\0';
    return digits;
}

bool d9di_jinja_parse_float(const d9di_jinja_value *s, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    d9di_jinja_value v = d9di_jinja_strip(s, NULL, D9DI_JINJA_LEFT | D9DI_JINJA_RIGHT);
    const size_t sign = v.n > 0 && (v.text[0] == '-' || v.text[0] == '+');
    char text[512];

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (v.n - sign == strlen(words[i]) &&
            strncasecmp(v.text + sign, words[i], v.n - sign) == 0) {
            *out = (i < 2 ? (double)__builtin_inf() : __builtin_nan("")) *
                   (sign && v.text[0] == '-' ? -1 : 1);
            return true;
        }
    if (!copy_float(&v, text, sizeof(text)))
        return false;
    *out = d9d_num_parse(text, NULL);
    return true;
}
