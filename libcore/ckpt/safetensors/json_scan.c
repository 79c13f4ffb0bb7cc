/* json_scan.c - see json_scan.h. */
#include "ckpt/safetensors/json_scan.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

static d9d_status fail_at(const d9di_json_scan *s, const char *what)
{
    return D9D_FAIL(D9D_EFORMAT, "%s: byte %zu: %s", s->where, (size_t)(s->p - s->text), what);
}

static void skip_blanks(d9di_json_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

/* The next byte that is not white space, or -1 at the end. */
static int peek_char(d9di_json_scan *s)
{
    skip_blanks(s);
    return s->p < s->end ? (unsigned char)*s->p : -1;
}

static d9d_status expect_char(d9di_json_scan *s, char c)
{
    char text[] = "expected '?'";

    if (peek_char(s) == c) {
        s->p++;
        return D9D_OK;
    }
    text[10] = c;
    return fail_at(s, text);
}

d9d_status d9di_json_scan_open(d9di_json_scan *s, char bracket)
{
    return expect_char(s, bracket);
}

d9d_status d9di_json_scan_more(d9di_json_scan *s, char bracket, bool first, bool *more)
{
    *more = peek_char(s) != bracket;
    if (!*more)
        s->p++;
    else if (!first)
        return expect_char(s, ',');
    return D9D_OK;
}

/* Length of the UTF-8 sequence at p; 0: invalid.  Shortest form, no surrogates, up to U+10FFFF. */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    static const struct {
        unsigned char mask, lead, len;
        unsigned min;
    } rows[] = {{0x80, 0x00, 1, 0},
                {0xe0, 0xc0, 2, 0x80},
                {0xf0, 0xe0, 3, 0x800},
                {0xf8, 0xf0, 4, 0x10000}};
    unsigned c;

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        if ((p[0] & rows[r].mask) != rows[r].lead)
            continue;
        if (rows[r].len > n)
            return 0;
        c = p[0] & (unsigned)(unsigned char)~rows[r].mask;
        for (size_t k = 1; k < rows[r].len; k++) {
            if ((p[k] & 0xc0) != 0x80)
                return 0;
            c = (c << 6) | (p[k] & 0x3f);
        }
        return c < rows[r].min || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : rows[r].len;
    }
    return 0;
}

static size_t utf8_encode(unsigned c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | (c >> 6));
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | (c >> 12));
        out[1] = (char)(0x80 | ((c >> 6) & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (c >> 18));
    out[1] = (char)(0x80 | ((c >> 12) & 0x3f));
    out[2] = (char)(0x80 | ((c >> 6) & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

static bool read_hex4(d9di_json_scan *s, unsigned *out)
{
    unsigned v = 0;

    if (s->end - s->p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)*s->p++;

        if (c >= '0' && c <= '9')
            v = v * 16 + (unsigned)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + (unsigned)((c | 32) - 'a' + 10);
        else
            return false;
    }
    *out = v;
    return true;
}

/* Reads an escape after "\u"; a surrogate pair is one character. */
static d9d_status read_unicode_escape(d9di_json_scan *s, char *out, size_t *len)
{
    unsigned c, low;

    if (!read_hex4(s, &c))
        return fail_at(s, "expected four hexadecimal digits");
    if (c >= 0xd800 && c < 0xdc00 && s->end - s->p >= 2 && s->p[0] == '\\' && s->p[1] == 'u') {
        s->p += 2;
        if (!read_hex4(s, &low) || low < 0xdc00 || low >= 0xe000)
            return fail_at(s, "half of a surrogate pair");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c >= 0xd800 && c < 0xe000)
        return fail_at(s, "half of a surrogate pair");
    if (d9di_json_scan_is_control(c) && !s->allow_control)
        return fail_at(s, "control character in a string");
    *len = utf8_encode(c, out);
    return D9D_OK;
}

/* Reads an escape after the backslash. */
static d9d_status read_escape(d9di_json_scan *s, char *out, size_t *len)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char c = s->p < s->end ? *s->p++ : '\0';
    const char *control = c != '\0' ? strchr(from, c) : NULL;

    if (c == 'u')
        return read_unicode_escape(s, out, len);
    if (c == '"' || c == '\\' || c == '/') {
        *out = c;
        *len = 1;
        return D9D_OK;
    }
    if (control == NULL)
        return fail_at(s, "unknown escape in a string");
    if (!s->allow_control)
        return fail_at(s, "control character in a string");
    *out = to[control - from];
    *len = 1;
    return D9D_OK;
}

d9d_status d9di_json_scan_string(d9di_json_scan *s, d9d_arena *a, char **out, size_t *len)
{
    const char *close;
    char *text;
    size_t n = 0, k = 0;

    D9D_TRY(expect_char(s, '"'));
    /* The decoded string is never longer than its source. */
    for (close = s->p; close < s->end && *close != '"'; close++)
        if (*close == '\\')
            close++;
    if (close >= s->end)
        return fail_at(s, "string without an end");
    text = d9d_arena_alloc(a, (size_t)(close - s->p) + 1);
    if (text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", s->where);
    while (s->p < close) {
        if (*s->p == '\\') {
            s->p++;
            D9D_TRY(read_escape(s, text + n, &k));
        } else {
            if ((unsigned char)*s->p < 0x20 || (*s->p == 0x7f && !s->allow_control))
                return fail_at(s, "control character in a string");
            k = utf8_length((const unsigned char *)s->p, (size_t)(close - s->p));
            if (k == 0)
                return fail_at(s, "invalid UTF-8");
            memcpy(text + n, s->p, k);
            s->p += k;
        }
        n += k;
    }
    s->p++;
    text[n] = '\0';
    *out = text;
    *len = n;
    return D9D_OK;
}

d9d_status d9di_json_scan_free_text(d9di_json_scan *s, d9d_arena *a, char **out, size_t *len)
{
    d9d_status st;

    s->allow_control = true;
    st = d9di_json_scan_string(s, a, out, len);
    s->allow_control = false;
    return st;
}

bool d9di_json_scan_null(d9di_json_scan *s)
{
    if (peek_char(s) != 'n' || s->end - s->p < 4 || memcmp(s->p, "null", 4) != 0)
        return false;
    s->p += 4;
    return true;
}

d9d_status d9di_json_scan_key(d9di_json_scan *s, d9d_arena *a, char **out, size_t *len)
{
    D9D_TRY(d9di_json_scan_string(s, a, out, len));
    return expect_char(s, ':');
}

d9d_status d9di_json_scan_u64(d9di_json_scan *s, uint64_t *out)
{
    uint64_t v = 0;
    const char *start;

    (void)peek_char(s);
    for (start = s->p; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++)
        if (!d9d_checked_mul_u64(v, 10, &v) || !d9d_checked_add_u64(v, (uint64_t)(*s->p - '0'), &v))
            return fail_at(s, "number over 2^64");
    if (s->p == start || (*start == '0' && s->p - start > 1))
        return fail_at(s, "expected a non-negative integer");
    if (s->p < s->end && strchr(".eE", *s->p) != NULL && *s->p != '\0')
        return fail_at(s, "expected a non-negative integer");
    *out = v;
    return D9D_OK;
}

/* Skips a string without decoding its escapes. */
static d9d_status skip_string(d9di_json_scan *s)
{
    for (s->p++; s->p < s->end && *s->p != '"'; s->p++)
        if (*s->p == '\\')
            s->p++;
    if (s->p >= s->end) {
        s->p = s->end;
        return fail_at(s, "string without an end");
    }
    s->p++;
    return D9D_OK;
}

/* Skips true, false, null or a number, loosely checked. */
static d9d_status skip_word(d9di_json_scan *s)
{
    const char *start = s->p;

    while (s->p < s->end && *s->p != '\0' &&
           strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *s->p) != NULL)
        s->p++;
    return s->p > start ? D9D_OK : fail_at(s, "expected a value");
}

d9d_status d9di_json_scan_skip(d9di_json_scan *s)
{
    char close[MAX_DEPTH];
    int depth = 0;

    do {
        int c = peek_char(s);

        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH)
                return fail_at(s, "nested too deeply");
            close[depth++] = c == '{' ? '}' : ']';
            s->p++;
        } else if (depth > 0 && c == close[depth - 1]) {
            depth--;
            s->p++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            s->p++;
        } else if (c == '"') {
            D9D_TRY(skip_string(s));
        } else {
            D9D_TRY(skip_word(s));
        }
    } while (depth > 0);
    return D9D_OK;
}

d9d_status d9di_json_scan_end(d9di_json_scan *s)
{
    return peek_char(s) < 0 ? D9D_OK : fail_at(s, "text after the end");
}
