/* jinja_lex.c - text to tokens: tags, white space around them, literals. */
#include "data/jinja/jinja_ast.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/jinja/jinja_text.h"
#include "data/tokenizer/utf8.h"

typedef struct lexer {
    d9di_jinja_source *source;
    const char *text; /* newlines are \n */
    size_t n, at;
    size_t counted; /* lines are counted up to here */
    int line;
    bool line_starting; /* the last match ended with a newline */
    d9di_jinja_tokens *out;
} lexer;

d9d_status d9di_jinja_fail_at(const d9di_jinja_source *s, d9d_status st, int line, const char *fmt,
                              ...)
{
    char sentence[600];
    va_list ap;

    va_start(ap, fmt);
    (void)d9d_num_vformat(sentence, sizeof(sentence), fmt, ap);
    va_end(ap);
    return D9D_FAIL(st, "%s: line %d: %s", s->where, line, sentence);
}

const char *d9di_jinja_intern(d9di_jinja_source *s, const char *name, size_t n)
{
    char *own = d9d_map_get(&s->names, name, n);

    if (own != NULL)
        return own;
    own = d9d_arena_strndup(s->arena, name, n);
    return own != NULL && d9d_map_put(&s->names, name, n, own) == D9D_OK ? own : NULL;
}

/* --- positions -------------------------------------------------------------------------------- */

static int line_at(lexer *l, size_t at)
{
    for (; l->counted < at; l->counted++)
        l->line += l->text[l->counted] == '\n';
    return l->line;
}

static bool begins(const lexer *l, size_t at, const char *what)
{
    const size_t n = strlen(what);

    return l->n - at >= n && memcmp(l->text + at, what, n) == 0;
}

/* The first byte from `at` on that is no white space. */
static size_t skip_space(const lexer *l, size_t at)
{
    while (at < l->n) {
        unsigned w;

        if (!d9di_jinja_is_space(d9di_utf8_decode(l->text + at, &w)))
            break;
        at += w;
    }
    return at;
}

/* Moves on to `to`, the end of a match. */
static void advance(lexer *l, size_t to)
{
    if (to > l->at)
        l->line_starting = l->text[to - 1] == '\n';
    l->at = to;
}

static d9d_status push(lexer *l, d9di_jinja_token t)
{
    return D9D_VEC_PUSH(l->out, t);
}

/* --- text between tags ------------------------------------------------------------------------ */

/* Pushes the text [from, to) that stands before a tag with this sign. */
static d9d_status push_data(lexer *l, size_t from, size_t to, char sign, bool block)
{
    const int line = line_at(l, from);
    d9di_jinja_value s = d9di_jinja_str(l->text + from, to - from);

    if (sign == '-') {
        s = d9di_jinja_strip(&s, NULL, D9DI_JINJA_RIGHT);
    } else if (sign != '+' && block) {
        const char *newline = memrchr(s.text, '\n', s.n);
        const size_t start = newline != NULL ? (size_t)(newline - s.text) + 1 : 0;

        if ((newline != NULL || l->line_starting) && skip_space(l, from + start) >= to)
            s.n = start;
    }
    if (s.n == 0)
        return D9D_OK;
    return push(
        l, (d9di_jinja_token){.kind = D9DI_JINJA_T_DATA, .line = line, .text = s.text, .n = s.n});
}

/* If the tag at `at` is {% NAME %}: *end is behind it, with what its end removes, *sign its first
 * sign.  trims: a newline behind it goes. */
static bool find_plain_tag(const lexer *l, size_t at, const char *name, bool trims, char *sign,
                           size_t *end)
{
    if (!begins(l, at, "{%"))
        return false;
    at += 2;
    *sign = at < l->n && (l->text[at] == '-' || l->text[at] == '+') ? l->text[at++] : '\0';
    at = skip_space(l, at);
    if (!begins(l, at, name))
        return false;
    at = skip_space(l, at + strlen(name));
    if (begins(l, at, "-%}")) {
        *end = skip_space(l, at + 3);
    } else if (begins(l, at, "%}")) {
        *end = at + 2 + (trims && begins(l, at + 2, "\n"));
    } else if (trims && begins(l, at, "+%}")) {
        *end = at + 3;
    } else {
        return false;
    }
    return true;
}

/* p is behind {% raw %}. */
static d9d_status lex_raw(lexer *l)
{
    const size_t from = l->at;
    const int line = line_at(l, from);
    size_t at = from, end;
    char sign;

    for (; at < l->n; at++)
        if (l->text[at] == '{' && find_plain_tag(l, at, "endraw", true, &sign, &end)) {
            D9D_TRY(push_data(l, from, at, sign, true));
            advance(l, end);
            return D9D_OK;
        }
    return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "{%% raw %%} has no {%% endraw %%}");
}

/* The lexer is behind {#. */
static d9d_status lex_comment(lexer *l)
{
    const char *end = memmem(l->text + l->at, l->n - l->at, "#}", 2);
    const int line = line_at(l, l->at);
    size_t after;

    if (end == NULL)
        return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "a comment has no #}");
    after = (size_t)(end - l->text) + 2;
    if (end > l->text + l->at && end[-1] == '-')
        after = skip_space(l, after);
    else if (!(end > l->text + l->at && end[-1] == '+') && begins(l, after, "\n"))
        after++;
    advance(l, after);
    return D9D_OK;
}

/* --- literals --------------------------------------------------------------------------------- */

/* The digits that follow a \x, \u or \U; false: too few. */
static bool read_hex(const char *s, const char *end, int digits, uint32_t *out)
{
    *out = 0;
    if (end - s < digits)
        return false;
    for (int i = 0; i < digits; i++) {
        const char *hex = "0123456789abcdef", *at = s[i] ? strchr(hex, s[i] | 0x20) : NULL;

        if (at == NULL)
            return false;
        *out = *out << 4 | (uint32_t)(at - hex);
    }
    return *out <= 0x10ffff && !(*out >= 0xd800 && *out < 0xe000);
}

/* Writes what the escape at s, behind its backslash, stands for; returns what follows it, NULL if
 * it is not supported. */
static const char *unescape(const char *s, const char *end, char **to)
{
    static const char plain[] = "n\nt\tr\r\\\\''\"\"a\ab\bf\fv\v";
    uint32_t c = 0;
    int digits;

    for (const char *p = plain; *p; p += 2)
        if (*s == *p) {
            *(*to)++ = p[1];
            return s + 1;
        }
    if (*s == '\n')
        return s + 1;
    if (*s >= '0' && *s <= '7') {
        for (digits = 0; digits < 3 && s < end && *s >= '0' && *s <= '7'; digits++)
            c = c << 3 | (uint32_t)(*s++ - '0');
    } else if (*s == 'x' || *s == 'u' || *s == 'U') {
        digits = *s == 'x' ? 2 : *s == 'u' ? 4 : 8;
        if (!read_hex(++s, end, digits, &c))
            return NULL;
        s += digits;
    } else if (*s == 'N' || (unsigned char)*s >= 0x80) {
        return NULL;
    } else {
        *(*to)++ = '\\';
        return s;
    }
    *to += d9di_utf8_encode(c, *to);
    return s;
}

static d9d_status lex_string(lexer *l)
{
    const char quote = l->text[l->at], *s = l->text + l->at + 1, *end = l->text + l->n;
    const int line = line_at(l, l->at);
    const char *stop = s;
    char *copy, *to;

    while (stop < end && *stop != quote)
        stop += *stop == '\\' && stop + 1 < end ? 2 : 1;
    if (stop >= end)
        return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "a string has no end");
    copy = to = d9d_arena_alloc(l->source->arena, 2 * (size_t)(stop - s) + 1);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", l->source->where);
    while (s < stop) {
        if (*s != '\\') {
            *to++ = *s++;
            continue;
        }
        s = unescape(s + 1, stop, &to);
        if (s == NULL)
            return d9di_jinja_fail_at(l->source, D9D_ENOTSUP, line,
                                      "a string has an escape that is not supported");
    }
    advance(l, (size_t)(stop - l->text) + 1);
    return push(
        l, (d9di_jinja_token){
               .kind = D9DI_JINJA_T_STRING, .line = line, .text = copy, .n = (size_t)(to - copy)});
}

/* The end of digits, among which a "_" may stand between two. */
static size_t skip_digits(const lexer *l, size_t at)
{
    while (at < l->n && ((l->text[at] >= '0' && l->text[at] <= '9') ||
                         (l->text[at] == '_' && at + 1 < l->n && l->text[at + 1] >= '0' &&
                          l->text[at + 1] <= '9')))
        at++;
    return at;
}

static bool is_digit_at(const lexer *l, size_t at)
{
    return at < l->n && l->text[at] >= '0' && l->text[at] <= '9';
}

/* The end of a float that begins here; 0: it is an integer. */
static size_t find_float_end(const lexer *l)
{
    size_t at = skip_digits(l, l->at), e;
    bool is_float = false;

    if (l->at > 0 && l->text[l->at - 1] == '.')
        return 0;
    if (at < l->n && l->text[at] == '.' && is_digit_at(l, at + 1)) {
        at = skip_digits(l, at + 1);
        is_float = true;
    }
    e = at;
    if (e < l->n && (l->text[e] | 0x20) == 'e') {
        e += 1 + (e + 1 < l->n && (l->text[e + 1] == '+' || l->text[e + 1] == '-'));
        if (is_digit_at(l, e))
            return skip_digits(l, e);
    }
    return is_float ? at : 0;
}

static d9d_status lex_number(lexer *l)
{
    d9di_jinja_token t = {.kind = D9DI_JINJA_T_FLOAT, .line = line_at(l, l->at)};
    size_t end = find_float_end(l);
    d9di_jinja_value s;
    bool big = false;
    int base = 10;

    if (end == 0) {
        t.kind = D9DI_JINJA_T_INT;
        end = skip_digits(l, l->at);
        if (l->text[l->at] == '0' && end == l->at + 1 && end < l->n) {
            const char x = (char)(l->text[end] | 0x20);

            base = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
            while (base != 10 && ++end < l->n &&
                   memchr("0123456789abcdef_", l->text[end] | 0x20, 17) != NULL)
                ;
        }
    }
    s = d9di_jinja_str(l->text + l->at, end - l->at);
    if (t.kind == D9DI_JINJA_T_INT ? !d9di_jinja_parse_int(&s, base, &t.i, &big)
                                   : !d9di_jinja_parse_float(&s, &t.f))
        return d9di_jinja_fail_at(l->source, D9D_EFORMAT, t.line, "\"%.*s\" is no number%s",
                                  (int)s.n, s.text, big ? " of 64 bits" : "");
    advance(l, end);
    return push(l, t);
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static d9d_status lex_name(lexer *l)
{
    d9di_jinja_token t = {.kind = D9DI_JINJA_T_NAME, .line = line_at(l, l->at)};
    size_t end = l->at;

    while (end < l->n && is_name_byte(l->text[end]))
        end++;
    t.n = end - l->at;
    t.text = d9di_jinja_intern(l->source, l->text + l->at, t.n);
    if (t.text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", l->source->where);
    advance(l, end);
    return push(l, t);
}

/* --- inside of tags --------------------------------------------------------------------------- */

static const struct {
    const char *text;
    int op;
} operators[] = {
    {"//", D9DI_JINJA_FLOORDIV}, {"**", D9DI_JINJA_POWER}, {"==", D9DI_JINJA_EQ},
    {"!=", D9DI_JINJA_NE},       {">=", D9DI_JINJA_GE},    {"<=", D9DI_JINJA_LE},
};

/* `open`: brackets that are open, [*depth] of them. */
static d9d_status lex_operator(lexer *l, char *open, int *depth)
{
    static const char pairs[] = "()[]{}";
    const char c = l->text[l->at], *pair = strchr(pairs, c);
    const int line = line_at(l, l->at);
    d9di_jinja_token t = {.kind = D9DI_JINJA_T_OPERATOR, .line = line, .op = c};
    size_t n = 1;

    if (c == '\0' || strchr("+-/*%~[](){}><=.:|,;!", c) == NULL)
        return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "unexpected byte 0x%02x in a tag",
                                  (unsigned char)c);
    if (pair != NULL && (pair - pairs) % 2 == 0) {
        if (*depth == D9DI_JINJA_MAX_NESTING)
            return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "more than %d open brackets",
                                      D9DI_JINJA_MAX_NESTING);
        open[(*depth)++] = pair[1];
    } else if (pair != NULL && (*depth == 0 || open[--*depth] != c)) {
        return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "unexpected \"%c\"", c);
    }
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
        if (begins(l, l->at, operators[i].text)) {
            t.op = operators[i].op;
            n = 2;
        }
    if (t.op == '!')
        return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "unexpected \"!\"");
    advance(l, l->at + n);
    return push(l, t);
}

/* The end of the tag, if it is here: the byte behind it and what it removes; 0: no end. */
static size_t find_tag_end(const lexer *l, bool block)
{
    const char *end = block ? "%}" : "}}";
    const size_t at = l->at, sign = l->text[at] == '-' || (block && l->text[at] == '+');

    if (!begins(l, at + sign, end))
        return 0;
    if (l->text[at] == '-')
        return skip_space(l, at + 3);
    return at + sign + 2 + (block && !sign && begins(l, at + 2, "\n"));
}

/* The lexer is behind {{ or {% and its sign. */
static d9d_status lex_tag(lexer *l, bool block)
{
    const int line = line_at(l, l->at);
    char open[D9DI_JINJA_MAX_NESTING];
    int depth = 0;
    size_t end;

    while (l->at < l->n) {
        const char c = l->text[l->at];
        const size_t space = skip_space(l, l->at);

        if (space > l->at) {
            advance(l, space);
        } else if (depth == 0 && (end = find_tag_end(l, block)) > 0) {
            D9D_TRY(push(l, (d9di_jinja_token){.kind = block ? D9DI_JINJA_T_BLOCK_END
                                                             : D9DI_JINJA_T_VARIABLE_END,
                                               .line = line_at(l, l->at)}));
            advance(l, end);
            return D9D_OK;
        } else if (c >= '0' && c <= '9') {
            D9D_TRY(lex_number(l));
        } else if (is_name_byte(c)) {
            D9D_TRY(lex_name(l));
        } else if (c == '\'' || c == '"') {
            D9D_TRY(lex_string(l));
        } else {
            D9D_TRY(lex_operator(l, open, &depth));
        }
    }
    return d9di_jinja_fail_at(l->source, D9D_EFORMAT, line, "a tag has no \"%s\"",
                              block ? "%}" : "}}");
}

/* --- all -------------------------------------------------------------------------------------- */

/* The next {{, {% or {#; the end if there is none. */
static size_t find_tag(const lexer *l)
{
    for (size_t at = l->at; at + 1 < l->n; at++) {
        if (l->text[at] == '{' && memchr("{%#", l->text[at + 1], 3) != NULL)
            return at;
    }
    return l->n;
}

static d9d_status lex_next(lexer *l)
{
    const size_t from = l->at, at = find_tag(l);
    const char kind = at < l->n ? l->text[at + 1] : '\0';
    char sign = '\0';
    size_t end;

    if (kind == '%' && find_plain_tag(l, at, "raw", false, &sign, &end)) {
        D9D_TRY(push_data(l, from, at, sign, true));
        advance(l, end);
        return lex_raw(l);
    }
    if (at + 2 < l->n && (l->text[at + 2] == '-' || l->text[at + 2] == '+'))
        sign = l->text[at + 2];
    D9D_TRY(push_data(l, from, at, kind ? sign : '+', kind != '{'));
    advance(l, kind ? at + 2 + (sign != '\0') : at);
    if (kind == '\0')
        return D9D_OK;
    if (kind == '#')
        return lex_comment(l);
    D9D_TRY(push(l, (d9di_jinja_token){.kind = kind == '%' ? D9DI_JINJA_T_BLOCK_BEGIN
                                                           : D9DI_JINJA_T_VARIABLE_BEGIN,
                                       .line = line_at(l, at)}));
    return lex_tag(l, kind == '%');
}

/* A copy with \n for \r\n and \r, without the last newline. */
static d9d_status normalize(lexer *l, const char *text, size_t n)
{
    char *copy = d9d_arena_alloc(l->source->arena, n + 1), *to = copy;

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory: %zu bytes requested", l->source->where, n);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        *to++ = text[i] == '\r' ? '\n' : text[i];
    }
    l->n = (size_t)(to - copy);
    if (l->n > 0 && copy[l->n - 1] == '\n')
        l->n--;
    copy[l->n] = '\0';
    l->text = copy;
    return D9D_OK;
}

d9d_status d9di_jinja_lex(d9di_jinja_source *s, const char *text, size_t n, d9di_jinja_tokens *out)
{
    lexer l = {.source = s, .line = 1, .line_starting = true, .out = out};

    D9D_TRY(normalize(&l, text, n));
    while (l.at < l.n)
        D9D_TRY(lex_next(&l));
    return push(&l, (d9di_jinja_token){.kind = D9DI_JINJA_T_END, .line = line_at(&l, l.n)});
}
