/* jinja_print.c - str() and repr() of values as in Python. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "data/jinja/jinja_run.h"
#include "data/jinja/python_number.h"
#include "data/tokenizer/utf8.h"

static d9d_status put_repr(d9di_jinja_run *r, const d9di_jinja_value *v, int depth);

/* --- scalars ---------------------------------------------------------------------------------- */

static d9d_status put_int(d9di_jinja_run *r, int64_t i)
{
    char text[32];

    return d9di_jinja_put(r, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, i));
}

static d9d_status put_float(d9di_jinja_run *r, double f)
{
    if (isnan(f))
        return d9di_jinja_put_text(r, "nan");
    if (isinf(f))
        return d9di_jinja_put_text(r, f < 0 ? "-inf" : "inf");
    return d9di_python_number(f, r->out);
}

/* str.isprintable() of a character. */
static bool is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

static d9d_status put_char_repr(d9di_jinja_run *r, const char *text, unsigned w, uint32_t c,
                                char quote)
{
    static const char named[] = "\nn\rr\tt\\\\";
    char escape[12] = {'\\', '\0', '\0'};

    for (const char *p = named; *p && escape[1] == '\0'; p += 2)
        if (c == (unsigned char)*p)
            escape[1] = p[1];
    if (c == (unsigned char)quote)
        escape[1] = quote;
    if (escape[1] == '\0') {
        if (is_printable(c))
            return d9di_jinja_put(r, text, w);
        (void)snprintf(escape, sizeof(escape),
                       c < 0x100     ? "\\x%02" PRIx32
                       : c < 0x10000 ? "\\u%04" PRIx32
                                     : "\\U%08" PRIx32,
                       c);
    }
    return d9di_jinja_put_text(r, escape);
}

static d9d_status put_str_repr(d9di_jinja_run *r, const d9di_jinja_value *v)
{
    const char quote =
        memchr(v->text, '\'', v->n) != NULL && memchr(v->text, '"', v->n) == NULL ? '"' : '\'';

    D9D_TRY(d9di_jinja_put(r, &quote, 1));
    for (size_t at = 0; at < v->n;) {
        unsigned w;
        const uint32_t c = d9di_utf8_decode(v->text + at, &w);

        D9D_TRY(put_char_repr(r, v->text + at, w, c, quote));
        at += w;
    }
    return d9di_jinja_put(r, &quote, 1);
}

/* --- collections ------------------------------------------------------------------------------ */

static d9d_status put_items(d9di_jinja_run *r, const char *open, const d9di_jinja_seq *s,
                            const char *close, int depth)
{
    D9D_TRY(d9di_jinja_put_text(r, open));
    for (size_t i = 0; i < s->n; i++) {
        D9D_TRY(d9di_jinja_put_text(r, i > 0 ? ", " : ""));
        D9D_TRY(put_repr(r, &s->items[i], depth));
    }
    return d9di_jinja_put_text(r, close);
}

static d9d_status put_dict(d9di_jinja_run *r, const d9di_jinja_dict *d, int depth)
{
    D9D_TRY(d9di_jinja_put_text(r, "{"));
    for (size_t i = 0; i < d->n; i++) {
        D9D_TRY(d9di_jinja_put_text(r, i > 0 ? ", " : ""));
        D9D_TRY(put_repr(r, &d->keys[i], depth));
        D9D_TRY(d9di_jinja_put_text(r, ": "));
        D9D_TRY(put_repr(r, &d->values[i], depth));
    }
    return d9di_jinja_put_text(r, "}");
}

static d9d_status put_range(d9di_jinja_run *r, const d9di_jinja_seq *s)
{
    D9D_TRY(d9di_jinja_put_text(r, "range("));
    D9D_TRY(put_int(r, s->start));
    D9D_TRY(d9di_jinja_put_text(r, ", "));
    D9D_TRY(put_int(r, s->stop));
    if (s->step != 1) {
        D9D_TRY(d9di_jinja_put_text(r, ", "));
        D9D_TRY(put_int(r, s->step));
    }
    return d9di_jinja_put_text(r, ")");
}

static d9d_status put_view(d9di_jinja_run *r, const d9di_jinja_seq *s, int depth)
{
    D9D_TRY(d9di_jinja_put_text(r, s->name));
    return put_items(r, "([", s, "])", depth);
}

static d9d_status put_repr(d9di_jinja_run *r, const d9di_jinja_value *v, int depth)
{
    if (depth == D9DI_JINJA_MAX_NESTING)
        return d9di_jinja_fail(r, "a value is nested deeper than %d levels",
                               D9DI_JINJA_MAX_NESTING);
    D9D_TRY(d9di_jinja_step(r, 1));
    depth++;
    switch (v->kind) {
    case D9DI_JINJA_UNDEFINED: return d9di_jinja_put_text(r, "Undefined");
    case D9DI_JINJA_NONE: return d9di_jinja_put_text(r, "None");
    case D9DI_JINJA_BOOL: return d9di_jinja_put_text(r, v->b ? "True" : "False");
    case D9DI_JINJA_INT: return put_int(r, v->i);
    case D9DI_JINJA_FLOAT: return put_float(r, v->f);
    case D9DI_JINJA_STRING:
        return v->markup ? d9di_jinja_fail(r, "a list of safe text cannot be printed")
                         : put_str_repr(r, v);
    case D9DI_JINJA_LIST: return put_items(r, "[", v->seq, "]", depth);
    case D9DI_JINJA_TUPLE: return put_items(r, "(", v->seq, v->seq->n == 1 ? ",)" : ")", depth);
    case D9DI_JINJA_RANGE: return put_range(r, v->seq);
    case D9DI_JINJA_VIEW: return put_view(r, v->seq, depth);
    case D9DI_JINJA_DICT: return put_dict(r, v->dict, depth);
    case D9DI_JINJA_NAMESPACE:
        D9D_TRY(d9di_jinja_put_text(r, "<Namespace "));
        D9D_TRY(put_dict(r, v->dict, depth));
        return d9di_jinja_put_text(r, ">");
    default: return d9di_jinja_fail(r, "a value of type %s cannot be printed", d9di_jinja_type(v));
    }
}

d9d_status d9di_jinja_put_repr(d9di_jinja_run *r, const d9di_jinja_value *v)
{
    return put_repr(r, v, 0);
}

d9d_status d9di_jinja_put_ascii(d9di_jinja_run *r, const d9di_jinja_value *v)
{
    const size_t mark = d9di_jinja_mark(r);
    d9di_jinja_value s;

    D9D_TRY(put_repr(r, v, 0));
    D9D_TRY(d9di_jinja_take(r, mark, &s));
    for (size_t at = 0; at < s.n;) {
        char escape[12];
        unsigned w;
        const uint32_t c = d9di_utf8_decode(s.text + at, &w);

        (void)snprintf(escape, sizeof(escape),
                       c < 0x100     ? "\\x%02" PRIx32
                       : c < 0x10000 ? "\\u%04" PRIx32
                                     : "\\U%08" PRIx32,
                       c);
        D9D_TRY(c < 0x80 ? d9di_jinja_put(r, s.text + at, w) : d9di_jinja_put_text(r, escape));
        at += w;
    }
    return D9D_OK;
}

d9d_status d9di_jinja_put_str(d9di_jinja_run *r, const d9di_jinja_value *v)
{
    if (v->kind == D9DI_JINJA_STRING)
        return d9di_jinja_put(r, v->text, v->n);
    return v->kind == D9DI_JINJA_UNDEFINED ? D9D_OK : put_repr(r, v, 0);
}
