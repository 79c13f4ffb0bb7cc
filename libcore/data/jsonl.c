/* jsonl.c - see jsonl.h. */
#include "data/jsonl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "data/utf8.h"

enum { MAX_DEPTH = 512 };

struct scan {
    const char *s;
    size_t n, at;
    d9di_jsonl_error *error;
};

static d9d_status bad(struct scan *p, const char *fmt, ...) D9D_PRINTF(2, 3);
static d9d_status bad(struct scan *p, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(p->error->what, sizeof(p->error->what), fmt, ap);
    va_end(ap);
    p->error->at = p->at;
    return D9D_EFORMAT;
}

static void skip_space(struct scan *p)
{
    while (p->at < p->n && (p->s[p->at] == ' ' || p->s[p->at] == '\t' || p->s[p->at] == '\r' ||
                            p->s[p->at] == '\n'))
        p->at++;
}

static int here(const struct scan *p)
{
    return p->at < p->n ? (unsigned char)p->s[p->at] : -1;
}

static bool take(struct scan *p, char c)
{
    if (here(p) != (unsigned char)c)
        return false;
    p->at++;
    return true;
}

/* --- strings ------------------------------------------------------------------------------ */

static d9d_status hex4(struct scan *p, uint32_t *out)
{
    int i;

    *out = 0;
    for (i = 0; i < 4; i++, p->at++) {
        const int c = here(p);

        if (c >= '0' && c <= '9')
            *out = *out << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            *out = *out << 4 | (uint32_t)((c | 32) - 'a' + 10);
        else
            return bad(p, "\\u needs four hexadecimal digits");
    }
    return D9D_OK;
}

/* What follows \u, surrogate pairs joined. */
static d9d_status unicode_escape(struct scan *p, uint32_t *out)
{
    uint32_t low;

    D9D_TRY(hex4(p, out));
    if (*out < 0xd800 || *out > 0xdfff)
        return D9D_OK;
    if (*out > 0xdbff || !take(p, '\\') || !take(p, 'u'))
        return bad(p, "half of a surrogate pair");
    D9D_TRY(hex4(p, &low));
    if (low < 0xdc00 || low > 0xdfff)
        return bad(p, "half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return D9D_OK;
}

static d9d_status escape(struct scan *p, uint32_t *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int c = here(p);
    const char *at = c > 0 ? strchr(from, c) : NULL;

    if (c == 'u') {
        p->at++;
        return unicode_escape(p, out);
    }
    if (!at)
        return bad(p, "an unknown escape");
    p->at++;
    *out = (unsigned char)to[at - from];
    return D9D_OK;
}

/* The string that begins here; into `out` unless that is NULL. */
static d9d_status string(struct scan *p, d9d_buf *out)
{
    if (!take(p, '"'))
        return bad(p, "a string is expected");
    for (;;) {
        const size_t from = p->at;
        uint32_t c = 0;
        char utf8[4];

        while (p->at < p->n && p->s[p->at] != '"' && p->s[p->at] != '\\' &&
               (unsigned char)p->s[p->at] >= 0x20)
            p->at++;
        if (out)
            D9D_TRY(d9d_buf_append(out, p->s + from, p->at - from));
        if (take(p, '"'))
            return D9D_OK;
        if (!take(p, '\\'))
            return bad(p, p->at < p->n ? "a control character in a string" : "a string has no end");
        D9D_TRY(escape(p, &c));
        if (out)
            D9D_TRY(d9d_buf_append(out, utf8, d9di_utf8_put(c, utf8)));
    }
}

/* --- values -------------------------------------------------------------------------------- */

static bool digits(struct scan *p)
{
    const size_t from = p->at;

    while (here(p) >= '0' && here(p) <= '9')
        p->at++;
    return p->at > from;
}

static d9d_status skip_number(struct scan *p)
{
    (void)take(p, '-');
    if (!take(p, '0') && !digits(p))
        return bad(p, "a value is expected");
    if (take(p, '.') && !digits(p))
        return bad(p, "a digit is expected");
    if (take(p, 'e') || take(p, 'E')) {
        if (!take(p, '+'))
            (void)take(p, '-');
        if (!digits(p))
            return bad(p, "a digit is expected");
    }
    return D9D_OK;
}

static d9d_status skip_word(struct scan *p)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t i;

    for (i = 0; i < 3; i++) {
        const size_t len = strlen(words[i]);

        if (p->n - p->at >= len && memcmp(p->s + p->at, words[i], len) == 0) {
            p->at += len;
            return D9D_OK;
        }
    }
    return skip_number(p);
}

static d9d_status skip_value(struct scan *p, int depth);

/* The inside of an array or an object up to its closing bracket. */
static d9d_status skip_members(struct scan *p, char close, int depth)
{
    skip_space(p);
    if (take(p, close))
        return D9D_OK;
    do {
        skip_space(p);
        if (close == '}') {
            D9D_TRY(string(p, NULL));
            skip_space(p);
            if (!take(p, ':'))
                return bad(p, "':' is expected");
            skip_space(p);
        }
        D9D_TRY(skip_value(p, depth));
        skip_space(p);
    } while (take(p, ','));
    return take(p, close) ? D9D_OK : bad(p, "',' or '%c' is expected", close);
}

static d9d_status skip_value(struct scan *p, int depth)
{
    if (depth == MAX_DEPTH)
        return bad(p, "nested deeper than %d levels", MAX_DEPTH);
    if (here(p) == '"')
        return string(p, NULL);
    if (take(p, '{'))
        return skip_members(p, '}', depth + 1);
    if (take(p, '['))
        return skip_members(p, ']', depth + 1);
    return skip_word(p);
}

/* --- the object ------------------------------------------------------------------------------ */

/* Called with the scan at a member's value; passes over it. */
typedef d9d_status (*member_fn)(struct scan *p, void *arg, const char *key, size_t len);

static d9d_status members(struct scan *p, member_fn fn, void *arg)
{
    d9d_buf key = {0};
    d9d_status st;

    skip_space(p);
    if (!take(p, '{'))
        return bad(p, "is not a JSON object");
    skip_space(p);
    if (take(p, '}'))
        goto tail;
    do {
        skip_space(p);
        key.len = 0;
        D9D_TRY_OR(st, string(p, &key), out);
        skip_space(p);
        if (!take(p, ':')) {
            st = bad(p, "':' is expected");
            goto out;
        }
        skip_space(p);
        D9D_TRY_OR(st, fn(p, arg, key.data ? key.data : "", key.len), out);
        skip_space(p);
    } while (take(p, ','));
    if (!take(p, '}')) {
        st = bad(p, "',' or '}' is expected");
        goto out;
    }
tail:
    skip_space(p);
    st = p->at == p->n ? D9D_OK : bad(p, "something follows the object");
out:
    d9d_buf_release(&key);
    return st;
}

struct want_text {
    const char *key;
    d9d_buf *out;
    size_t before;
    bool found;
};

static d9d_status text_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_text *w = arg;

    if (len != strlen(w->key) || memcmp(key, w->key, len) != 0)
        return skip_value(p, 0);
    if (here(p) != '"')
        return bad(p, "\"%.60s\" is not a string", w->key);
    w->out->len = w->before;
    w->found = true;
    return string(p, w->out);
}

d9d_status d9di_jsonl_text(const char *line, size_t n, const char *key, d9d_buf *out,
                           d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_text w = {key, out, out->len, false};

    D9D_TRY(members(&p, text_member, &w));
    return w.found ? D9D_OK : bad(&p, "has no \"%.60s\"", key);
}

struct want_tokens {
    d9d_ids *ids;
    d9di_labels *labels;
    uint32_t vocab;
    size_t ids_before, labels_before;
    bool has_ids, has_labels;
};

static d9d_status small_int(struct scan *p, int64_t min, int64_t max, const char *what,
                            int64_t *out)
{
    const size_t at = p->at;
    const bool minus = take(p, '-');
    int64_t v = 0;

    while (here(p) >= '0' && here(p) <= '9' && v <= INT32_MAX)
        v = v * 10 + (p->s[p->at++] - '0');
    v = minus ? -v : v;
    if (p->at == at + minus || v < min || v > max || here(p) == '.' || (here(p) | 32) == 'e' ||
        (here(p) >= '0' && here(p) <= '9')) {
        p->at = at;
        return bad(p, "%s must be an integer from %lld to %lld", what, (long long)min,
                   (long long)max);
    }
    *out = v;
    return D9D_OK;
}

static d9d_status ids_array(struct scan *p, struct want_tokens *w)
{
    int64_t v = 0;

    w->ids->len = w->ids_before;
    skip_space(p);
    if (take(p, ']'))
        return D9D_OK;
    do {
        skip_space(p);
        D9D_TRY(small_int(p, 0, (int64_t)w->vocab - 1, "an id", &v));
        D9D_TRY(D9D_VEC_PUSH(w->ids, (uint32_t)v));
        skip_space(p);
    } while (take(p, ','));
    return take(p, ']') ? D9D_OK : bad(p, "',' or ']' is expected");
}

static d9d_status labels_array(struct scan *p, struct want_tokens *w)
{
    int64_t v = 0;

    w->labels->len = w->labels_before;
    skip_space(p);
    if (take(p, ']'))
        return D9D_OK;
    do {
        skip_space(p);
        D9D_TRY(small_int(p, -100, (int64_t)w->vocab - 1, "a label", &v));
        if (v < 0 && v != -100)
            return bad(p, "a label is %lld; below 0 it must be -100", (long long)v);
        D9D_TRY(D9D_VEC_PUSH(w->labels, (int32_t)v));
        skip_space(p);
    } while (take(p, ','));
    return take(p, ']') ? D9D_OK : bad(p, "',' or ']' is expected");
}

static d9d_status tokens_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_tokens *w = arg;
    const bool is_ids = len == 9 && memcmp(key, "input_ids", len) == 0;
    const bool is_labels = len == 6 && memcmp(key, "labels", len) == 0;

    if (!is_ids && !is_labels)
        return skip_value(p, 0);
    if (!take(p, '['))
        return bad(p, "\"%s\" is not an array", key);
    if (is_ids) {
        w->has_ids = true;
        return ids_array(p, w);
    }
    w->has_labels = true;
    return labels_array(p, w);
}

d9d_status d9di_jsonl_tokens(const char *line, size_t n, uint32_t vocab, d9d_ids *ids,
                             d9di_labels *labels, bool *has_labels, d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_tokens w = {.ids = ids,
                            .labels = labels,
                            .vocab = vocab,
                            .ids_before = ids->len,
                            .labels_before = labels->len};
    size_t n_ids, n_labels;

    D9D_TRY(members(&p, tokens_member, &w));
    n_ids = ids->len - w.ids_before;
    n_labels = labels->len - w.labels_before;
    if (!w.has_ids)
        return bad(&p, "has no \"input_ids\"");
    if (w.has_labels && n_labels != n_ids)
        return bad(&p, "has %zu labels for %zu ids", n_labels, n_ids);
    *has_labels = w.has_labels;
    return D9D_OK;
}
