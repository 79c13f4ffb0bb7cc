/* jinja_run.c - see jinja_run.h: messages, limits, memory, the output; values of the context. */
#include "data/jinja/jinja_run.h"

#include <string.h>

#include "d9d/base/num_format.h"

d9d_status d9di_jinja_fail(const d9di_jinja_run *r, const char *fmt, ...)
{
    char sentence[1000];
    va_list ap;

    va_start(ap, fmt);
    (void)d9d_num_vformat(sentence, sizeof(sentence), fmt, ap);
    va_end(ap);
    return D9D_FAIL(D9D_EFORMAT, "%s: line %d: %s", r->where, r->line, sentence);
}

/* Before and after the name. */
static const char *const missing[][2] = {
    [D9DI_JINJA_NO_VARIABLE] = {"\"", "\" is undefined"},
    [D9DI_JINJA_NO_ATTRIBUTE] = {"there is no member \"", "\""},
    [D9DI_JINJA_NO_ITEM] = {"there is no item of ", ""},
    [D9DI_JINJA_NO_ELSE] = {"the condition of an \"if\" without \"else\" is false", ""},
    [D9DI_JINJA_NO_ARGUMENT] = {"the parameter \"", "\" was not provided"},
    [D9DI_JINJA_NOT_SAFE] = {"\"", "\" is not accessible to templates"},
};

d9d_status d9di_jinja_fail_undefined(const d9di_jinja_run *r, const d9di_jinja_value *v)
{
    return d9di_jinja_fail(r, "%s%.*s%s", missing[v->missing][0], v->n < 200 ? (int)v->n : 200,
                           v->n > 0 ? v->text : "", missing[v->missing][1]);
}

d9d_status d9di_jinja_step(d9di_jinja_run *r, uint64_t n)
{
    if (n > r->opts->max_steps - r->steps)
        return d9di_jinja_fail(r, "the template runs for more than %llu steps",
                               (unsigned long long)r->opts->max_steps);
    r->steps += n;
    return D9D_OK;
}

d9d_status d9di_jinja_alloc(d9di_jinja_run *r, size_t n, size_t size, void *out)
{
    uint64_t bytes;
    void *p;

    if (!d9d_checked_mul_u64(n, size, &bytes) || bytes > r->opts->max_memory - r->memory) {
        (void)d9di_jinja_fail(r, "the template needs more than %llu bytes of memory",
                              (unsigned long long)r->opts->max_memory);
        return D9D_EFORMAT;
    }
    r->memory += bytes;
    D9D_TRY(d9di_jinja_step(r, bytes / 1024));
    p = d9d_arena_alloc(r->arena, (size_t)bytes);
    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: line %d: out of memory: %llu bytes requested", r->where,
                        r->line, (unsigned long long)bytes);
    memcpy(out, &p, sizeof(p));
    return D9D_OK;
}

/* --- output ----------------------------------------------------------------------------------- */

size_t d9di_jinja_mark(const d9di_jinja_run *r)
{
    return r->out->len;
}

static d9d_status append(d9di_jinja_run *r, const char *text, size_t n)
{
    if (n > r->opts->max_output - (r->out->len - r->base))
        return d9di_jinja_fail(r, "the output is longer than %llu bytes",
                               (unsigned long long)r->opts->max_output);
    D9D_TRY(d9di_jinja_step(r, n / 1024));
    return d9d_buf_append(r->out, text, n);
}

d9d_status d9di_jinja_put(d9di_jinja_run *r, const char *text, size_t n)
{
    D9D_TRY(append(r, text, n));
    return r->trace != NULL ? d9di_jinja_trace_output(r, text, n) : D9D_OK;
}

d9d_status d9di_jinja_put_made(d9di_jinja_run *r, const char *text, size_t n, const char *from)
{
    D9D_TRY(append(r, text, n));
    for (size_t i = 0; i < n && r->trace != NULL; i++)
        D9D_TRY(d9di_jinja_trace_output(r, from, 1));
    return D9D_OK;
}

d9d_status d9di_jinja_put_text(d9di_jinja_run *r, const char *text)
{
    return d9di_jinja_put(r, text, strlen(text));
}

d9d_status d9di_jinja_take(d9di_jinja_run *r, size_t mark, d9di_jinja_value *out)
{
    const size_t n = r->out->len - mark;
    const char *marks = NULL, *text = "";
    char *copy;

    if (n > 0 && r->trace != NULL)
        D9D_TRY(d9di_jinja_trace_take(r, n, &marks));
    if (marks != NULL) {
        D9D_TRY(d9di_jinja_hold(r, r->out->data + mark, marks, n, &text));
    } else if (n > 0) {
        D9D_TRY(d9di_jinja_alloc(r, n, 1, &copy));
        text = memcpy(copy, r->out->data + mark, n);
    }
    r->out->len = mark;
    *out = d9di_jinja_str(text, n);
    return D9D_OK;
}

d9d_status d9di_jinja_to_str(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);

    if (v->kind == D9DI_JINJA_STRING) {
        *out = *v;
        return D9D_OK;
    }
    D9D_TRY(d9di_jinja_put_str(r, v));
    return d9di_jinja_take(r, mark, out);
}

/* --- the context ------------------------------------------------------------------------------ */

static d9d_status convert(d9di_jinja_run *r, const json_t *from, int depth, d9di_jinja_value *out);

static d9d_status convert_array(d9di_jinja_run *r, const json_t *from, int depth,
                                d9di_jinja_value *out)
{
    const bool are_items = from == r->opts->items;
    const bool are_marked = are_items && r->opts->marks != NULL && r->data_mark != 0;
    const char before = r->data_mark;

    D9D_TRY(d9di_jinja_seq_new(r, D9DI_JINJA_LIST, json_array_size(from), out));
    for (size_t i = 0; i < json_array_size(from); i++) {
        d9di_jinja_value item;

        if (are_marked)
            r->data_mark = r->opts->marks[i];
        D9D_TRY(convert(r, json_array_get(from, i), depth, &item));
        if (are_items && item.kind == D9DI_JINJA_DICT)
            item.dict->item = i + 1;
        D9D_TRY(d9di_jinja_seq_append(r, out->seq, item));
    }
    r->data_mark = before;
    return D9D_OK;
}

static d9d_status convert_string(d9di_jinja_run *r, const char *text, size_t n,
                                 d9di_jinja_value *out)
{
    if (r->data_mark != 0 && n > 0)
        D9D_TRY(d9di_jinja_hold(r, text, NULL, n, &text));
    *out = d9di_jinja_str(text, n);
    return D9D_OK;
}

/* Before 2.14 jansson reads no names with NUL. */
static size_t key_length(void *at)
{
#if JANSSON_VERSION_HEX >= 0x020e00
    return json_object_iter_key_len(at);
#else
    return strlen(json_object_iter_key(at));
#endif
}

static d9d_status convert_object(d9di_jinja_run *r, const json_t *from, int depth,
                                 d9di_jinja_value *out)
{
    const size_t n = json_object_size(from);
    json_t *const o = (json_t *)(uintptr_t)from; /* jansson iterates over what is not const */

    D9D_TRY(d9di_jinja_dict_new(r, D9DI_JINJA_DICT, out));
    D9D_TRY(d9di_jinja_alloc(r, n, sizeof(d9di_jinja_value), &out->dict->keys));
    D9D_TRY(d9di_jinja_alloc(r, n, sizeof(d9di_jinja_value), &out->dict->values));
    out->dict->cap = n;
    for (void *i = json_object_iter(o); i != NULL; i = json_object_iter_next(o, i)) {
        const size_t at = out->dict->n;

        D9D_TRY(convert(r, json_object_iter_value(i), depth, &out->dict->values[at]));
        D9D_TRY(convert_string(r, json_object_iter_key(i), key_length(i), &out->dict->keys[at]));
        out->dict->n++;
    }
    return D9D_OK;
}

static d9d_status convert(d9di_jinja_run *r, const json_t *from, int depth, d9di_jinja_value *out)
{
    if (depth == D9DI_JINJA_MAX_NESTING)
        return d9di_jinja_fail(r, "the context is nested deeper than %d levels",
                               D9DI_JINJA_MAX_NESTING);
    switch (json_typeof(from)) {
    case JSON_OBJECT: return convert_object(r, from, depth + 1, out);
    case JSON_ARRAY: return convert_array(r, from, depth + 1, out);
    case JSON_STRING:
        return convert_string(r, json_string_value(from), json_string_length(from), out);
    case JSON_INTEGER: *out = d9di_jinja_int(json_integer_value(from)); return D9D_OK;
    case JSON_REAL: *out = d9di_jinja_float(json_real_value(from)); return D9D_OK;
    case JSON_TRUE:
    case JSON_FALSE: *out = d9di_jinja_bool(json_is_true(from)); return D9D_OK;
    default: *out = d9di_jinja_none(); return D9D_OK;
    }
}

d9d_status d9di_jinja_from_json(d9di_jinja_run *r, const json_t *from, d9di_jinja_value *out)
{
    return convert(r, from, 0, out);
}
