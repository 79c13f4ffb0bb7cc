/* jinja_method.c - methods of strings, dicts and lists. */
#include <string.h>

#include "data/jinja/jinja_text.h"
#include "data/tokenizer/utf8.h"

/* --- arguments -------------------------------------------------------------------------------- */

static d9d_status get_str(const d9di_jinja_call *c, size_t i, const char *method,
                          const d9di_jinja_value **out)
{
    const d9di_jinja_value *v = &c->arg[i];

    *out = NULL;
    if (v->kind == D9DI_JINJA_UNSET || v->kind == D9DI_JINJA_NONE)
        return D9D_OK;
    if (v->kind != D9DI_JINJA_STRING)
        return d9di_jinja_fail(c->run, "%s: an argument is a %s, must be a str", method,
                               d9di_jinja_type(v));
    *out = v;
    return D9D_OK;
}

static d9d_status need_str(const d9di_jinja_call *c, size_t i, const char *method,
                           const d9di_jinja_value **out)
{
    D9D_TRY(get_str(c, i, method, out));
    if (*out != NULL)
        return D9D_OK;
    (void)d9di_jinja_fail(c->run, "%s: an argument is None, must be a str", method);
    return D9D_EFORMAT;
}

static d9d_status get_int(const d9di_jinja_call *c, size_t i, const char *method, int64_t absent,
                          int64_t *out)
{
    const d9di_jinja_value *v = &c->arg[i];

    *out = absent;
    if (v->kind == D9DI_JINJA_UNSET)
        return D9D_OK;
    if (!d9di_jinja_is_integer(v))
        return d9di_jinja_fail(c->run, "%s: an argument is a %s, must be an int", method,
                               d9di_jinja_type(v));
    *out = d9di_jinja_as_int(v);
    return D9D_OK;
}

/* --- strings ---------------------------------------------------------------------------------- */

static d9d_status strip_sides(const d9di_jinja_call *c, const char *method, int sides,
                              d9di_jinja_value *out)
{
    const d9di_jinja_value *chars;

    D9D_TRY(get_str(c, 0, method, &chars));
    *out = d9di_jinja_strip(&c->self, chars, sides);
    return D9D_OK;
}

static d9d_status str_strip(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return strip_sides(c, "strip", D9DI_JINJA_LEFT | D9DI_JINJA_RIGHT, out);
}

static d9d_status str_lstrip(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return strip_sides(c, "lstrip", D9DI_JINJA_LEFT, out);
}

static d9d_status str_rstrip(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return strip_sides(c, "rstrip", D9DI_JINJA_RIGHT, out);
}

static bool has_end(const d9di_jinja_value *s, const d9di_jinja_value *part, bool at_end)
{
    return s->n >= part->n &&
           memcmp(s->text + (at_end ? s->n - part->n : 0), part->text, part->n) == 0;
}

/* One string or a tuple of them. */
static d9d_status test_end(const d9di_jinja_call *c, const char *method, bool at_end,
                           d9di_jinja_value *out)
{
    const d9di_jinja_value *part = &c->arg[0];
    const bool several = part->kind == D9DI_JINJA_TUPLE;
    const d9di_jinja_value *items = several ? part->seq->items : part;
    bool found = false;

    for (size_t i = 0; i < (several ? part->seq->n : 1); i++) {
        if (items[i].kind == D9DI_JINJA_UNDEFINED)
            return d9di_jinja_fail_undefined(c->run, &items[i]);
        if (items[i].kind != D9DI_JINJA_STRING)
            return d9di_jinja_fail(c->run, "%s: the argument is a %s, must be a str or a tuple",
                                   method, d9di_jinja_type(&items[i]));
        found = found || has_end(&c->self, &items[i], at_end);
    }
    *out = d9di_jinja_bool(found);
    return D9D_OK;
}

static d9d_status str_startswith(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_end(c, "startswith", false, out);
}

static d9d_status str_endswith(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_end(c, "endswith", true, out);
}

static d9d_status remove_end(const d9di_jinja_call *c, const char *method, bool at_end,
                             d9di_jinja_value *out)
{
    const d9di_jinja_value *part;

    D9D_TRY(need_str(c, 0, method, &part));
    *out = c->self;
    if (has_end(&c->self, part, at_end)) {
        out->text += at_end ? 0 : part->n;
        out->n -= part->n;
    }
    return D9D_OK;
}

static d9d_status str_removeprefix(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return remove_end(c, "removeprefix", false, out);
}

static d9d_status str_removesuffix(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return remove_end(c, "removesuffix", true, out);
}

static d9d_status split(const d9di_jinja_call *c, const char *method, bool from_right,
                        d9di_jinja_value *out)
{
    const d9di_jinja_value *sep;
    int64_t max;

    D9D_TRY(get_str(c, 0, method, &sep));
    D9D_TRY(get_int(c, 1, method, -1, &max));
    return d9di_jinja_split(c->run, &c->self, sep, max, from_right, out);
}

static d9d_status str_split(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return split(c, "split", false, out);
}

static d9d_status str_rsplit(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return split(c, "rsplit", true, out);
}

static d9d_status str_splitlines(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return d9di_jinja_split_lines(c->run, &c->self, d9di_jinja_truth(&c->arg[0]), out);
}

static d9d_status str_replace(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *from, *to;
    int64_t count;

    D9D_TRY(need_str(c, 0, "replace", &from));
    D9D_TRY(need_str(c, 1, "replace", &to));
    D9D_TRY(get_int(c, 2, "replace", -1, &count));
    return d9di_jinja_replace(c->run, &c->self, from, to, count, out);
}

static d9d_status find_part(const d9di_jinja_call *c, const char *method, bool last,
                            d9di_jinja_value *out)
{
    const d9di_jinja_value *s = &c->self, *part;
    const char *at = NULL;

    D9D_TRY(need_str(c, 0, method, &part));
    D9D_TRY(d9di_jinja_step(c->run, s->n / 1024));
    for (size_t i = 0; i <= s->n - (part->n < s->n ? part->n : s->n) && part->n <= s->n; i++) {
        const char *hit =
            part->n == 0 ? s->text + i : memmem(s->text + i, s->n - i, part->text, part->n);

        if (hit == NULL)
            break;
        at = hit;
        if (!last)
            break;
        i = (size_t)(hit - s->text);
    }
    *out = d9di_jinja_int(-1);
    if (at != NULL) {
        const d9di_jinja_value before = d9di_jinja_str(s->text, (size_t)(at - s->text));

        *out = d9di_jinja_int((int64_t)d9di_jinja_chars(&before));
    }
    return D9D_OK;
}

static d9d_status str_find(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return find_part(c, "find", false, out);
}

static d9d_status str_rfind(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return find_part(c, "rfind", true, out);
}

static d9d_status str_index(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    D9D_TRY(find_part(c, "index", false, out));
    return out->i >= 0 ? D9D_OK : d9di_jinja_fail(c->run, "index: the substring is not there");
}

static d9d_status str_count(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *part;
    int64_t n = 0;

    D9D_TRY(need_str(c, 0, "count", &part));
    D9D_TRY(d9di_jinja_step(c->run, c->self.n / 1024));
    if (part->n == 0)
        n = (int64_t)d9di_jinja_chars(&c->self) + 1;
    for (size_t at = 0; part->n > 0; n++) {
        const char *hit = memmem(c->self.text + at, c->self.n - at, part->text, part->n);

        if (hit == NULL)
            break;
        at = (size_t)(hit - c->self.text) + part->n;
    }
    *out = d9di_jinja_int(n);
    return D9D_OK;
}

static d9d_status str_join(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_value items = c->arg[0];
    d9di_jinja_seq s;

    D9D_TRY(d9di_jinja_iterate(c->run, &items, &s));
    for (size_t i = 0; i < s.n; i++)
        if (s.items[i].kind != D9DI_JINJA_STRING)
            return d9di_jinja_fail(c->run, "join: item %zu is a %s, must be a str", i,
                                   d9di_jinja_type(&s.items[i]));
    items = (d9di_jinja_value){.kind = D9DI_JINJA_LIST, .seq = &s};
    return d9di_jinja_join(c->run, &c->self, &items, out);
}

static d9d_status str_upper(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return d9di_jinja_to_case(c->run, &c->self, D9DI_JINJA_UPPER, out);
}

static d9d_status str_lower(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return d9di_jinja_to_case(c->run, &c->self, D9DI_JINJA_LOWER, out);
}

static d9d_status str_title(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return d9di_jinja_to_case(c->run, &c->self, D9DI_JINJA_TITLE, out);
}

static d9d_status str_capitalize(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return d9di_jinja_to_case(c->run, &c->self, D9DI_JINJA_CAPITALIZE, out);
}

/* All characters are ASCII of these ranges, and there is one; other characters are refused. */
static d9d_status test_chars(const d9di_jinja_call *c, const char *method, const char *ranges,
                             d9di_jinja_value *out)
{
    bool all = c->self.n > 0;

    for (size_t i = 0; i < c->self.n; i++) {
        const char x = c->self.text[i];
        bool within = false;

        if ((unsigned char)x >= 0x80)
            return d9di_jinja_fail(c->run, "str.%s of what is not ASCII is not supported", method);
        for (const char *p = ranges; *p; p += 2)
            within = within || (x >= p[0] && x <= p[1]);
        all = all && within;
    }
    *out = d9di_jinja_bool(all);
    return D9D_OK;
}

static d9d_status str_isdigit(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_chars(c, "isdigit", "09", out);
}

static d9d_status str_isalpha(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_chars(c, "isalpha", "azAZ", out);
}

static d9d_status str_isalnum(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_chars(c, "isalnum", "azAZ09", out);
}

static d9d_status str_isspace(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value rest = d9di_jinja_strip(&c->self, NULL, D9DI_JINJA_LEFT);

    *out = d9di_jinja_bool(c->self.n > 0 && rest.n == 0);
    return D9D_OK;
}

const d9di_jinja_builtin d9di_jinja_str_methods[] = {
    {"strip", str_strip, "chars", 0},
    {"lstrip", str_lstrip, "chars", 0},
    {"rstrip", str_rstrip, "chars", 0},
    {"startswith", str_startswith, "prefix", 1},
    {"endswith", str_endswith, "suffix", 1},
    {"removeprefix", str_removeprefix, "prefix", 1},
    {"removesuffix", str_removesuffix, "suffix", 1},
    {"split", str_split, "sep maxsplit", 0},
    {"rsplit", str_rsplit, "sep maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"replace", str_replace, "old new count", 2},
    {"find", str_find, "sub", 1},
    {"rfind", str_rfind, "sub", 1},
    {"index", str_index, "sub", 1},
    {"count", str_count, "sub", 1},
    {"join", str_join, "iterable", 1},
    {"upper", str_upper, "", 0},
    {"lower", str_lower, "", 0},
    {"title", str_title, "", 0},
    {"capitalize", str_capitalize, "", 0},
    {"isdigit", str_isdigit, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isalnum", str_isalnum, "", 0},
    {"isspace", str_isspace, "", 0},
    {"format", d9di_jinja_format, NULL, 0},
    {"casefold", NULL, "", 0},
    {"center", NULL, "", 0},
    {"encode", NULL, "", 0},
    {"expandtabs", NULL, "", 0},
    {"format_map", NULL, "", 0},
    {"isascii", NULL, "", 0},
    {"isdecimal", NULL, "", 0},
    {"isidentifier", NULL, "", 0},
    {"islower", NULL, "", 0},
    {"isnumeric", NULL, "", 0},
    {"isprintable", NULL, "", 0},
    {"istitle", NULL, "", 0},
    {"isupper", NULL, "", 0},
    {"ljust", NULL, "", 0},
    {"maketrans", NULL, "", 0},
    {"partition", NULL, "", 0},
    {"rindex", NULL, "", 0},
    {"rjust", NULL, "", 0},
    {"rpartition", NULL, "", 0},
    {"swapcase", NULL, "", 0},
    {"translate", NULL, "", 0},
    {"zfill", NULL, "", 0},
    {NULL, NULL, NULL, 0}};

/* --- dicts ------------------------------------------------------------------------------------ */

static d9d_status make_view(const d9di_jinja_call *c, const char *name, bool keys, bool values,
                            d9di_jinja_value *out)
{
    const d9di_jinja_dict *d = c->self.dict;

    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_VIEW, d->n, out));
    out->seq->name = name;
    for (size_t i = 0; i < d->n; i++) {
        d9di_jinja_value item = keys ? d->keys[i] : d->values[i];

        if (keys && values)
            D9D_TRY(d9di_jinja_pair(c->run, d->keys[i], d->values[i], &item));
        D9D_TRY(d9di_jinja_seq_append(c->run, out->seq, item));
    }
    return D9D_OK;
}

static d9d_status dict_keys(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return make_view(c, "dict_keys", true, false, out);
}

static d9d_status dict_values(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return make_view(c, "dict_values", false, true, out);
}

static d9d_status dict_items(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return make_view(c, "dict_items", true, true, out);
}

static d9d_status dict_get(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *found;

    if (!d9di_jinja_is_hashable(&c->arg[0]))
        return d9di_jinja_fail(c->run, "get: a %s cannot be a key", d9di_jinja_type(&c->arg[0]));
    D9D_TRY(d9di_jinja_step(c->run, c->self.dict->n / 16));
    found = d9di_jinja_dict_find(c->run, c->self.dict, &c->arg[0]);
    *out = found != NULL                        ? *found
           : c->arg[1].kind != D9DI_JINJA_UNSET ? c->arg[1]
                                                : d9di_jinja_none();
    return D9D_OK;
}

static d9d_status copy_self(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = c->self; /* immutable */
    return D9D_OK;
}

const d9di_jinja_builtin d9di_jinja_dict_methods[] = {
    {"items", dict_items, "", 0},   {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0}, {"get", dict_get, "key default", 1},
    {"copy", copy_self, "", 0},     {"fromkeys", NULL, "", 0},
    {NULL, NULL, NULL, 0}};

/* --- lists and tuples ------------------------------------------------------------------------- */

static d9d_status list_index(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_seq *s = c->self.seq;

    for (size_t i = 0; i < s->n; i++) {
        bool same;

        D9D_TRY(d9di_jinja_equal(c->run, &s->items[i], &c->arg[0], &same));
        if (same) {
            *out = d9di_jinja_int((int64_t)i);
            return D9D_OK;
        }
    }
    return d9di_jinja_fail(c->run, "index: the value is not in the list");
}

static d9d_status list_count(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_seq *s = c->self.seq;
    int64_t n = 0;

    for (size_t i = 0; i < s->n; i++) {
        bool same;

        D9D_TRY(d9di_jinja_equal(c->run, &s->items[i], &c->arg[0], &same));
        n += same;
    }
    *out = d9di_jinja_int(n);
    return D9D_OK;
}

const d9di_jinja_builtin d9di_jinja_list_methods[] = {{"index", list_index, "value", 1},
                                                      {"count", list_count, "value", 1},
                                                      {"copy", copy_self, "", 0},
                                                      {NULL, NULL, NULL, 0}};
