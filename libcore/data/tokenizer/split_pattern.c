/* split_pattern.c - translates, compiles and runs split patterns. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/split_pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

/* PCRE2 and HF's engine know different Unicode versions.  Characters added from Unicode 14 on, up
 * to HF's version 16, are matched through aliases. */
enum { UNICODE_FIRST = 14, UNICODE_LAST = 16 };

enum { JIT_STACK_START = 32 << 10, JIT_STACK_MAX = 16 << 20 };

/* Backtracking steps per match: more than the bytes of any document that fits, and about a second
 * of work for a pattern of exponential cost. */
enum { MATCH_LIMIT = 1 << 28 };

struct d9di_split_pattern {
    pcre2_code *code;
    bool literal;
};

struct d9di_split_pattern_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static uint32_t find_alias(uint32_t c)
{
    size_t lo = 0, hi = d9di_unicode_alias_n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (c > d9di_unicode_alias[mid].last)
            lo = mid + 1;
        else if (c < d9di_unicode_alias[mid].first)
            hi = mid;
        else
            return d9di_unicode_alias[mid].alias;
    }
    return c;
}

/* --- translation --------------------------------------------------------- */

struct reader {
    const char *where, *src;
    size_t n, pos;
    d9d_buf *out;
    bool in_class;
};

static d9d_status fail_unsupported(const struct reader *r, size_t from, size_t len, const char *why)
{
    if (len > r->n - from)
        len = r->n - from;
    return D9D_FAIL(D9D_ENOTSUP, "%s: pattern: \"%.*s\" at byte %zu is not supported: %s", r->where,
                    (int)len, r->src + from, from, why);
}

static int peek_char(const struct reader *r, size_t ahead)
{
    return r->pos + ahead < r->n ? (unsigned char)r->src[r->pos + ahead] : -1;
}

static d9d_status copy_chars(struct reader *r, size_t n)
{
    D9D_TRY(d9d_buf_append(r->out, r->src + r->pos, n));
    r->pos += n;
    return D9D_OK;
}

/* \p{Lu}, \P{L}, \p{^N}: general categories have the same meaning in both; \p{Han} means the
 * characters of that script alone. */
static d9d_status translate_property(struct reader *r)
{
    static const char *const names[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                        "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                        "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                        "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
    const size_t from = r->pos;
    size_t name = r->pos + 3, len = 0, i;

    if (peek_char(r, 2) == '{' && peek_char(r, 3) == '^')
        name++;
    while (name + len < r->n && r->src[name + len] != '}')
        len++;
    if (peek_char(r, 2) == '{' && len == 3 && name + len < r->n &&
        memcmp(r->src + name, "Han", 3) == 0) {
        r->pos = name + len + 1;
        return d9d_buf_printf(r->out, "\\%c{%ssc:Han}", r->src[from + 1],
                              name > from + 3 ? "^" : "");
    }
    for (i = 0; peek_char(r, 2) == '{' && name + len < r->n && i < sizeof(names) / sizeof(names[0]);
         i++)
        if (strlen(names[i]) == len && memcmp(names[i], r->src + name, len) == 0)
            return copy_chars(r, name + len + 1 - from);
    return fail_unsupported(r, from, name + len + 1 - from,
                            "only general categories such as \\p{L}, and \\p{Han}, are");
}

/* \xHH, \x{H...}, \uHHHH */
static d9d_status translate_hex(struct reader *r)
{
    const size_t from = r->pos;
    const bool braced = peek_char(r, 2) == '{';
    const size_t want = r->src[r->pos + 1] == 'u' ? 4 : 2;
    size_t at = r->pos + (braced ? 3 : 2), digits = 0;
    uint32_t c = 0;

    for (; at < r->n && digits < (braced ? 6 : want); at++, digits++) {
        const char *hex = "00112233445566778899aAbBcCdDeEfF";
        const char *p = r->src[at] ? strchr(hex, r->src[at]) : NULL;

        if (!p)
            break;
        c = c * 16 + (uint32_t)((p - hex) / 2);
    }
    if (braced ? at >= r->n || r->src[at] != '}' || digits == 0 : digits != want)
        return fail_unsupported(r, from, at - from + 1, "not a character code");
    if ((want == 2 && !braced && c > 0x7f) || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return fail_unsupported(r, from, at - from + 1, "not a character");
    r->pos = at + braced;
    return d9d_buf_printf(r->out, "\\x{%x}", c);
}

/* Oniguruma's word characters: alphabetic characters, marks, digits, connectors, and some of
 * Latin-1. */
#define WORD_CLASS                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"     \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

static d9d_status translate_escape(struct reader *r)
{
    static const struct {
        char c;
        const char *as, *as_in_class; /* NULL: not allowed there */
    } table[] = {
        {'r', "\\r", "\\r"},
        {'n', "\\n", "\\n"},
        {'t', "\\t", "\\t"},
        {'f', "\\f", "\\f"},
        {'a', "\\a", "\\a"},
        {'e', "\\e", "\\e"},
        {'v', "\\x0b", "\\x0b"},
        {'s', "\\s", "\\s"},
        {'S', "\\S", "\\S"},
        {'d', "\\d", "\\d"},
        {'D', "\\D", "\\D"},
        {'A', "\\A", NULL},
        {'z', "\\z", NULL},
        {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
        {'w', "[" WORD_CLASS "]", WORD_CLASS},
        {'W', "[^" WORD_CLASS "]", NULL},
    };
    const int c = peek_char(r, 1);
    size_t i;

    if (c == 'p' || c == 'P')
        return translate_property(r);
    if (c == 'x' || c == 'u')
        return translate_hex(r);
    for (i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const char *as = r->in_class ? table[i].as_in_class : table[i].as;

        if (table[i].c == c && as) {
            r->pos += 2;
            return d9d_buf_append(r->out, as, strlen(as));
        }
    }
    if (c > ' ' && c < 0x7f && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z'))
        return copy_chars(r, 2);
    return fail_unsupported(r, r->pos, 2, "the engines differ on it");
}

/* A literal character, if both engines know it. */
static d9d_status translate_literal(struct reader *r)
{
    unsigned w;
    const uint32_t c = d9di_utf8_decode(r->src + r->pos, &w);

    if (find_alias(c) != c)
        return fail_unsupported(r, r->pos, w, "the character is newer than the tables of PCRE2");
    return copy_chars(r, w);
}

static d9d_status translate_members(struct reader *r, size_t from);

/* A nested class: its members become members of the outer class, but must not form ranges with
 * neighbours. */
static d9d_status translate_nested_class(struct reader *r)
{
    const size_t from = r->pos;
    const int next = peek_char(r, 1);

    if (next == '^' || next == ':')
        return fail_unsupported(r, from, 2, "such a class inside a class");
    if (next == '-' || (from > 0 && r->src[from - 1] == '-'))
        return fail_unsupported(r, from, 2, "a - beside the bracket");
    r->pos++;
    D9D_TRY(translate_members(r, from));
    if (peek_char(r, 0) != ']')
        return fail_unsupported(r, r->pos, 2, "an intersection inside a class");
    if (r->src[r->pos - 1] == '-' || peek_char(r, 1) == '-')
        return fail_unsupported(r, r->pos - 1, 3, "a - beside the bracket");
    r->pos++;
    return D9D_OK;
}

/* Translates up to the bracket that ends the class, which begins at `from`, or up to &&. */
static d9d_status translate_members(struct reader *r, size_t from)
{
    if (peek_char(r, 0) == ']')
        return fail_unsupported(r, from, r->pos + 1 - from, "a class that begins with ]");
    while (peek_char(r, 0) != ']') {
        const int c = peek_char(r, 0);

        if (c < 0)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: pattern: the class that begins at byte %zu has no end", r->where,
                            from);
        if (c == '&' && peek_char(r, 1) == '&')
            return D9D_OK;
        D9D_TRY(c == '\\'  ? translate_escape(r)
                : c == '[' ? translate_nested_class(r)
                           : translate_literal(r));
    }
    return D9D_OK;
}

/* [A&&[B]] and [A&&[^B]], of which all up to && is translated, as out[start, len): a class that a
 * look at its one character precedes. */
static d9d_status translate_intersection(struct reader *r, size_t from, size_t start)
{
    const bool negated = peek_char(r, 3) == '^';
    d9d_buf first = {0};
    d9d_status st;

    if (r->src[from + 1] == '^' || peek_char(r, 2) != '[')
        return fail_unsupported(r, r->pos, 3, "such an intersection of classes");
    D9D_TRY_OR(st, d9d_buf_append(&first, r->out->data + start, r->out->len - start), out);
    r->out->len = start;
    D9D_TRY_OR(st, d9d_buf_printf(r->out, "(?:(?%c[", negated ? '!' : '='), out);
    r->pos += negated ? 4 : 3;
    D9D_TRY_OR(st, translate_members(r, r->pos - 1), out);
    if (peek_char(r, 0) != ']' || peek_char(r, 1) != ']') {
        st = fail_unsupported(r, r->pos, 2, "such an intersection of classes");
        goto out;
    }
    st = d9d_buf_printf(r->out, "])%s])", first.data);
    r->pos += 2;
out:
    d9d_buf_release(&first);
    return st;
}

static d9d_status translate_class(struct reader *r)
{
    const size_t from = r->pos, start = r->out->len;

    r->in_class = true;
    D9D_TRY(copy_chars(r, peek_char(r, 1) == '^' ? 2 : 1));
    D9D_TRY(translate_members(r, from));
    if (peek_char(r, 0) == '&')
        D9D_TRY(translate_intersection(r, from, start));
    else
        D9D_TRY(copy_chars(r, 1));
    r->in_class = false;
    return D9D_OK;
}

static d9d_status translate_group(struct reader *r)
{
    static const char *const openings[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    size_t i;

    for (i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        const size_t len = strlen(openings[i]);

        if (r->n - r->pos >= len && memcmp(r->src + r->pos, openings[i], len) == 0)
            return copy_chars(r, len);
    }
    if (peek_char(r, 1) == '?' || peek_char(r, 1) == '*')
        return fail_unsupported(r, r->pos, 4, "the kind of group");
    return copy_chars(r, 1);
}

/* {n}, {n,}, {n,m}, unless the following character makes the engines differ. */
static d9d_status translate_brace(struct reader *r)
{
    const size_t from = r->pos;
    size_t len = 1, first;
    bool exact = true;

    while (peek_char(r, len) >= '0' && peek_char(r, len) <= '9')
        len++;
    first = len - 1;
    if (peek_char(r, len) == ',') {
        exact = false;
        len++;
        while (peek_char(r, len) >= '0' && peek_char(r, len) <= '9')
            len++;
    }
    if (first == 0 || peek_char(r, len) != '}')
        return fail_unsupported(r, from, len + 1, "a brace that is no repeat count; write \\{");
    len++;
    if (peek_char(r, len) == '+' || (exact && peek_char(r, len) == '?'))
        return fail_unsupported(r, from, len + 1, "the engines differ on what follows a count");
    return copy_chars(r, len);
}

d9d_status d9di_split_pattern_translate(const char *where, const char *src, size_t n, d9d_buf *out)
{
    struct reader r = {.where = where, .src = src, .n = n, .out = out};

    while (r.pos < n) {
        switch (src[r.pos]) {
        case '\\': D9D_TRY(translate_escape(&r)); break;
        case '[': D9D_TRY(translate_class(&r)); break;
        case '(': D9D_TRY(translate_group(&r)); break;
        case '{': D9D_TRY(translate_brace(&r)); break;
        default: D9D_TRY(translate_literal(&r)); break;
        }
    }
    return D9D_OK;
}

/* --- compiling ----------------------------------------------------------- */

d9d_status d9di_split_pattern_check_unicode(const char *where, const char *version)
{
    const long major = strtol(version, NULL, 10);

    if (major >= UNICODE_FIRST && major <= UNICODE_LAST)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: pattern: PCRE2 has Unicode %s, must be %d to %d: ids would be others",
                    where, version, UNICODE_FIRST, UNICODE_LAST);
}

static d9d_status compile_pattern(const char *where, const char *src, size_t n, uint32_t options,
                                  pcre2_code **out)
{
    PCRE2_UCHAR text[160];
    PCRE2_SIZE at = 0;
    int code = 0;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)src, n, options, &code, &at, NULL);

    if (!c) {
        pcre2_get_error_message(code, text, sizeof(text));
        return D9D_FAIL(D9D_ENOTSUP, "%s: pattern: %s at byte %zu", where, (const char *)text, at);
    }
    /* Without JIT the interpreter does the same, more slowly. */
    (void)pcre2_jit_compile(c, PCRE2_JIT_COMPLETE);
    *out = c;
    return D9D_OK;
}

d9d_status d9di_split_pattern_create(const char *where, const char *src, size_t n, bool literal,
                                     d9di_split_pattern **out)
{
    d9di_split_pattern *p = NULL;
    d9d_buf text = {0};
    char unicode[24] = "";
    d9d_status st;

    if (n == 0 || n > 65536)
        return D9D_FAIL(D9D_ENOTSUP, "%s: pattern: %zu bytes; 1 to 65536 are read", where, n);
    p = calloc(1, sizeof(*p));
    if (!p) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a pattern", where);
        goto out;
    }
    p->literal = literal;
    if (literal) {
        D9D_TRY_OR(st, compile_pattern(where, src, n, PCRE2_UTF | PCRE2_LITERAL, &p->code), out);
    } else {
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode);
        D9D_TRY_OR(st, d9di_split_pattern_check_unicode(where, unicode), out);
        D9D_TRY_OR(st, d9di_split_pattern_translate(where, src, n, &text), out);
        D9D_TRY_OR(st,
                   compile_pattern(where, text.data, text.len,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &p->code),
                   out);
    }
    *out = p;
    p = NULL;
out:
    d9d_buf_release(&text);
    d9di_split_pattern_free(p);
    return st;
}

d9d_status d9di_split_pattern_parse(const json_t *v, const char *where, d9di_split_pattern **out)
{
    const json_t *regex = json_object_get(v, "Regex"), *string = json_object_get(v, "String");
    const json_t *text = regex ? regex : string;

    if (json_object_size(v) != 1 || !json_is_string(text))
        return D9D_FAIL(D9D_EFORMAT, "%s: pattern: must be {\"Regex\": ...} or {\"String\": ...}",
                        where);
    return d9di_split_pattern_create(where, json_string_value(text), json_string_length(text),
                                     !regex, out);
}

void d9di_split_pattern_free(d9di_split_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

bool d9di_split_pattern_is_literal(const d9di_split_pattern *p)
{
    return p->literal;
}

/* --- shadows --------------------------------------------------------------- */

d9d_status d9di_split_pattern_shadow(const char *text, size_t n, d9d_buf *buf, const char **out)
{
    size_t i = 0;

    *out = text;
    while (i < n) {
        unsigned w;
        uint32_t c, alias;

        if ((unsigned char)text[i] < 0xe0) { /* every alias is U+0800 or above */
            i++;
            continue;
        }
        c = d9di_utf8_decode(text + i, &w);
        alias = find_alias(c);
        if (alias != c) {
            if (*out == text) {
                buf->len = 0;
                D9D_TRY(d9d_buf_append(buf, text, n));
                *out = buf->data;
            }
            d9di_utf8_encode(alias, buf->data + i);
        }
        i += w;
    }
    return D9D_OK;
}

/* --- matching ------------------------------------------------------------ */

d9d_status d9di_split_pattern_matcher_create(d9di_split_pattern_matcher **out)
{
    d9di_split_pattern_matcher *m = calloc(1, sizeof(*m));

    if (m) {
        m->data = pcre2_match_data_create(1, NULL);
        m->context = pcre2_match_context_create(NULL);
        m->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    }
    if (!m || !m->data || !m->context) {
        d9di_split_pattern_matcher_free(m);
        return D9D_FAIL(D9D_ENOMEM, "no memory for matching patterns");
    }
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_depth_limit(m->context, UINT32_MAX);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return D9D_OK;
}

void d9di_split_pattern_matcher_free(d9di_split_pattern_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

void d9di_split_pattern_iter_init(d9di_split_pattern_iter *s, const d9di_split_pattern *p,
                                  d9di_split_pattern_matcher *m, const char *text, size_t n)
{
    *s = (d9di_split_pattern_iter){.pattern = p, .matcher = m, .text = text, .n = n};
}

static int match_at(const d9di_split_pattern_iter *s)
{
    const d9di_split_pattern_matcher *m = s->matcher;
    int rc = pcre2_match(s->pattern->code, (PCRE2_SPTR)s->text, s->n, s->pos, PCRE2_NO_UTF_CHECK,
                         m->data, m->context);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->pattern->code, (PCRE2_SPTR)s->text, s->n, s->pos,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->context);
    return rc;
}

d9d_status d9di_split_pattern_iter_next(d9di_split_pattern_iter *s, size_t *start, size_t *end,
                                        bool *found)
{
    *found = false;
    while (s->pos <= s->n) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->matcher->data);
        const int rc = match_at(s);

        if (rc == PCRE2_ERROR_NOMATCH)
            return D9D_OK;
        if (rc < 0) {
            PCRE2_UCHAR text[160];

            pcre2_get_error_message(rc, text, sizeof(text));
            return D9D_FAIL(D9D_EFORMAT, "byte %zu: the pattern cannot be matched: %s", s->pos,
                            (const char *)text);
        }
        if (span[0] == span[1] && s->matched && s->last_end == span[1]) {
            s->pos += s->pos < s->n ? d9di_utf8_width((unsigned char)s->text[s->pos]) : 1;
            continue;
        }
        *start = span[0];
        *end = s->pos = s->last_end = span[1];
        *found = s->matched = true;
        return D9D_OK;
    }
    return D9D_OK;
}
