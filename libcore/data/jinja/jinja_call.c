/* jinja_call.c - calls of builtins: finding them, binding arguments; the global functions. */
#include <locale.h>
#include <string.h>

#include "data/jinja/jinja_exec.h"

enum { MAX_RANGE = 100000 }; /* as jinja2's sandbox has it */

const d9di_jinja_builtin *d9di_jinja_find(const d9di_jinja_builtin *table, const char *name,
                                          size_t n)
{
    for (; table->name != NULL; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0)
            return table;
    return NULL;
}

const d9di_jinja_builtin *d9di_jinja_find_filter(const char *name, size_t n)
{
    static const d9di_jinja_builtin *const tables[] = {
        d9di_jinja_text_filters, d9di_jinja_seq_filters, d9di_jinja_number_filters,
        d9di_jinja_select_filters};
    const d9di_jinja_builtin *found = NULL;

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && found == NULL; i++)
        found = d9di_jinja_find(tables[i], name, n);
    return found;
}

/* --- binding ---------------------------------------------------------------------------------- */

/* The place of a parameter in "a b c"; name NULL: their number.  -1: there is none. */
static int find_param(const char *params, const char *name)
{
    int i = 0;

    for (const char *w = params; *w; i++) {
        const size_t n = strcspn(w, " ");

        if (name != NULL && strlen(name) == n && memcmp(w, name, n) == 0)
            return i;
        w += n;
        w += strspn(w, " ");
    }
    return name != NULL ? -1 : i;
}

static d9d_status bind(const d9di_jinja_builtin *f, d9di_jinja_call *c)
{
    const size_t n = (size_t)find_param(f->params, NULL);

    memset(c->arg, 0, sizeof(c->arg));
    if (c->n > n)
        return d9di_jinja_fail(c->run, "%s: takes %zu arguments, not %zu", f->name, n, c->n);
    for (size_t i = 0; i < c->n; i++)
        c->arg[i] = c->pos[i];
    for (size_t i = 0; i < c->n_kw; i++) {
        const int at = find_param(f->params, c->kw[i].name);

        if (at < 0)
            return d9di_jinja_fail(c->run, "%s: the argument \"%.60s\" is not supported", f->name,
                                   c->kw[i].name);
        if (c->arg[at].kind != D9DI_JINJA_UNSET)
            return d9di_jinja_fail(c->run, "%s: the argument \"%s\" is there twice", f->name,
                                   c->kw[i].name);
        c->arg[at] = c->kw[i].value;
    }
    for (size_t i = 0; i < f->required; i++)
        if (c->arg[i].kind == D9DI_JINJA_UNSET)
            return d9di_jinja_fail(c->run, "%s: an argument is missing, %zu are needed", f->name,
                                   f->required);
    return D9D_OK;
}

d9di_jinja_value d9di_jinja_keyword_key(const d9di_jinja_keyword *kw)
{
    return kw->key != NULL ? *kw->key : d9di_jinja_str(kw->name, strlen(kw->name));
}

d9d_status d9di_jinja_apply(const d9di_jinja_builtin *f, d9di_jinja_call *c, d9di_jinja_value *out)
{
    if (f->call == NULL)
        return d9di_jinja_fail(c->run, "\"%.60s\" is not supported", f->name);
    if (f->params != NULL)
        D9D_TRY(bind(f, c));
    return f->call(c, out);
}

d9d_status d9di_jinja_apply_to(d9di_jinja_run *r, const d9di_jinja_builtin *f,
                               const d9di_jinja_value *self, const d9di_jinja_value *pos, size_t n,
                               d9di_jinja_value *out)
{
    d9di_jinja_call c = {.run = r, .self = *self, .pos = pos, .n = n};

    return d9di_jinja_apply(f, &c, out);
}

d9d_status d9di_jinja_call_value(const d9di_jinja_value *f, d9di_jinja_call *c,
                                 d9di_jinja_value *out)
{
    switch (f->kind) {
    case D9DI_JINJA_UNDEFINED: return d9di_jinja_fail_undefined(c->run, f);
    case D9DI_JINJA_FUNCTION: return d9di_jinja_apply(f->function, c, out);
    case D9DI_JINJA_METHOD:
        c->self = f->method->self;
        return d9di_jinja_apply(f->method->of, c, out);
    case D9DI_JINJA_LOOP: c->self = *f; return d9di_jinja_apply(&d9di_jinja_loop_call, c, out);
    case D9DI_JINJA_MACRO: return d9di_jinja_call_macro(f->macro, c, out);
    default:
        return d9di_jinja_fail(c->run, "a value of type %s cannot be called", d9di_jinja_type(f));
    }
}

/* --- functions -------------------------------------------------------------------------------- */

static d9d_status function_range(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    int64_t part[3] = {0, 0, 1}; /* start, stop, step */
    uint64_t n = 0;

    if (c->n < 1 || c->n > 3 || c->n_kw > 0)
        return d9di_jinja_fail(c->run, "range: takes 1 to 3 arguments, not %zu", c->n + c->n_kw);
    for (size_t i = 0; i < c->n; i++) {
        if (c->pos[i].kind == D9DI_JINJA_UNDEFINED)
            return d9di_jinja_fail_undefined(c->run, &c->pos[i]);
        if (!d9di_jinja_is_integer(&c->pos[i]))
            return d9di_jinja_fail(c->run, "range: an argument is a %s, must be an int",
                                   d9di_jinja_type(&c->pos[i]));
        part[c->n == 1 ? 1 : i] = d9di_jinja_as_int(&c->pos[i]);
    }
    if (part[2] == 0)
        return d9di_jinja_fail(c->run, "range: the step is 0");
    if (part[2] > 0 ? part[0] < part[1] : part[0] > part[1]) {
        const uint64_t way = part[2] > 0 ? (uint64_t)part[1] - (uint64_t)part[0]
                                         : (uint64_t)part[0] - (uint64_t)part[1];

        n = (way - 1) / (part[2] > 0 ? (uint64_t)part[2] : -(uint64_t)part[2]) + 1;
    }
    if (n > MAX_RANGE)
        return d9di_jinja_fail(c->run, "range: has %llu items, more than %d", (unsigned long long)n,
                               MAX_RANGE);
    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_RANGE, (size_t)n, out));
    out->seq->start = part[0];
    out->seq->stop = part[1];
    out->seq->step = part[2];
    for (uint64_t i = 0; i < n; i++)
        out->seq->items[out->seq->n++] =
            d9di_jinja_int((int64_t)((uint64_t)part[0] + i * (uint64_t)part[2]));
    return D9D_OK;
}

/* Puts the members of a dict, or pairs. */
static d9d_status put_all(const d9di_jinja_call *c, const d9di_jinja_value *from,
                          d9di_jinja_dict *to)
{
    d9di_jinja_seq s;

    if (from->kind == D9DI_JINJA_DICT) {
        for (size_t i = 0; i < from->dict->n; i++)
            D9D_TRY(d9di_jinja_dict_put(c->run, to, from->dict->keys[i], from->dict->values[i]));
        return D9D_OK;
    }
    D9D_TRY(d9di_jinja_iterate(c->run, from, &s));
    for (size_t i = 0; i < s.n; i++) {
        d9di_jinja_seq pair;

        D9D_TRY(d9di_jinja_iterate(c->run, &s.items[i], &pair));
        if (pair.n != 2)
            return d9di_jinja_fail(c->run, "dict: item %zu has %zu parts, not 2", i, pair.n);
        D9D_TRY(d9di_jinja_dict_put(c->run, to, pair.items[0], pair.items[1]));
    }
    return D9D_OK;
}

static d9d_status make_dict(const d9di_jinja_call *c, d9di_jinja_kind kind, d9di_jinja_value *out)
{
    if (c->n > 1)
        return d9di_jinja_fail(c->run, "dict, namespace: take 1 argument, not %zu", c->n);
    D9D_TRY(d9di_jinja_dict_new(c->run, kind, out));
    if (c->n == 1)
        D9D_TRY(put_all(c, &c->pos[0], out->dict));
    for (size_t i = 0; i < c->n_kw; i++)
        D9D_TRY(d9di_jinja_dict_put(c->run, out->dict, d9di_jinja_keyword_key(&c->kw[i]),
                                    c->kw[i].value));
    return D9D_OK;
}

static d9d_status function_dict(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return make_dict(c, D9DI_JINJA_DICT, out);
}

static d9d_status function_namespace(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    D9D_TRY(make_dict(c, D9DI_JINJA_NAMESPACE, out));
    for (size_t i = 0; i < out->dict->n; i++)
        if (out->dict->keys[i].kind == D9DI_JINJA_STRING && out->dict->keys[i].n > 0 &&
            out->dict->keys[i].text[0] == '_')
            return d9di_jinja_fail(c->run, "namespace: an attribute begins with \"_\"");
    return D9D_OK;
}

static d9d_status function_raise_exception(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_value s;

    (void)out;
    D9D_TRY(d9di_jinja_to_str(c->run, &c->arg[0], &s));
    return d9di_jinja_fail(c->run, "the template raised: %.*s", s.n < 800 ? (int)s.n : 800, s.text);
}

/* strftime() in the "C" locale. */
static size_t format_time(char *to, size_t size, const char *format, const struct tm *now)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    size_t n = 0;

    if (plain == (locale_t)0)
        return 0;
    n = strftime_l(to, size, format, now, plain);
    freelocale(plain);
    return n;
}

/* Puts what strftime() makes of one directive, without the zeros and spaces before a number if it
 * is `bare`, as "%-d" of the C libraries is. */
static d9d_status put_time(const d9di_jinja_call *c, char directive, bool bare)
{
    static const char supported[] = "aAbBcdHIjmMpSUwWxXyYeFTDRn%GuV", numbers[] = "dHIjmMSUwWyeuV";
    const char format[] = {'%', directive, '\0'};
    char text[100];
    size_t n, skip = 0;

    if (directive == '\0' || strchr(bare ? numbers : supported, directive) == NULL)
        return d9di_jinja_fail(c->run, "strftime_now: \"%%%s%c\" is not supported", bare ? "-" : "",
                               directive != '\0' ? directive : ' ');
    n = format_time(text, sizeof(text), format, c->run->opts->now);
    while (bare && skip + 1 < n && (text[skip] == '0' || text[skip] == ' '))
        skip++;
    return d9di_jinja_put(c->run, text + skip, n - skip);
}

static d9d_status function_strftime_now(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(c->run);
    const d9di_jinja_value *f = &c->arg[0];

    if (f->kind != D9DI_JINJA_STRING)
        return d9di_jinja_fail(c->run, "strftime_now: the format must be a str");
    if (c->run->opts->now == NULL)
        return d9di_jinja_fail(c->run, "strftime_now: no date is given; --template-date gives it, "
                                       "in a configuration chat_template_date");
    for (size_t i = 0; i < f->n; i++) {
        bool bare;

        if (f->text[i] != '%') {
            D9D_TRY(d9di_jinja_put(c->run, &f->text[i], 1));
            continue;
        }
        bare = i + 1 < f->n && f->text[i + 1] == '-';
        i += bare ? 2 : 1;
        D9D_TRY(put_time(c, i < f->n ? f->text[i] : '\0', bare));
    }
    return d9di_jinja_take(c->run, mark, out);
}

const d9di_jinja_builtin d9di_jinja_functions[] = {
    {"range", function_range, NULL, 0},
    {"dict", function_dict, NULL, 0},
    {"namespace", function_namespace, NULL, 0},
    {"raise_exception", function_raise_exception, "message", 1},
    {"strftime_now", function_strftime_now, "format", 1},
    {"cycler", NULL, "", 0},
    {"joiner", NULL, "", 0},
    {"lipsum", NULL, "", 0},
    {NULL, NULL, NULL, 0}};
