/* json.c - strict reading of JSON and of its members.  See d9d/base/json.h. */
#include "d9d/base/json.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"

enum { MAX_SHOWN = 200 };

/* --- documents ---------------------------------------------------------- */

/* Jansson recurses for every level, so depth is limited before it parses.  Text
 * that is not JSON may be counted wrongly here; the parser refuses it anyway. */
static d9d_status check_depth(const char *name, const char *text, size_t n)
{
    size_t line = 1, line_at = 0;
    bool in_string = false;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        const char c = text[i];

        if (c == '\n') {
            line++;
            line_at = i + 1;
        } else if (in_string && c == '\\') {
            i++;
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == '[' || c == '{')) {
            depth++;
        } else if (!in_string && (c == ']' || c == '}')) {
            depth--;
        }
        if (depth > D9D_JSON_MAX_DEPTH)
            return D9D_FAIL(D9D_EFORMAT, "%s: line %zu, column %zu: nested deeper than %d levels",
                            name, line, i - line_at + 1, D9D_JSON_MAX_DEPTH);
    }
    return D9D_OK;
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memchr(" \t\r\n", text[i], 4) == NULL)
            return false;
    return true;
}

/* Constructs that JSON lacks and other languages have. */
static const struct {
    const char *token, *hint;
} common_mistakes[] = {
    {"//", "; JSON has no comments"},
    {"/*", "; JSON has no comments"},
    {"#", "; JSON has no comments"},
    {"'", "; JSON's strings stand in \""},
    {"\xef\xbb\xbf", "; the text begins with a byte-order mark, save it without"},
    {"NaN", "; JSON has no such number"},
    {"Infinity", "; JSON has no such number"},
    {"-Infinity", "; JSON has no such number"},
    {"True", "; JSON writes true"},
    {"False", "; JSON writes false"},
    {"None", "; JSON writes null"},
    {"version https://git-lfs", "; it is a pointer of Git LFS, and git lfs pull brings the file"},
};

/* A hint if the text where the parser stopped is one of these. */
static const char *hint(const char *text, size_t n, const json_error_t *e)
{
    const char *near = strstr(e->text, " near '");
    size_t at, len;

    if (near == NULL || e->position <= 0 || (size_t)e->position > n)
        return "";
    near += strlen(" near '");
    len = strlen(near) - 1;
    if (len > (size_t)e->position)
        return "";
    at = (size_t)e->position - len;
    if (memcmp(text + at, near, len) != 0) /* truncated */
        return "";
    for (size_t i = 0; i < sizeof(common_mistakes) / sizeof(common_mistakes[0]); i++) {
        const size_t m = strlen(common_mistakes[i].token);

        if (m <= n - at && memcmp(text + at, common_mistakes[i].token, m) == 0)
            return common_mistakes[i].hint;
    }
    if (*near != '}' && *near != ']')
        return "";
    while (at > 0 && memchr(" \t\r\n", text[at - 1], 4) != NULL)
        at--;
    return at > 0 && text[at - 1] == ',' ? "; the comma before it is one too many" : "";
}

static d9d_status fail_parse(const char *name, const char *text, size_t n, const json_error_t *e)
{
    enum json_error_code code = json_error_code(e);
    const char *why = e->text;

    /* Jansson's own message names a flag of its interface. */
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        why = "a string has the character U+0000";
    return D9D_FAIL(code == json_error_out_of_memory ? D9D_ENOMEM : D9D_EFORMAT,
                    "%s: line %d, column %d: %s%s", name, e->line, e->column, why,
                    hint(text, n, e));
}

d9d_status d9d_json_parse(const char *name, const char *text, size_t n, json_t **out)
{
    json_error_t e;
    json_t *v;

    if (is_blank(text, n))
        return D9D_FAIL(D9D_EFORMAT, "%s: is empty, must have one JSON value", name);
    D9D_TRY(check_depth(name, text, n));
    v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (v == NULL)
        return fail_parse(name, text, n, &e);
    *out = v;
    return D9D_OK;
}

d9d_status d9d_json_read(const char *path, uint64_t max_bytes, json_t **out)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9d_fs_read(path, max_bytes, &text));
    st = d9d_json_parse(path, text.data, text.len, out);
    d9d_buf_release(&text);
    return st;
}

/* --- members ------------------------------------------------------------ */

static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "nothing known";
}

/* The kinds of a member, and their names in messages. */
typedef enum json_kind { INTEGER, NUMBER, STRING, BOOLEAN, OBJECT, ARRAY } json_kind;
static const struct {
    const char *name;
    unsigned types; /* a bit for each json_type */
} json_kinds[] = {
    [INTEGER] = {"an integer", 1u << JSON_INTEGER},
    [NUMBER] = {"a number", 1u << JSON_INTEGER | 1u << JSON_REAL},
    [STRING] = {"a string", 1u << JSON_STRING},
    [BOOLEAN] = {"a boolean", 1u << JSON_TRUE | 1u << JSON_FALSE},
    [OBJECT] = {"an object", 1u << JSON_OBJECT},
    [ARRAY] = {"an array", 1u << JSON_ARRAY},
};

static d9d_status get_member(const json_t *obj, const char *where, const char *key, json_kind k,
                             json_t **out)
{
    json_t *v;

    if (!json_is_object(obj))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object, is %s", where,
                        obj != NULL ? kind_name(obj) : "absent");
    v = json_object_get(obj, key);
    if (v == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is missing", where, key);
    if ((json_kinds[k].types & 1u << json_typeof(v)) == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" must be %s, is %s", where, key, json_kinds[k].name,
                        kind_name(v));
    *out = v;
    return D9D_OK;
}

d9d_status d9d_json_get_i64(const json_t *obj, const char *where, const char *key, int64_t min,
                            int64_t max, int64_t *out)
{
    json_t *v;
    int64_t i;

    D9D_TRY(get_member(obj, where, key, INTEGER, &v));
    i = json_integer_value(v);
    if (i < min || i > max)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is %" PRId64 ", must be at %s %" PRId64, where,
                        key, i, i < min ? "least" : "most", i < min ? min : max);
    *out = i;
    return D9D_OK;
}

d9d_status d9d_json_get_f64(const json_t *obj, const char *where, const char *key, double *out)
{
    json_t *v;

    D9D_TRY(get_member(obj, where, key, NUMBER, &v));
    *out = json_number_value(v);
    return D9D_OK;
}

d9d_status d9d_json_get_str(const json_t *obj, const char *where, const char *key, const char **out)
{
    json_t *v;

    D9D_TRY(get_member(obj, where, key, STRING, &v));
    *out = json_string_value(v);
    return D9D_OK;
}

d9d_status d9d_json_get_bool(const json_t *obj, const char *where, const char *key, int *out)
{
    json_t *v;

    D9D_TRY(get_member(obj, where, key, BOOLEAN, &v));
    *out = json_is_true(v);
    return D9D_OK;
}

d9d_status d9d_json_get_obj(const json_t *obj, const char *where, const char *key, json_t **out)
{
    return get_member(obj, where, key, OBJECT, out);
}

d9d_status d9d_json_get_arr(const json_t *obj, const char *where, const char *key, json_t **out)
{
    return get_member(obj, where, key, ARRAY, out);
}

d9d_status d9d_json_check_schema(const json_t *obj, const char *where, const char *name, int major)
{
    char want[MAX_SHOWN];
    const char *found;

    (void)snprintf(want, sizeof(want), "d9d.%s.v%d", name, major);
    D9D_TRY(d9d_json_get_str(obj, where, "schema", &found));
    if (strcmp(found, want) != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"schema\" is \"%.*s\", this build reads \"%s\"", where,
                        MAX_SHOWN, found, want);
    return D9D_OK;
}
