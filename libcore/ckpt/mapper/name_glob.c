/* name_glob.c - see name_glob.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "ckpt/mapper/name_glob.h"

#include <ctype.h>
#include <pcre2.h>
#include <string.h>

enum { MATCH_LIMIT = 100000 }; /* steps of one match; reasonable patterns need some hundreds */

static d9d_status no_memory(const char *where)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
}

/* --- parsing --------------------------------------------------------------------------- */

static const struct {
    const char *word, *regex;
} classes[] = {
    [D9DI_CAPTURE_COMPONENT] = {"", "([^.]+)"},
    [D9DI_CAPTURE_INT] = {"int", "(0|[1-9][0-9]{0,17})"},
    [D9DI_CAPTURE_ANY] = {"any", "(.+)"},
};
enum { N_CLASSES = sizeof(classes) / sizeof(classes[0]) };

static bool is_word(const char *s, size_t n)
{
    if (n == 0 || isdigit((unsigned char)s[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_')
            return false;
    return true;
}

/* Parses the text between braces: "l", "l:int". */
static d9d_status parse_capture(const char *s, size_t n, const char *where, d9d_arena *a,
                                d9di_glob_token *token)
{
    const char *colon = memchr(s, ':', n);
    size_t len = colon != NULL ? (size_t)(colon - s) : n, k = N_CLASSES - 1;

    if (!is_word(s, len))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: \"{%.*s}\" is no capture: a name of letters, digits and _ is needed",
                        where, (int)n, s);
    token->capture = d9d_arena_strndup(a, s, len);
    if (token->capture == NULL)
        return no_memory(where);
    if (colon == NULL)
        return D9D_OK;
    while (k > 0 && (strlen(classes[k].word) != n - len - 1 ||
                     memcmp(classes[k].word, colon + 1, n - len - 1) != 0))
        k--;
    if (k == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: \"{%.*s}\": unknown class; there are int and any", where,
                        (int)n, s);
    token->capture_class = (d9di_glob_capture_class)k;
    return D9D_OK;
}

/* Parses literal text up to a capture or the end, and advances *at. */
static d9d_status parse_text(const char **at, const char *where, d9d_arena *a, const char **out)
{
    const char *s = *at;
    char *text = d9d_arena_alloc(a, strlen(s) + 1);
    size_t n = 0;

    if (text == NULL)
        return no_memory(where);
    while (*s != '\0' && (*s != '{' || s[1] == '{')) {
        if (iscntrl((unsigned char)*s))
            return D9D_FAIL(D9D_ECONFIG, "%s: a control character", where);
        if (*s == '}' && s[1] != '}')
            return D9D_FAIL(D9D_ECONFIG, "%s: a } without {; a brace itself is written }}", where);
        s += *s == '{' || *s == '}';
        text[n++] = *s++;
    }
    *out = text;
    *at = s;
    return D9D_OK;
}

d9d_status d9di_glob_parse(const char *text, const char *where, d9d_arena *a, d9di_glob *out)
{
    const char *at = text;

    *out = (d9di_glob){.text = text};
    if (strlen(text) > D9DI_MAX_PATTERN)
        return D9D_FAIL(D9D_ECONFIG, "%s: a pattern of %zu bytes, at most %d are allowed", where,
                        strlen(text), (int)D9DI_MAX_PATTERN);
    for (;;) {
        d9di_glob_token *token = &out->tokens[out->n];
        const char *end;

        D9D_TRY(parse_text(&at, where, a, &token->text));
        if (*at == '\0')
            return D9D_OK;
        end = strchr(at, '}');
        if (end == NULL)
            return D9D_FAIL(D9D_ECONFIG, "%s: a { without }; a brace itself is written {{", where);
        if (out->n == D9DI_MAX_CAPTURES)
            return D9D_FAIL(D9D_ECONFIG, "%s: more than %d captures", where,
                            (int)D9DI_MAX_CAPTURES);
        D9D_TRY(parse_capture(at + 1, (size_t)(end - at) - 1, where, a, token));
        out->n++;
        at = end + 1;
    }
}

int d9di_glob_find(const d9di_glob *p, const char *capture)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->tokens[i].capture, capture) == 0)
            return (int)i;
    return -1;
}

/* --- matching -------------------------------------------------------------------------- */

static d9d_status put_literal(d9d_buf *b, const char *s)
{
    for (; *s != '\0'; s++)
        D9D_TRY(d9d_buf_printf(b, "%s%c", ispunct((unsigned char)*s) ? "\\" : "", *s));
    return D9D_OK;
}

/* Checks that each capture is unambiguous. */
static d9d_status check_captures(const d9di_glob *p, const char *where)
{
    for (size_t i = 0; i < p->n; i++) {
        if (d9di_glob_find(p, p->tokens[i].capture) != (int)i)
            return D9D_FAIL(D9D_ECONFIG, "%s: {%s} is there twice", where, p->tokens[i].capture);
        if (i > 0 && *p->tokens[i].text == '\0')
            return D9D_FAIL(D9D_ECONFIG, "%s: {%s} and {%s} need text between them", where,
                            p->tokens[i - 1].capture, p->tokens[i].capture);
    }
    return D9D_OK;
}

d9d_status d9di_glob_compile(d9di_glob *p, const char *where, bool prefix)
{
    const uint32_t options = PCRE2_ANCHORED | PCRE2_DOTALL | (prefix ? 0 : PCRE2_ENDANCHORED);
    d9d_buf b = {0};
    d9d_status st = D9D_OK;
    PCRE2_SIZE at;
    int code;

    D9D_TRY(check_captures(p, where));
    p->prefix = prefix;
    if (p->n == 0)
        return D9D_OK;
    for (size_t i = 0; i <= p->n && st == D9D_OK; i++) {
        st = put_literal(&b, p->tokens[i].text);
        if (st == D9D_OK && i < p->n)
            st = d9d_buf_printf(&b, "%s", classes[p->tokens[i].capture_class].regex);
    }
    if (st == D9D_OK) {
        p->code = pcre2_compile((PCRE2_SPTR)b.data, b.len, options, &code, &at, NULL);
        if (p->code == NULL)
            st = D9D_FAIL(D9D_ECONFIG, "%s: the pattern is refused by PCRE2 (%d)", where, code);
    }
    d9d_buf_release(&b);
    return st;
}

void d9di_glob_release(d9di_glob *p)
{
    pcre2_code_free(p->code);
    p->code = NULL;
}

static d9d_status copy_values(const d9di_glob *p, const char *name, const PCRE2_SIZE *span,
                              d9d_arena *a, const char **values)
{
    for (size_t i = 0; i < p->n; i++) {
        const PCRE2_SIZE *s = span + 2 * (i + 1);

        values[i] = d9d_arena_strndup(a, name + s[0], s[1] - s[0]);
        if (values[i] == NULL)
            return no_memory(p->text);
    }
    return D9D_OK;
}

static d9d_status run_match(const d9di_glob *p, const char *name, d9d_arena *a, const char **values,
                            size_t *length, bool *matches)
{
    pcre2_match_data *data = pcre2_match_data_create(D9DI_MAX_CAPTURES + 1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    d9d_status st = D9D_OK;
    int rc;

    if (data == NULL || limits == NULL) {
        st = no_memory(p->text);
        goto out;
    }
    pcre2_set_match_limit(limits, MATCH_LIMIT);
    rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, limits);
    *matches = rc > 0;
    if (rc > 0) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(data);

        *length = span[1];
        st = copy_values(p, name, span, a, values);
    } else if (rc != PCRE2_ERROR_NOMATCH) {
        st =
            D9D_FAIL(D9D_ECONFIG, "pattern \"%s\": too many ways to read tensor %s", p->text, name);
    }
out:
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    return st;
}

d9d_status d9di_glob_match(const d9di_glob *p, const char *name, d9d_arena *a,
                           const char *values[D9DI_MAX_CAPTURES], size_t *length, bool *matches)
{
    const size_t n = strlen(p->tokens[0].text);

    *matches = strncmp(name, p->tokens[0].text, n) == 0;
    if (*matches && p->n > 0)
        return run_match(p, name, a, values, length, matches);
    *matches = *matches && (p->prefix || name[n] == '\0');
    *length = n;
    return D9D_OK;
}

/* --- expanding templates
 * ---------------------------------------------------------------------------
 */

const char *d9di_glob_bindings_get(const d9di_glob_bindings *b, const char *name)
{
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->name[i], name) == 0)
            return b->value[i];
    return NULL;
}

d9d_status d9di_glob_expand(const d9di_glob *p, const d9di_glob_bindings *b, d9d_arena *a,
                            const char **out)
{
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i <= p->n && st == D9D_OK; i++) {
        const char *value = i < p->n ? d9di_glob_bindings_get(b, p->tokens[i].capture) : "";

        st = value != NULL ? d9d_buf_printf(&text, "%s%s", p->tokens[i].text, value)
                           : D9D_FAIL(D9D_ECONFIG, "\"%s\": {%s} is not captured", p->text,
                                      p->tokens[i].capture);
    }
    if (st == D9D_OK) {
        *out = d9d_arena_strndup(a, text.len > 0 ? text.data : "", text.len);
        st = *out != NULL ? D9D_OK : no_memory(p->text);
    }
    d9d_buf_release(&text);
    return st;
}
