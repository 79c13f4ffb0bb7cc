/* parquet_columns.c - see parquet_columns.h. */
#include "data/io/parquet_columns.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

/* A part of a type's text. */
typedef struct span {
    const char *at;
    size_t n;
} span;

typedef struct printer {
    d9d_arena *a;
    const char *column;
    int depth;
} printer;

static d9d_status no_memory(const printer *p)
{
    return D9D_FAIL(D9D_ENOMEM, "the column %s: no memory", p->column);
}

/* --- types --------------------------------------------------------------------------------- */

static bool is_word(span s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.at, word, s.n) == 0;
}

/* Behind a name in quotes, where a quote in it is doubled. */
static size_t skip_quoted(span s, size_t at)
{
    const char quote = s.at[at++];

    while (at < s.n && (s.at[at] != quote || (at + 1 < s.n && s.at[at + 1] == quote)))
        at += s.at[at] == quote ? 2 : 1;
    return at < s.n ? at + 1 : s.n;
}

/* Takes what stands before the next `end` outside of parentheses and quotes off the list's front.
 */
static span take_until(span *list, char end)
{
    span out = {list->at, 0};
    size_t at = 0;
    int open = 0;

    while (at < list->n && (open > 0 || list->at[at] != end)) {
        const char c = list->at[at];

        open += (c == '(') - (c == ')');
        at = c == '"' || c == '\'' ? skip_quoted(*list, at) : at + 1;
    }
    out.n = at;
    at += at < list->n;
    list->at += at;
    list->n -= at;
    while (list->n > 0 && *list->at == ' ')
        list->at++, list->n--;
    return out;
}

/* "STRUCT(...)" has the members between its parentheses. */
static bool find_members(span type, const char *word, span *out)
{
    const size_t n = strlen(word);

    if (type.n < n + 2 || memcmp(type.at, word, n) != 0 || type.at[n] != '(' ||
        type.at[type.n - 1] != ')')
        return false;
    *out = (span){type.at + n + 1, type.n - n - 2};
    return true;
}

/* "T[]" and "T[3]" have elements of T. */
static bool find_element(span type, span *out)
{
    if (type.n == 0 || type.at[type.n - 1] != ']')
        return false;
    while (type.n > 0 && type.at[type.n - 1] != '[')
        type.n--;
    *out = (span){type.at, type.n - (type.n > 0)};
    return true;
}

/* --- names --------------------------------------------------------------------------------- */

/* The text between quotes of this sort, in which they are doubled; NULL: no memory. */
static const char *quote_text(d9d_arena *a, const char *text, char quote)
{
    char *out = d9d_arena_alloc(a, 2 * strlen(text) + 3), *to = out;

    if (out == NULL)
        return NULL;
    *to++ = quote;
    for (; *text != '\0'; text++) {
        *to++ = *text;
        if (*text == quote)
            *to++ = quote;
    }
    *to++ = quote;
    *to = '\0';
    return out;
}

const char *d9di_parquet_column_quote(const char *name, d9d_arena *a)
{
    return quote_text(a, name, '"');
}

/* A member's name, of which a quoted one has its quotes doubled. */
static const char *read_name(d9d_arena *a, span s)
{
    const bool quoted = s.n >= 2 && s.at[0] == '"';
    char *out = d9d_arena_alloc(a, s.n + 1), *to = out;

    if (out == NULL)
        return NULL;
    for (size_t i = quoted; i < s.n - quoted; i++) {
        *to++ = s.at[i];
        i += quoted && s.at[i] == '"';
    }
    *to = '\0';
    return out;
}

/* --- expressions --------------------------------------------------------------------------- */

static d9d_status print_value(printer *p, span type, const char *value, const char **out);

static d9d_status print_list(printer *p, span element, const char *value, const char **out)
{
    const char *name = d9d_arena_printf(p->a, "d9d_%d", p->depth), *each;

    *out = NULL;
    if (name == NULL)
        return no_memory(p);
    D9D_TRY(print_value(p, element, name, &each));
    if (each == NULL)
        return D9D_OK;
    *out = d9d_arena_printf(p->a, "[%s FOR %s IN %s]", each, name, value);
    return *out != NULL ? D9D_OK : no_memory(p);
}

/* Appends a member; *changed if it is not as it was. */
static d9d_status print_member(printer *p, span name, span type, const char *value,
                               const char **list, bool *changed)
{
    const char *text = read_name(p->a, name), *key = NULL, *literal = NULL, *own = NULL, *as = NULL;

    if (text != NULL) {
        key = quote_text(p->a, text, '"');
        literal = quote_text(p->a, text, '\'');
    }
    if (key != NULL && literal != NULL)
        own = d9d_arena_printf(p->a, "struct_extract(%s, %s)", value, literal);
    if (own == NULL)
        return no_memory(p);
    D9D_TRY(print_value(p, type, own, &as));
    *changed = *changed || as != NULL;
    *list = d9d_arena_printf(p->a, "%s%s%s := %s", *list, **list != '\0' ? ", " : "", key,
                             as != NULL ? as : own);
    return *list != NULL ? D9D_OK : no_memory(p);
}

static d9d_status print_struct(printer *p, span members, const char *value, const char **out)
{
    const char *list = "";
    bool changed = false;

    *out = NULL;
    while (members.n > 0) {
        span type = take_until(&members, ',');
        const span name = take_until(&type, ' ');

        D9D_TRY(print_member(p, name, type, value, &list, &changed));
    }
    if (!changed)
        return D9D_OK;
    *out = d9d_arena_printf(p->a, "CASE WHEN %s IS NOT NULL THEN struct_pack(%s) END", value, list);
    return *out != NULL ? D9D_OK : no_memory(p);
}

/* Keys stay: a map has none that are null. */
static d9d_status print_map(printer *p, span types, const char *value, const char **out)
{
    const char *name = d9d_arena_printf(p->a, "d9d_%d", p->depth), *own, *as;

    (void)take_until(&types, ',');
    *out = NULL;
    own = name != NULL ? d9d_arena_printf(p->a, "struct_extract(%s, 'value')", name) : NULL;
    if (own == NULL)
        return no_memory(p);
    D9D_TRY(print_value(p, types, own, &as));
    if (as == NULL)
        return D9D_OK;
    *out = d9d_arena_printf(p->a,
                            "CASE WHEN %s IS NOT NULL THEN map_from_entries([struct_pack(k := "
                            "struct_extract(%s, 'key'), v := %s) FOR %s IN map_entries(%s)]) END",
                            value, name, as, name, value);
    return *out != NULL ? D9D_OK : no_memory(p);
}

static d9d_status print_number(printer *p, const char *value, const char **out)
{
    *out = d9d_arena_printf(p->a, "CASE WHEN isfinite(%s) THEN %s END", value, value);
    return *out != NULL ? D9D_OK : no_memory(p);
}

static d9d_status print_value(printer *p, span type, const char *value, const char **out)
{
    d9d_status st = D9D_OK;
    span inner;

    *out = NULL;
    if (p->depth == MAX_DEPTH)
        return D9D_FAIL(D9D_ENOTSUP, "the column %s is nested deeper than %d levels", p->column,
                        MAX_DEPTH);
    p->depth++;
    if (is_word(type, "BLOB"))
        *out = "NULL";
    else if (is_word(type, "FLOAT") || is_word(type, "DOUBLE"))
        st = print_number(p, value, out);
    else if (find_element(type, &inner))
        st = print_list(p, inner, value, out);
    else if (find_members(type, "STRUCT", &inner))
        st = print_struct(p, inner, value, out);
    else if (find_members(type, "MAP", &inner))
        st = print_map(p, inner, value, out);
    p->depth--;
    return st;
}

d9d_status d9di_parquet_column_print(const char *name, const char *type, d9d_arena *a,
                                     const char **out)
{
    const char *column = d9di_parquet_column_quote(name, a);
    printer p = {.a = a, .column = name};

    if (column == NULL)
        return no_memory(&p);
    return print_value(&p, (span){type, strlen(type)}, column, out);
}
