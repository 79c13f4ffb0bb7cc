/* jinja_tojson.c - the filter tojson: json.dumps(), as transformers sets it up. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/jinja/jinja_run.h"
#include "data/jinja/python_number.h"
#include "data/tokenizer/utf8.h"

typedef struct writer {
    d9di_jinja_run *run;
    bool ascii, sorted, lines;          /* lines: an indent is given */
    d9di_jinja_value indent, item, key; /* separators */
} writer;

static d9d_status put_value(writer *w, const d9di_jinja_value *v, int depth);

static d9d_status put_escaped(writer *w, const char *text, unsigned width)
{
    static const char named[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    unsigned ignored;
    const uint32_t c = d9di_utf8_decode(text, &ignored);
    char escape[16] = {'\\'};

    for (const char *p = named; *p; p += 2)
        if (c == (unsigned char)*p) {
            escape[1] = p[1];
            return d9di_jinja_put(w->run, escape, 2);
        }
    if (c >= 0x20 && (c < 0x7f || !w->ascii))
        return d9di_jinja_put(w->run, text, width);
    if (c < 0x10000)
        (void)snprintf(escape, sizeof(escape), "\\u%04" PRIx32, c);
    else
        (void)snprintf(escape, sizeof(escape), "\\u%04" PRIx32 "\\u%04" PRIx32,
                       0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    return d9di_jinja_put_text(w->run, escape);
}

static d9d_status put_string(writer *w, const d9di_jinja_value *v)
{
    size_t at = 0;

    D9D_TRY(d9di_jinja_put(w->run, "\"", 1));
    while (at < v->n) {
        const size_t from = at;
        unsigned width;

        while (at < v->n && (unsigned char)v->text[at] >= 0x20 && v->text[at] != '"' &&
               v->text[at] != '\\' && (!w->ascii || (unsigned char)v->text[at] < 0x7f))
            at++;
        D9D_TRY(d9di_jinja_put(w->run, v->text + from, at - from));
        if (at == v->n)
            break;
        width = d9di_utf8_width((unsigned char)v->text[at]);
        D9D_TRY(put_escaped(w, v->text + at, width));
        at += width;
    }
    return d9di_jinja_put(w->run, "\"", 1);
}

static d9d_status put_break(writer *w, int depth)
{
    if (!w->lines)
        return D9D_OK;
    D9D_TRY(d9di_jinja_put(w->run, "\n", 1));
    for (int i = 0; i < depth; i++)
        D9D_TRY(d9di_jinja_put(w->run, w->indent.text, w->indent.n));
    return D9D_OK;
}

/* What stands before item i. */
static d9d_status put_separator(writer *w, size_t i, int depth)
{
    if (i > 0)
        D9D_TRY(d9di_jinja_put(w->run, w->item.text, w->item.n));
    return put_break(w, depth);
}

static d9d_status put_array(writer *w, const d9di_jinja_seq *s, int depth)
{
    D9D_TRY(d9di_jinja_put(w->run, "[", 1));
    for (size_t i = 0; i < s->n; i++) {
        D9D_TRY(put_separator(w, i, depth + 1));
        D9D_TRY(put_value(w, &s->items[i], depth + 1));
    }
    if (s->n > 0)
        D9D_TRY(put_break(w, depth));
    return d9di_jinja_put(w->run, "]", 1);
}

/* Keys that are no strings are written as strings. */
static d9d_status put_key(writer *w, const d9di_jinja_value *k, int depth)
{
    if (k->kind == D9DI_JINJA_STRING)
        return put_string(w, k);
    if (k->kind != D9DI_JINJA_NONE && !d9di_jinja_is_number(k))
        return d9di_jinja_fail(w->run, "tojson: a key is of type %s", d9di_jinja_type(k));
    D9D_TRY(d9di_jinja_put(w->run, "\"", 1));
    D9D_TRY(put_value(w, k, depth));
    return d9di_jinja_put(w->run, "\"", 1);
}

static d9d_status put_object(writer *w, const d9di_jinja_dict *d, int depth)
{
    d9di_jinja_value *order = NULL; /* indices, by their keys */

    if (w->sorted) {
        D9D_TRY(d9di_jinja_alloc(w->run, d->n, sizeof(*order), &order));
        for (size_t i = 0; i < d->n; i++)
            order[i] = d9di_jinja_int((int64_t)i);
        D9D_TRY(d9di_jinja_sort(w->run, d->keys, order, d->n, false));
    }
    D9D_TRY(d9di_jinja_put(w->run, "{", 1));
    for (size_t i = 0; i < d->n; i++) {
        const size_t k = order != NULL ? (size_t)order[i].i : i;

        D9D_TRY(put_separator(w, i, depth + 1));
        D9D_TRY(put_key(w, &d->keys[k], depth));
        D9D_TRY(d9di_jinja_put(w->run, w->key.text, w->key.n));
        D9D_TRY(put_value(w, &d->values[k], depth + 1));
    }
    if (d->n > 0)
        D9D_TRY(put_break(w, depth));
    return d9di_jinja_put(w->run, "}", 1);
}

static d9d_status put_value(writer *w, const d9di_jinja_value *v, int depth)
{
    if (depth == D9DI_JINJA_MAX_NESTING)
        return d9di_jinja_fail(w->run, "a value is nested deeper than %d levels",
                               D9DI_JINJA_MAX_NESTING);
    D9D_TRY(d9di_jinja_step(w->run, 1));
    switch (v->kind) {
    case D9DI_JINJA_NONE: return d9di_jinja_put_text(w->run, "null");
    case D9DI_JINJA_BOOL: return d9di_jinja_put_text(w->run, v->b ? "true" : "false");
    case D9DI_JINJA_INT: return d9di_jinja_put_repr(w->run, v);
    case D9DI_JINJA_FLOAT: return d9di_python_number(v->f, w->run->out);
    case D9DI_JINJA_STRING: return put_string(w, v);
    case D9DI_JINJA_LIST:
    case D9DI_JINJA_TUPLE: return put_array(w, v->seq, depth);
    case D9DI_JINJA_DICT: return put_object(w, v->dict, depth);
    case D9DI_JINJA_UNDEFINED: return d9di_jinja_fail_undefined(w->run, v);
    default: return d9di_jinja_fail(w->run, "tojson: a value is of type %s", d9di_jinja_type(v));
    }
}

static d9d_status read_indent(writer *w, const d9di_jinja_value *indent)
{
    static const char blanks[] = "                                ";

    w->item = d9di_jinja_str(", ", 2);
    w->key = d9di_jinja_str(": ", 2);
    if (indent->kind == D9DI_JINJA_UNSET || indent->kind == D9DI_JINJA_NONE)
        return D9D_OK;
    w->lines = true;
    w->item = d9di_jinja_str(",", 1);
    w->indent = *indent;
    if (indent->kind == D9DI_JINJA_STRING)
        return D9D_OK;
    if (!d9di_jinja_is_integer(indent) || d9di_jinja_as_int(indent) >= (int64_t)sizeof(blanks))
        return d9di_jinja_fail(w->run, "tojson: \"indent\" must be a string or an int below %zu",
                               sizeof(blanks));
    w->indent = d9di_jinja_str(
        blanks, d9di_jinja_as_int(indent) > 0 ? (size_t)d9di_jinja_as_int(indent) : 0);
    return D9D_OK;
}

static d9d_status read_separators(writer *w, const d9di_jinja_value *v)
{
    if (v->kind == D9DI_JINJA_UNSET || v->kind == D9DI_JINJA_NONE)
        return D9D_OK;
    if ((v->kind != D9DI_JINJA_TUPLE && v->kind != D9DI_JINJA_LIST) || v->seq->n != 2 ||
        v->seq->items[0].kind != D9DI_JINJA_STRING || v->seq->items[1].kind != D9DI_JINJA_STRING)
        return d9di_jinja_fail(w->run, "tojson: \"separators\" must be two strings");
    w->item = v->seq->items[0];
    w->key = v->seq->items[1];
    return D9D_OK;
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
d9d_status d9di_jinja_tojson(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(c->run);
    writer w = {.run = c->run,
                .ascii = d9di_jinja_truth(&c->arg[0]),
                .sorted = d9di_jinja_truth(&c->arg[3])};

    D9D_TRY(read_indent(&w, &c->arg[1]));
    D9D_TRY(read_separators(&w, &c->arg[2]));
    D9D_TRY(put_value(&w, &c->self, 0));
    return d9di_jinja_take(c->run, mark, out);
}
