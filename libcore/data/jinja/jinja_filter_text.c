/* jinja_filter_text.c - filters of strings. */
#include <string.h>

#include "data/jinja/jinja_text.h"
#include "data/tokenizer/utf8.h"

/* str() of what the filter is applied to. */
static d9d_status get_self(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return d9di_jinja_to_str(c->run, &c->self, out);
}

static d9d_status filter_string(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return get_self(c, out);
}

static d9d_status filter_safe(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    D9D_TRY(get_self(c, out));
    out->markup = true;
    return D9D_OK;
}

static d9d_status filter_escape(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(c->run);
    d9di_jinja_value s;

    D9D_TRY(get_self(c, &s));
    *out = s;
    if (s.markup)
        return D9D_OK;
    D9D_TRY(d9di_jinja_put_escaped(c->run, &s));
    D9D_TRY(d9di_jinja_take(c->run, mark, out));
    out->markup = true;
    return D9D_OK;
}

static d9d_status filter_trim(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *chars = &c->arg[0];
    d9di_jinja_value s;

    D9D_TRY(get_self(c, &s));
    if (chars->kind == D9DI_JINJA_UNSET || chars->kind == D9DI_JINJA_NONE)
        chars = NULL;
    else if (chars->kind != D9DI_JINJA_STRING)
        return d9di_jinja_fail(c->run, "trim: \"chars\" must be a str");
    *out = d9di_jinja_strip(&s, chars, D9DI_JINJA_LEFT | D9DI_JINJA_RIGHT);
    return D9D_OK;
}

static d9d_status change_case(const d9di_jinja_call *c, d9di_jinja_case into, d9di_jinja_value *out)
{
    d9di_jinja_value s;

    D9D_TRY(get_self(c, &s));
    return d9di_jinja_to_case(c->run, &s, into, out);
}

static d9d_status filter_lower(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return change_case(c, D9DI_JINJA_LOWER, out);
}

static d9d_status filter_upper(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return change_case(c, D9DI_JINJA_UPPER, out);
}

static d9d_status filter_capitalize(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return change_case(c, D9DI_JINJA_CAPITALIZE, out);
}

/* Does jinja2's title begin a word after this character? */
static bool splits_words(const char *at, unsigned *w)
{
    const uint32_t c = d9di_utf8_decode(at, w);

    return d9di_jinja_is_space(c) || (c < 0x80 && c > 0 && strchr("-({[<", (int)c) != NULL);
}

static d9d_status put_part(d9di_jinja_run *r, const d9di_jinja_value *s, size_t from, size_t to,
                           d9di_jinja_case into)
{
    const d9di_jinja_value part = d9di_jinja_str(s->text + from, to - from);

    return d9di_jinja_put_case(r, &part, into);
}

static d9d_status filter_title(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(c->run);
    d9di_jinja_value s;
    size_t at = 0;

    D9D_TRY(get_self(c, &s));
    while (at < s.n) {
        size_t first = at, rest, end;
        unsigned w;

        while (first < s.n && splits_words(s.text + first, &w))
            first += w;
        rest = first < s.n ? first + d9di_utf8_width((unsigned char)s.text[first]) : s.n;
        end = rest;
        while (end < s.n && !splits_words(s.text + end, &w))
            end += w;
        D9D_TRY(d9di_jinja_put(c->run, s.text + at, first - at));
        D9D_TRY(put_part(c->run, &s, first, rest, D9DI_JINJA_UPPER));
        D9D_TRY(put_part(c->run, &s, rest, end, D9DI_JINJA_LOWER));
        at = end;
    }
    return d9di_jinja_take(c->run, mark, out);
}

static d9d_status filter_replace(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *count = &c->arg[2];
    d9di_jinja_value s, from, to;

    D9D_TRY(get_self(c, &s));
    D9D_TRY(d9di_jinja_to_str(c->run, &c->arg[0], &from));
    D9D_TRY(d9di_jinja_to_str(c->run, &c->arg[1], &to));
    if (count->kind != D9DI_JINJA_UNSET && count->kind != D9DI_JINJA_NONE &&
        !d9di_jinja_is_integer(count))
        return d9di_jinja_fail(c->run, "replace: \"count\" must be an int");
    return d9di_jinja_replace(c->run, &s, &from, &to,
                              d9di_jinja_is_integer(count) ? d9di_jinja_as_int(count) : -1, out);
}

/* What lines are indented with. */
static d9d_status make_indent(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(c->run);
    const d9di_jinja_value *width = &c->arg[0];
    int64_t n = 4;

    *out = *width;
    if (width->kind == D9DI_JINJA_STRING)
        return D9D_OK;
    if (width->kind != D9DI_JINJA_UNSET && !d9di_jinja_is_integer(width))
        return d9di_jinja_fail(c->run, "indent: \"width\" must be an int or a str");
    if (width->kind != D9DI_JINJA_UNSET)
        n = d9di_jinja_as_int(width);
    for (; n > 0; n--)
        D9D_TRY(d9di_jinja_put(c->run, " ", 1));
    return d9di_jinja_take(c->run, mark, out);
}

static d9d_status filter_indent(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const bool first = d9di_jinja_truth(&c->arg[1]), blank = d9di_jinja_truth(&c->arg[2]);
    size_t mark;
    d9di_jinja_value s = c->self, indent, lines;

    if (s.kind != D9DI_JINJA_STRING)
        return s.kind == D9DI_JINJA_UNDEFINED
                   ? d9di_jinja_fail_undefined(c->run, &s)
                   : d9di_jinja_fail(c->run, "indent: a %s is no str", d9di_jinja_type(&s));
    D9D_TRY(make_indent(c, &indent));
    mark = d9di_jinja_mark(c->run);
    D9D_TRY(d9di_jinja_put(c->run, s.text, s.n));
    D9D_TRY(d9di_jinja_put(c->run, "\n", 1)); /* so that the last line counts, empty or not */
    D9D_TRY(d9di_jinja_take(c->run, mark, &s));
    D9D_TRY(d9di_jinja_split_lines(c->run, &s, false, &lines));
    for (size_t i = 0; i < lines.seq->n; i++) {
        const d9di_jinja_value *line = &lines.seq->items[i];

        if (i > 0)
            D9D_TRY(d9di_jinja_put(c->run, "\n", 1));
        if (i == 0 ? first : blank || line->n > 0)
            D9D_TRY(d9di_jinja_put(c->run, indent.text, indent.n));
        D9D_TRY(d9di_jinja_put(c->run, line->text, line->n));
    }
    return d9di_jinja_take(c->run, mark, out);
}

/* "%" of the text and its arguments: a tuple, or a dict of keywords. */
static d9d_status filter_format(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_value s, args;

    if (c->n > 0 && c->n_kw > 0)
        return d9di_jinja_fail(c->run, "format: has both positional and keyword arguments");
    D9D_TRY(get_self(c, &s));
    D9D_TRY(c->n_kw > 0 ? d9di_jinja_dict_new(c->run, D9DI_JINJA_DICT, &args)
                        : d9di_jinja_seq_new(c->run, D9DI_JINJA_TUPLE, c->n, &args));
    for (size_t i = 0; i < c->n; i++)
        D9D_TRY(d9di_jinja_seq_append(c->run, args.seq, c->pos[i]));
    for (size_t i = 0; i < c->n_kw; i++)
        D9D_TRY(d9di_jinja_dict_put(c->run, args.dict,
                                    d9di_jinja_str(c->kw[i].name, strlen(c->kw[i].name)),
                                    c->kw[i].value));
    return d9di_jinja_percent(c->run, &s, &args, out);
}

const d9di_jinja_builtin d9di_jinja_text_filters[] = {
    {"string", filter_string, "", 0},
    {"safe", filter_safe, "", 0},
    {"escape", filter_escape, "", 0},
    {"e", filter_escape, "", 0},
    {"trim", filter_trim, "chars", 0},
    {"lower", filter_lower, "", 0},
    {"upper", filter_upper, "", 0},
    {"capitalize", filter_capitalize, "", 0},
    {"title", filter_title, "", 0},
    {"replace", filter_replace, "old new count", 2},
    {"format", filter_format, NULL, 0},
    {"indent", filter_indent, "width first blank", 0},
    {"tojson", d9di_jinja_tojson, "ensure_ascii indent separators sort_keys", 0},
    {NULL, NULL, NULL, 0}};
