/* jinja_format.c - str.format(): {}, {0}, {name}, with !s or !r; members, items and format
 * specifications are refused. */
#include <string.h>

#include "data/jinja/jinja_text.h"

typedef struct formatter {
    const d9di_jinja_call *call;
    const char *at, *end;
    size_t next;           /* of {} */
    bool numbered, counts; /* a {0} was there, a {} */
} formatter;

/* --- fields ----------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The number of a field: the next one, if it is empty. */
static d9d_status find_number(formatter *f, const char *name, size_t n, size_t *out)
{
    f->counts = f->counts || n == 0;
    f->numbered = f->numbered || n > 0;
    if (f->counts && f->numbered)
        return d9di_jinja_fail(f->call->run, "format: some fields have numbers, others have none");
    *out = n == 0 ? f->next++ : 0;
    for (size_t i = 0; i < n && *out < 1000000; i++)
        *out = 10 * *out + (size_t)(name[i] - '0');
    return D9D_OK;
}

static d9d_status find_value(formatter *f, const char *name, size_t n, d9di_jinja_value *out)
{
    const d9di_jinja_call *c = f->call;
    size_t number = 0;

    if (n == 0 || is_digit(name[0])) {
        for (size_t i = 0; i < n; i++)
            if (!is_digit(name[i]))
                return d9di_jinja_fail(c->run, "format: a field of a value is not supported");
        D9D_TRY(find_number(f, name, n, &number));
        if (number >= c->n)
            return d9di_jinja_fail(c->run, "format: there is no argument %zu", number);
        *out = c->pos[number];
        return D9D_OK;
    }
    for (size_t i = 0; i < n; i++)
        if (name[i] == '.' || name[i] == '[')
            return d9di_jinja_fail(c->run, "format: a field of a value is not supported");
    for (size_t i = 0; i < c->n_kw; i++)
        if (strlen(c->kw[i].name) == n && memcmp(c->kw[i].name, name, n) == 0) {
            *out = c->kw[i].value;
            return D9D_OK;
        }
    return d9di_jinja_fail(c->run, "format: there is no argument \"%.*s\"", n < 80 ? (int)n : 80,
                           name);
}

/* Puts a field, text[0, n) between its braces. */
static d9d_status put_field(formatter *f, const char *text, size_t n)
{
    const char *spec = memchr(text, ':', n), *mark;
    const size_t left = spec != NULL ? (size_t)(spec - text) : n;
    d9di_jinja_value v;

    mark = memchr(text, '!', left);
    if (memchr(text, '{', n) != NULL || (spec != NULL && left + 1 < n))
        return d9di_jinja_fail(f->call->run, "format: a format specification is not supported");
    if (mark != NULL && (text + left - mark != 2 || strchr("sr", mark[1]) == NULL))
        return d9di_jinja_fail(f->call->run, "format: a conversion must be !s or !r");
    D9D_TRY(find_value(f, text, mark != NULL ? (size_t)(mark - text) : left, &v));
    return mark != NULL && mark[1] == 'r' ? d9di_jinja_put_repr(f->call->run, &v)
                                          : d9di_jinja_put_str(f->call->run, &v);
}

/* --- the text --------------------------------------------------------------------------------- */

/* Puts what is at f->at: text up to a brace, a doubled brace or a field. */
static d9d_status put_next(formatter *f)
{
    d9di_jinja_run *r = f->call->run;
    const char *at = f->at, *close;
    size_t n = 0;

    while (at + n < f->end && at[n] != '{' && at[n] != '}')
        n++;
    if (n > 0) {
        f->at += n;
        return d9di_jinja_put(r, at, n);
    }
    if (f->end - at > 1 && at[1] == at[0]) {
        f->at += 2;
        return d9di_jinja_put(r, at, 1);
    }
    close = at[0] == '{' ? memchr(at, '}', (size_t)(f->end - at)) : NULL;
    if (close == NULL)
        return d9di_jinja_fail(r, "format: a \"%c\" is alone", at[0]);
    f->at = close + 1;
    return put_field(f, at + 1, (size_t)(close - at) - 1);
}

d9d_status d9di_jinja_format(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    formatter f = {.call = c, .at = c->self.text, .end = c->self.text + c->self.n};
    const size_t mark = d9di_jinja_mark(c->run);

    if (c->self.markup)
        return d9di_jinja_fail(c->run, "format: of a safe str is not supported");
    while (f.at < f.end) {
        D9D_TRY(d9di_jinja_step(c->run, 1));
        D9D_TRY(put_next(&f));
    }
    return d9di_jinja_take(c->run, mark, out);
}
