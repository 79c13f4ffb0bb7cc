/* jsonl.c - see jsonl.h. */
#include "data/io/jsonl.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/tokenizer/utf8.h"

enum { MAX_DEPTH = 512 };

struct scan {
    const char *s;
    size_t n, at;
    d9di_jsonl_error *error;
};

static d9d_status fail_record(struct scan *p, d9d_shard_bad_record reason, const char *fmt, ...)
    D9D_PRINTF(3, 4);
static d9d_status fail_record(struct scan *p, d9d_shard_bad_record reason, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)d9d_num_vformat(p->error->message, sizeof(p->error->message), fmt, ap);
    va_end(ap);
    p->error->offset = p->at;
    p->error->reason = reason;
    return D9D_EFORMAT;
}
/* Failures: not JSON, a missing member, an unusable value. */
#define fail_json(p, ...)    fail_record(p, D9D_SHARD_BAD_JSON, __VA_ARGS__)
#define fail_missing(p, ...) fail_record(p, D9D_SHARD_BAD_MEMBER, __VA_ARGS__)
#define fail_value(p, ...)   fail_record(p, D9D_SHARD_BAD_VALUE, __VA_ARGS__)

static void skip_space(struct scan *p)
{
    while (p->at < p->n && (p->s[p->at] == ' ' || p->s[p->at] == '\t' || p->s[p->at] == '\r' ||
                            p->s[p->at] == '\n'))
        p->at++;
}

static int peek_char(const struct scan *p)
{
    return p->at < p->n ? (unsigned char)p->s[p->at] : -1;
}

static bool accept_char(struct scan *p, char c)
{
    if (peek_char(p) != (unsigned char)c)
        return false;
    p->at++;
    return true;
}

/* --- strings ------------------------------------------------------------------------------ */

static d9d_status parse_hex4(struct scan *p, uint32_t *out)
{
    int i;

    *out = 0;
    for (i = 0; i < 4; i++, p->at++) {
        const int c = peek_char(p);

        if (c >= '0' && c <= '9')
            *out = *out << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            *out = *out << 4 | (uint32_t)((c | 32) - 'a' + 10);
        else
            return fail_json(p, "\\u needs four hexadecimal digits");
    }
    return D9D_OK;
}

/* Parses an escape after \u; joins surrogate pairs. */
static d9d_status parse_unicode_escape(struct scan *p, uint32_t *out)
{
    uint32_t low;

    D9D_TRY(parse_hex4(p, out));
    if (*out < 0xd800 || *out > 0xdfff)
        return D9D_OK;
    if (*out > 0xdbff || !accept_char(p, '\\') || !accept_char(p, 'u'))
        return fail_json(p, "half of a surrogate pair");
    D9D_TRY(parse_hex4(p, &low));
    if (low < 0xdc00 || low > 0xdfff)
        return fail_json(p, "half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return D9D_OK;
}

static d9d_status parse_escape(struct scan *p, uint32_t *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int c = peek_char(p);
    const char *at = c > 0 ? strchr(from, c) : NULL;

    if (c == 'u') {
        p->at++;
        return parse_unicode_escape(p, out);
    }
    if (!at)
        return fail_json(p, "an unknown escape");
    p->at++;
    *out = (unsigned char)to[at - from];
    return D9D_OK;
}

/* The first byte of s[at, n) that is a quote, a backslash or a control character.  Tests eight
 * bytes at a time: (x - k) & ~x sets the top bit of each byte below k <= 0x80.  Bytes after the
 * first such byte may be set wrongly, so only the lowest bit counts. */
static size_t find_special(const char *s, size_t at, size_t n)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), top = ones << 7;
    uint64_t x, quote, slash, special;

    for (; at + sizeof(x) <= n; at += sizeof(x)) {
        memcpy(&x, s + at, sizeof(x));
        quote = x ^ ones * '"';
        slash = x ^ ones * '\\';
        special =
            (((x - ones * 0x20) & ~x) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) &
            top;
        if (special)
            return at + (size_t)__builtin_ctzll(special) / 8;
    }
    while (at < n && s[at] != '"' && s[at] != '\\' && (unsigned char)s[at] >= 0x20)
        at++;
    return at;
}

/* Parses a string into `out`, unless that is NULL. */
static d9d_status parse_string(struct scan *p, d9d_buf *out)
{
    if (!accept_char(p, '"'))
        return fail_json(p, "a string is expected");
    for (;;) {
        const size_t from = p->at;
        uint32_t c = 0;
        char utf8[4];

        p->at = find_special(p->s, p->at, p->n);
        if (out)
            D9D_TRY(d9d_buf_append(out, p->s + from, p->at - from));
        if (accept_char(p, '"'))
            return D9D_OK;
        if (!accept_char(p, '\\'))
            return fail_json(p, p->at < p->n ? "a control character in a string"
                                             : "a string has no end");
        D9D_TRY(parse_escape(p, &c));
        if (out)
            D9D_TRY(d9d_buf_append(out, utf8, d9di_utf8_encode(c, utf8)));
    }
}

/* --- values -------------------------------------------------------------------------------- */

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool skip_digits(struct scan *p)
{
    const size_t from = p->at;

    while (is_digit(peek_char(p)))
        p->at++;
    return p->at > from;
}

static d9d_status skip_number(struct scan *p)
{
    (void)accept_char(p, '-');
    if (!accept_char(p, '0') && !skip_digits(p))
        return fail_json(p, "a value is expected");
    if (accept_char(p, '.') && !skip_digits(p))
        return fail_json(p, "a digit is expected");
    if (accept_char(p, 'e') || accept_char(p, 'E')) {
        if (!accept_char(p, '+'))
            (void)accept_char(p, '-');
        if (!skip_digits(p))
            return fail_json(p, "a digit is expected");
    }
    return D9D_OK;
}

static d9d_status skip_literal(struct scan *p)
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

static d9d_status skip_nested(struct scan *p, int depth);

/* Skips an array or an object after its opening bracket. */
static d9d_status skip_values(struct scan *p, char close, int depth)
{
    skip_space(p);
    if (accept_char(p, close))
        return D9D_OK;
    do {
        skip_space(p);
        if (close == '}') {
            D9D_TRY(parse_string(p, NULL));
            skip_space(p);
            if (!accept_char(p, ':'))
                return fail_json(p, "':' is expected");
            skip_space(p);
        }
        D9D_TRY(skip_nested(p, depth));
        skip_space(p);
    } while (accept_char(p, ','));
    return accept_char(p, close) ? D9D_OK : fail_json(p, "',' or '%c' is expected", close);
}

static d9d_status skip_nested(struct scan *p, int depth)
{
    if (depth == MAX_DEPTH)
        return fail_json(p, "nested deeper than %d levels", MAX_DEPTH);
    if (peek_char(p) == '"')
        return parse_string(p, NULL);
    if (accept_char(p, '{'))
        return skip_values(p, '}', depth + 1);
    if (accept_char(p, '['))
        return skip_values(p, ']', depth + 1);
    return skip_literal(p);
}

static d9d_status skip_value(struct scan *p)
{
    return skip_nested(p, 0);
}

/* --- the object ------------------------------------------------------------------------------ */

/* Called at a member's value, which it must consume. */
typedef d9d_status (*member_fn)(struct scan *p, void *arg, const char *key, size_t len);

/* Parses an object, calling `fn` for each member. */
static d9d_status parse_object(struct scan *p, member_fn fn, void *arg)
{
    d9d_buf key = {0};
    d9d_status st = D9D_OK;

    if (!accept_char(p, '{'))
        return fail_json(p, peek_char(p) == '['
                                ? "is not a JSON object but an array; jq -c '.[]' makes JSON "
                                  "lines of one"
                                : "is not a JSON object");
    skip_space(p);
    if (accept_char(p, '}'))
        return D9D_OK;
    do {
        skip_space(p);
        key.len = 0;
        D9D_TRY_OR(st, parse_string(p, &key), out);
        skip_space(p);
        if (!accept_char(p, ':')) {
            st = fail_json(p, "':' is expected");
            goto out;
        }
        skip_space(p);
        D9D_TRY_OR(st, fn(p, arg, key.data ? key.data : "", key.len), out);
        skip_space(p);
    } while (accept_char(p, ','));
    st = accept_char(p, '}') ? D9D_OK : fail_json(p, "',' or '}' is expected");
out:
    d9d_buf_release(&key);
    return st;
}

/* Called at an element, which it must consume. */
typedef d9d_status (*element_fn)(struct scan *p, void *arg);

/* Parses the array `name`, calling `fn` for each element. */
static d9d_status parse_array(struct scan *p, const char *name, element_fn fn, void *arg)
{
    if (!accept_char(p, '['))
        return fail_value(p, "\"%s\" is not an array", name);
    skip_space(p);
    if (accept_char(p, ']'))
        return D9D_OK;
    do {
        skip_space(p);
        D9D_TRY(fn(p, arg));
        skip_space(p);
    } while (accept_char(p, ','));
    return accept_char(p, ']') ? D9D_OK : fail_json(p, "',' or ']' is expected");
}

/* Parses a line that is one object. */
static d9d_status parse_line(struct scan *p, member_fn fn, void *arg)
{
    skip_space(p);
    D9D_TRY(parse_object(p, fn, arg));
    skip_space(p);
    return p->at == p->n ? D9D_OK : fail_json(p, "something follows the object");
}

static bool is_key(const char *key, size_t len, const char *name)
{
    return len == strlen(name) && memcmp(key, name, len) == 0;
}

/* A requested member must occur once; a duplicate would be ambiguous. */
static d9d_status check_once(struct scan *p, bool before, const char *key)
{
    return before ? fail_value(p, "\"%.60s\" is given twice", key) : D9D_OK;
}

/* --- missing members ----------------------------------------------------------------------- */

/* Which option reads lines with a given member. */
static const struct hint {
    const char *key, *advice;
} hints[] = {
    {"messages", "--format chat reads messages"},
    {"input_ids", "--format tokens reads input_ids"},
    {"conversations", "--format chat reads conversations"},
    {"instruction", "--format chat reads instructions and outputs"},
    {"completion", "--format chat reads prompts and completions"},
    {"text", "--format jsonl reads text"},
};
enum { HINTS = sizeof(hints) / sizeof(hints[0]), LISTED = 6 };

/* The names of a line's members, for messages. */
struct listing {
    char names[160];
    size_t len, n;
    bool has[HINTS];
};

static d9d_status listed_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct listing *l = arg;
    const size_t left = sizeof(l->names) - l->len;

    for (size_t i = 0; i < HINTS; i++)
        l->has[i] = l->has[i] || is_key(key, len, hints[i].key);
    if (l->n < LISTED && len + 6 < left)
        l->len += (size_t)snprintf(l->names + l->len, left, "%s\"%.*s\"", l->n > 0 ? ", " : "",
                                   (int)len, key);
    l->n++;
    return skip_value(p);
}

/* Fails because the line has no member `key`.  The message lists its members and `advice`, or NULL.
 */
static d9d_status fail_missing_member(struct scan *p, const char *key, const struct listing *l,
                                      const char *advice)
{
    if (l->n == 0)
        return fail_missing(p, "has no \"%.60s\"", key);
    return fail_missing(p, "has no \"%.60s\", but %s%s%s%s", key, l->len > 0 ? l->names : "others",
                        l->n > LISTED ? ", ..." : "", advice ? ": " : "", advice ? advice : "");
}

static void list_members(const struct scan *p, struct listing *out)
{
    struct scan again = {p->s, p->n, 0, p->error};

    *out = (struct listing){.len = 0};
    if (parse_line(&again, listed_member, out) != D9D_OK)
        out->n = 0;
}

/* A member by which a format is known: the advice is the format that reads the line.  `other`: an
 * option that names another member, or NULL. */
static d9d_status fail_missing_key(struct scan *p, const char *key, const char *other)
{
    struct listing l;

    list_members(p, &l);
    for (size_t i = HINTS; i-- > 0;)
        if (l.has[i])
            other = hints[i].advice;
    return fail_missing_member(p, key, &l, other);
}

struct want_which {
    const char *const *keys;
    int which;
};

static d9d_status which_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_which *w = arg;

    for (int i = 0; w->keys[i] != NULL; i++)
        if (is_key(key, len, w->keys[i]) && (w->which < 0 || i < w->which))
            w->which = i;
    return skip_value(p);
}

d9d_status d9di_jsonl_find_key(const char *line, size_t n, const char *const *keys, int *which,
                               d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_which w = {keys, -1};

    D9D_TRY(parse_line(&p, which_member, &w));
    *which = w.which;
    return D9D_OK;
}

struct want_text {
    const char *key;
    d9d_buf *out;
    bool found;
};

static d9d_status text_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_text *w = arg;

    if (!is_key(key, len, w->key))
        return skip_value(p);
    D9D_TRY(check_once(p, w->found, w->key));
    if (peek_char(p) != '"')
        return fail_value(p, "\"%.60s\" is not a string", w->key);
    w->found = true;
    return parse_string(p, w->out);
}

d9d_status d9di_jsonl_get_text(const char *line, size_t n, const char *key, d9d_buf *out,
                               d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_text w = {key, out, false};

    D9D_TRY(parse_line(&p, text_member, &w));
    return w.found ? D9D_OK
                   : fail_missing_key(&p, key, "--text-key names the member with the text");
}

struct want_tokens {
    d9d_token_ids *ids;
    d9di_token_labels *labels;
    uint32_t vocab;
    size_t ids_before, labels_before;
    bool has_ids, has_labels;
};

/* Reads the digits of a JSON integer, of which there is one if the first is 0.  False: this is
 * something else, or too large. */
static bool scan_integer(struct scan *p, int64_t *out)
{
    const bool minus = accept_char(p, '-'), zero = accept_char(p, '0');
    const size_t at = p->at;
    int64_t v = 0;

    while (!zero && is_digit(peek_char(p)) && v <= INT32_MAX)
        v = v * 10 + (p->s[p->at++] - '0');
    *out = minus ? -v : v;
    return (zero || (p->at > at && !is_digit(peek_char(p)))) && peek_char(p) != '.' &&
           (peek_char(p) | 32) != 'e';
}

static d9d_status fail_integer(struct scan *p, size_t at, int64_t min, int64_t max,
                               const char *what)
{
    p->at = at;
    return fail_value(p, "%s must be an integer from %lld to %lld", what, (long long)min,
                      (long long)max);
}

/* What is no JSON at all says so itself. */
static d9d_status parse_bounded_int(struct scan *p, int64_t min, int64_t max, const char *what,
                                    int64_t *out)
{
    const size_t at = p->at;

    if (scan_integer(p, out) && *out >= min && *out <= max)
        return D9D_OK;
    p->at = at;
    D9D_TRY(skip_value(p));
    return fail_integer(p, at, min, max, what);
}

/* The same in a string, behind its first quote, where zeros may stand in front. */
static d9d_status parse_quoted_int(struct scan *p, int64_t min, int64_t max, const char *what,
                                   int64_t *out)
{
    const size_t at = p->at;

    while (peek_char(p) == '0' && p->at + 1 < p->n && is_digit(p->s[p->at + 1]))
        p->at++;
    return scan_integer(p, out) && *out >= min && *out <= max && accept_char(p, '"')
               ? D9D_OK
               : fail_integer(p, at, min, max, what);
}

struct want_label {
    const char *key;
    int64_t max_value, number; /* -1: none was found */
};

/* A text that does not begin as a number does. */
static bool is_name(const struct scan *p)
{
    const char next = (char)(p->at + 1 < p->n ? p->s[p->at + 1] : 0);

    return peek_char(p) == '"' && next != '-' && !is_digit(next);
}

static d9d_status label_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_label *w = arg;
    char what[96];

    if (!is_key(key, len, w->key))
        return skip_value(p);
    D9D_TRY(check_once(p, w->number >= 0, w->key));
    (void)snprintf(what, sizeof(what), "a class (\"%s\")", w->key);
    if (is_name(p))
        return fail_value(
            p, "%s must be an integer from 0, and this one is a name: number the names", what);
    return accept_char(p, '"') ? parse_quoted_int(p, 0, w->max_value, what, &w->number)
                               : parse_bounded_int(p, 0, w->max_value, what, &w->number);
}

d9d_status d9di_jsonl_get_label(const char *line, size_t n, const char *key, uint32_t vocab,
                                int32_t *out, d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_label w = {key, (int64_t)vocab - 1, -1};
    struct listing l;

    D9D_TRY(parse_line(&p, label_member, &w));
    if (w.number < 0) {
        list_members(&p, &l);
        return fail_missing_member(&p, key, &l, "--label-key names the member with the class");
    }
    *out = (int32_t)w.number;
    return D9D_OK;
}

static d9d_status parse_id(struct scan *p, void *arg)
{
    struct want_tokens *w = arg;
    int64_t v = 0;

    D9D_TRY(parse_bounded_int(p, 0, (int64_t)w->vocab - 1, "an id", &v));
    return D9D_VEC_PUSH(w->ids, (uint32_t)v);
}

static d9d_status parse_label(struct scan *p, void *arg)
{
    struct want_tokens *w = arg;
    int64_t v = 0;

    D9D_TRY(parse_bounded_int(p, -100, (int64_t)w->vocab - 1, "a label", &v));
    if (v < 0 && v != -100)
        return fail_value(p, "a label is %lld; below 0 it must be -100", (long long)v);
    return D9D_VEC_PUSH(w->labels, (int32_t)v);
}

static d9d_status tokens_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_tokens *w = arg;

    if (is_key(key, len, "input_ids")) {
        D9D_TRY(check_once(p, w->has_ids, "input_ids"));
        w->has_ids = true;
        return parse_array(p, "input_ids", parse_id, w);
    }
    if (is_key(key, len, "labels")) {
        D9D_TRY(check_once(p, w->has_labels, "labels"));
        w->has_labels = true;
        return parse_array(p, "labels", parse_label, w);
    }
    return skip_value(p);
}

d9d_status d9di_jsonl_get_tokens(const char *line, size_t n, uint32_t vocab, d9d_token_ids *ids,
                                 d9di_token_labels *labels, bool *has_labels,
                                 d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_tokens w = {.ids = ids,
                            .labels = labels,
                            .vocab = vocab,
                            .ids_before = ids->len,
                            .labels_before = labels->len};
    size_t n_ids, n_labels;

    D9D_TRY(parse_line(&p, tokens_member, &w));
    n_ids = ids->len - w.ids_before;
    n_labels = labels->len - w.labels_before;
    if (!w.has_ids)
        return fail_missing_key(&p, "input_ids", NULL);
    if (w.has_labels && n_labels != n_ids)
        return fail_value(&p, "has %zu labels for %zu ids", n_labels, n_ids);
    *has_labels = w.has_labels;
    return D9D_OK;
}

/* --- arrays of numbers ------------------------------------------------------------------------ */

struct want_arrays {
    d9di_jsonl_array *arrays;
    size_t n, at; /* `at` is being read */
    d9d_status (*put)(void *arg, size_t array, const d9di_jsonl_number *v);
    void *arg;
};

/* The number in the text that was passed over since `from`; of 64 bytes at most, since more digits
 * than that are no number that a type here holds. */
static d9d_status convert_number(struct scan *p, const d9di_jsonl_array *a, size_t from,
                                 d9di_jsonl_number *out)
{
    const size_t n = p->at - from;
    char text[64], *end;

    if (n < sizeof(text)) {
        memcpy(text, p->s + from, n);
        text[n] = '\0';
        out->real = d9d_num_parse(text, &end);
        errno = 0;
        out->whole = a->whole ? strtoll(text, &end, 10) : 0;
        if (errno == 0 && *end == '\0' &&
            (a->whole ? out->whole >= a->min && out->whole <= a->max : isfinite((float)out->real)))
            return D9D_OK;
    }
    p->at = from;
    if (a->whole)
        return fail_value(p, "\"%.60s\" must have integers from %lld to %lld", a->key,
                          (long long)a->min, (long long)a->max);
    return fail_value(p, "\"%.60s\" must have finite numbers of float32", a->key);
}

static d9d_status read_number(struct scan *p, struct want_arrays *w)
{
    const d9di_jsonl_array *a = &w->arrays[w->at];
    const size_t from = p->at;
    d9di_jsonl_number v = {.real = (double)NAN};

    if (peek_char(p) == 'n') {
        D9D_TRY(skip_literal(p));
        if (a->nulls)
            return w->put(w->arg, w->at, &v);
        p->at = from;
        return fail_value(p, "\"%.60s\" has null, which stands for NaN: it allows none", a->key);
    }
    if (peek_char(p) != '-' && !is_digit(peek_char(p)))
        return fail_value(p, "\"%.60s\" has something here that is no number", a->key);
    D9D_TRY(skip_number(p));
    D9D_TRY(convert_number(p, a, from, &v));
    return w->put(w->arg, w->at, &v);
}

static d9d_status fail_length(struct scan *p, const d9di_jsonl_array *a, int dim, int64_t n)
{
    return fail_value(p, "\"%.60s\" has %s%lld elements in dimension %d, must have %lld", a->key,
                      n > a->shape[dim] ? "more than " : "",
                      (long long)(n > a->shape[dim] ? n - 1 : n), dim, (long long)a->shape[dim]);
}

static d9d_status read_dimension(struct scan *p, struct want_arrays *w, int dim)
{
    d9di_jsonl_array *a = &w->arrays[w->at];
    int64_t n = 0;

    if (dim == a->rank)
        return read_number(p, w);
    if (!accept_char(p, '['))
        return fail_value(p, "\"%.60s\" has no array in dimension %d of %d", a->key, dim, a->rank);
    skip_space(p);
    if (!accept_char(p, ']')) {
        do {
            skip_space(p);
            if (++n > a->shape[dim] && a->shape[dim] >= 0)
                return fail_length(p, a, dim, n);
            D9D_TRY(read_dimension(p, w, dim + 1));
            skip_space(p);
        } while (accept_char(p, ','));
        if (!accept_char(p, ']'))
            return fail_json(p, "',' or ']' is expected");
    }
    if (a->shape[dim] >= 0 && n != a->shape[dim])
        return fail_length(p, a, dim, n);
    if (dim == 0)
        a->rows = n;
    return D9D_OK;
}

static d9d_status arrays_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct want_arrays *w = arg;
    bool quoted;

    for (w->at = 0; w->at < w->n && !is_key(key, len, w->arrays[w->at].key);)
        w->at++;
    if (w->at == w->n)
        return skip_value(p);
    D9D_TRY(check_once(p, w->arrays[w->at].found, w->arrays[w->at].key));
    w->arrays[w->at].found = true;
    quoted = w->arrays[w->at].rank == 0 && accept_char(p, '"');
    D9D_TRY(read_dimension(p, w, 0));
    return !quoted || accept_char(p, '"')
               ? D9D_OK
               : fail_value(p, "\"%.60s\" is no number", w->arrays[w->at].key);
}

d9d_status d9di_jsonl_get_arrays(const char *line, size_t n, d9di_jsonl_array *arrays,
                                 size_t n_arrays,
                                 d9d_status (*put)(void *arg, size_t array,
                                                   const d9di_jsonl_number *v),
                                 void *arg, d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    struct want_arrays w = {.arrays = arrays, .n = n_arrays, .put = put, .arg = arg};

    for (size_t i = 0; i < n_arrays; i++)
        arrays[i].found = false;
    D9D_TRY(parse_line(&p, arrays_member, &w));
    for (size_t i = 0; i < n_arrays; i++)
        if (!arrays[i].found)
            return fail_missing_key(&p, arrays[i].key, NULL);
    return D9D_OK;
}

/* --- chats ------------------------------------------------------------------------------------ */

/* Parses a message's weight in the loss: 0 or 1. */
static d9d_status check_weight(struct scan *p)
{
    static const char *const known[] = {"0", "0.0", "1", "1.0", "null"};
    const size_t at = p->at;

    D9D_TRY(skip_value(p));
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (is_key(p->s + at, p->at - at, known[i]))
            return D9D_OK;
    p->at = at;
    return fail_json(p, "\"weight\" must be 0, which trains nothing of a message, or 1");
}

/* Which members a message has, beside those that do not matter here. */
struct message_members {
    bool role, content, others;
};

static d9d_status check_member(struct scan *p, void *arg, const char *key, size_t len)
{
    struct message_members *has = arg;

    if (is_key(key, len, "role")) {
        has->role = true;
        return peek_char(p) == '"' ? skip_value(p) : fail_value(p, "\"role\" is not a string");
    }
    if (is_key(key, len, "weight"))
        return check_weight(p);
    has->content = has->content || is_key(key, len, "content");
    has->others = has->others || is_key(key, len, "tool_calls") || is_key(key, len, "thinking") ||
                  is_key(key, len, "reasoning") || is_key(key, len, "reasoning_content");
    return skip_value(p);
}

static d9d_status check_message(struct scan *p, void *arg)
{
    struct message_members has = {false, false, false};
    const size_t at = p->at;

    (void)arg;
    D9D_TRY(parse_object(p, check_member, &has));
    if (has.role && (has.content || has.others))
        return D9D_OK;
    p->at = at;
    return fail_missing(p, "a message without \"%s\"", has.role ? "content" : "role");
}

static d9d_status check_chat_member(struct scan *p, void *arg, const char *key, size_t len)
{
    bool *has_messages = arg;

    if (is_key(key, len, "system"))
        return peek_char(p) == '"' || peek_char(p) == 'n'
                   ? skip_value(p)
                   : fail_value(p, "\"system\" is not a string");
    if (!is_key(key, len, "messages"))
        return skip_value(p);
    D9D_TRY(check_once(p, *has_messages, "messages"));
    *has_messages = true;
    return parse_array(p, "messages", check_message, NULL);
}

static d9d_status parse_chat(struct scan *p, json_t **chat)
{
    const d9d_status st = d9d_json_parse("the chat", p->s, p->n, chat);
    d9d_err_copy why;

    if (st != D9D_EFORMAT)
        return st;
    d9d_err_save(&why, st);
    p->at = 0;
    return fail_json(p, "%.300s", why.text);
}

d9d_status d9di_jsonl_get_chat(const char *line, size_t n, const d9di_chat_reader *reader,
                               json_t **out, d9di_jsonl_error *error)
{
    struct scan p = {line, n, 0, error};
    bool has_messages = false;
    json_t *chat = NULL;
    char why[sizeof(error->message)] = "";
    d9d_status st;

    D9D_TRY(parse_line(&p, check_chat_member, &has_messages));
    D9D_TRY(parse_chat(&p, &chat));
    p.at = 0;
    st = d9di_chat_layout_tools(chat, why, sizeof(why));
    if (st != D9D_OK)
        st = st == D9D_EFORMAT ? fail_value(&p, "%s", why) : st;
    else if (has_messages)
        st = d9di_chat_layout_system(chat);
    else if (!d9di_chat_layout_convert(chat, reader, why, sizeof(why), &st))
        st = fail_missing_key(&p, "messages", NULL);
    else if (st == D9D_EFORMAT)
        st = fail_value(&p, "%s", why);
    if (st == D9D_OK)
        *out = chat;
    else
        json_decref(chat);
    return st;
}
