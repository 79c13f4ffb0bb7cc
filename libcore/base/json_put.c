/* json_put.c - printing of JSON, one way for each kind of value.  See d9d/base/json.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/base/sanitize_text.h"

/* Bytes at the start of `s` that need no escape: ASCII, and whole UTF-8 sequences. */
static size_t unescaped_length(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        const unsigned char c = (unsigned char)s[i];
        utf8proc_int32_t code;
        utf8proc_ssize_t step = 1;

        if (c < 0x20 || c == '"' || c == '\\')
            break;
        if (c >= 0x80)
            step =
                utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(n - i), &code);
        if (step <= 0)
            break;
        i += (size_t)step;
    }
    return i;
}

json_t *d9d_json_str(const char *s)
{
    d9d_buf b = {0};
    json_t *v;

    if (s == NULL)
        return json_null();
    v = json_string(s);
    if (v != NULL)
        return v;
    if (d9d_text_repair(&b, s, strlen(s)) == D9D_OK)
        v = json_stringn(b.data, b.len);
    d9d_buf_release(&b);
    return v;
}

static void discard_if(json_t **whole, bool bad)
{
    if (!bad)
        return;
    json_decref(*whole);
    *whole = NULL;
}

void d9d_json_add(json_t **list, json_t *v)
{
    discard_if(list, json_array_append_new(*list, v) != 0);
}

void d9d_json_set(json_t **obj, const char *key, json_t *v)
{
    discard_if(obj, json_object_set_new(*obj, key, v) != 0);
}

/* A byte of ASCII that needs an escape. */
static d9d_status put_escape(d9d_buf *b, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *hit = c != '\0' ? strchr(from, c) : NULL;

    if (hit != NULL)
        return d9d_buf_printf(b, "\\%c", to[hit - from]);
    return d9d_buf_printf(b, "\\u%04x", c);
}

d9d_status d9d_json_put_str(d9d_buf *b, const char *s, size_t n)
{
    D9D_TRY(d9d_buf_append(b, "\"", 1));
    for (size_t i = 0; i < n;) {
        const size_t run = unescaped_length(s + i, n - i);

        D9D_TRY(d9d_buf_append(b, s + i, run));
        i += run;
        if (i < n && (unsigned char)s[i] < 0x80) {
            D9D_TRY(put_escape(b, (unsigned char)s[i++]));
        } else if (i < n) {
            D9D_TRY(d9d_buf_append(b, "\\ufffd", 6));
            i += d9d_text_broken_length(s + i, n - i);
        }
    }
    return d9d_buf_append(b, "\"", 1);
}

d9d_status d9d_json_put_f64(d9d_buf *b, double v)
{
    /* Begin with 15 digits, which a double always keeps, except for subnormals. */
    int digits = fpclassify(v) == FP_SUBNORMAL ? 1 : 15;
    char text[40];

    if (!isfinite(v))
        return d9d_buf_append(b, "null", 4);
    do
        (void)d9d_num_format(text, sizeof(text), "%.*g", digits, v);
    while (d9d_num_parse(text, NULL) != v && digits++ < 17);
    return d9d_buf_printf(b, "%s%s", text, strpbrk(text, ".e") == NULL ? ".0" : "");
}

/* --- whole values ------------------------------------------------------- */

static d9d_status put_value(d9d_buf *b, const json_t *v, int indent, int depth);

/* The separator before a member: a comma after the previous one, a newline or a space. */
static d9d_status put_separator(d9d_buf *b, bool first, int indent, int depth)
{
    if (!first)
        D9D_TRY(d9d_buf_append(b, ",", 1));
    if (indent < 0)
        return d9d_buf_append(b, " ", first ? 0 : 1);
    return d9d_buf_printf(b, "\n%*s", indent * depth, "");
}

static d9d_status put_object(d9d_buf *b, const json_t *v, int indent, int depth)
{
    json_t *obj = (json_t *)(uintptr_t)v; /* iterating does not change it */
    bool first = true;

    D9D_TRY(d9d_buf_append(b, "{", 1));
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        const char *key = json_object_iter_key(it);

        D9D_TRY(put_separator(b, first, indent, depth + 1));
        D9D_TRY(d9d_json_put_str(b, key, strlen(key)));
        D9D_TRY(d9d_buf_append(b, ": ", 2));
        D9D_TRY(put_value(b, json_object_iter_value(it), indent, depth + 1));
        first = false;
    }
    if (!first && indent >= 0)
        D9D_TRY(put_separator(b, true, indent, depth));
    return d9d_buf_append(b, "}", 1);
}

static d9d_status put_array(d9d_buf *b, const json_t *v, int indent, int depth)
{
    const size_t n = json_array_size(v);

    D9D_TRY(d9d_buf_append(b, "[", 1));
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(put_separator(b, i == 0, indent, depth + 1));
        D9D_TRY(put_value(b, json_array_get(v, i), indent, depth + 1));
    }
    if (n > 0 && indent >= 0)
        D9D_TRY(put_separator(b, true, indent, depth));
    return d9d_buf_append(b, "]", 1);
}

static d9d_status put_value(d9d_buf *b, const json_t *v, int indent, int depth)
{
    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "JSON to write: out of memory");
    if (depth >= D9D_JSON_MAX_DEPTH && (json_is_object(v) || json_is_array(v)))
        return D9D_FAIL(D9D_EINVAL, "JSON to write is nested deeper than %d levels",
                        D9D_JSON_MAX_DEPTH);
    switch (json_typeof(v)) {
    case JSON_OBJECT: return put_object(b, v, indent, depth);
    case JSON_ARRAY: return put_array(b, v, indent, depth);
    case JSON_STRING: return d9d_json_put_str(b, json_string_value(v), json_string_length(v));
    case JSON_INTEGER: return d9d_buf_printf(b, "%" PRId64, (int64_t)json_integer_value(v));
    case JSON_REAL: return d9d_json_put_f64(b, json_real_value(v));
    case JSON_TRUE: return d9d_buf_append(b, "true", 4);
    case JSON_FALSE: return d9d_buf_append(b, "false", 5);
    case JSON_NULL: return d9d_buf_append(b, "null", 4);
    }
    return D9D_FAIL(D9D_EINVAL, "JSON to write has a value of unknown type %d",
                    (int)json_typeof(v));
}

d9d_status d9d_json_put(d9d_buf *b, const json_t *v, int indent)
{
    return put_value(b, v, indent, 0);
}
