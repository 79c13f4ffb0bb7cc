/* reference.c - see reference.h.  It reads the table's JSON Schema, in which keys of every kind are
 * described in the same words.
 *
 *     "$defs": {"lora": {...}}    ->    ## peft: lora
 *     "properties": {"r": {...}}  ->    | `r` | integer | required | 1 to 65536 | ... |
 */
#include "reference.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "d9d/base/json.h"

struct page {
    const json_t *schema;
    json_t *headings; /* of each table in defs */
    d9d_buf *out;
    bool failed; /* out of memory somewhere; reported once, at the end */
};

/* --- text ------------------------------------------------------------------------------------ */

static void put(struct page *p, const char *text)
{
    if (d9d_buf_append(p->out, text, strlen(text)) != D9D_OK)
        p->failed = true;
}

/* Text inside a cell; `code` is between backquotes, where Markdown escapes nothing but bars. */
static void put_column(struct page *p, const char *text, bool code)
{
    for (; *text != '\0'; text++) {
        const char one[] = {*text, '\0'};

        if (*text == '|' || (!code && *text == '*'))
            put(p, "\\");
        put(p, !code && *text == '<' ? "&lt;" : one);
    }
}

static void put_code(struct page *p, const char *text)
{
    put(p, "`");
    put_column(p, text, true);
    put(p, "`");
}

/* A description as a sentence: a capital, unless it begins with a name, and a full stop. */
static void put_sentence(struct page *p, const char *text)
{
    const char first[] = {(char)toupper((unsigned char)*text), '\0'};
    const bool word = strspn(text, "abcdefghijklmnopqrstuvwxyz-") == strcspn(text, " ,:;");

    if (word)
        put(p, first);
    put_column(p, text + word, false);
    if (text[strlen(text) - 1] != '.')
        put(p, ".");
}

static void put_json_code(struct page *p, const json_t *v)
{
    d9d_buf text = {0};

    if (d9d_json_put(&text, v, -1) != D9D_OK)
        p->failed = true;
    else
        put_code(p, text.data);
    d9d_buf_release(&text);
}

/* A number, large powers of two as such. */
static void put_number(struct page *p, double v)
{
    char text[64];
    int exponent;

    if (v >= 0x1p20 && frexp(v, &exponent) == 0.5)
        (void)snprintf(text, sizeof(text), "2^%d", exponent - 1);
    else
        (void)snprintf(text, sizeof(text), "%.12g", v);
    put(p, text);
}

/* The anchor that GitHub makes of a heading. */
static void put_anchor(struct page *p, const char *heading)
{
    for (; *heading != '\0'; heading++) {
        const char c = *heading == ' ' ? '-' : (char)tolower((unsigned char)*heading);
        const char one[] = {c, '\0'};

        if (isalnum((unsigned char)c) || c == '-' || c == '_')
            put(p, one);
    }
}

/* --- schemas ---------------------------------------------------------------------------------- */

/* A table by its name in $defs; "" is the root. */
static const json_t *find_def(const struct page *p, const char *name)
{
    return *name == '\0' ? p->schema : json_object_get(json_object_get(p->schema, "$defs"), name);
}

/* The name in $defs that a schema refers to; NULL: it does not. */
static const char *get_ref(const json_t *s)
{
    const char *ref = json_string_value(json_object_get(s, "$ref"));

    return ref != NULL ? strrchr(ref, '/') + 1 : NULL;
}

/* The schema without its alternatives `null` and "one in place of a list". */
static const json_t *plain_schema(const json_t *s, bool *nullable, bool *or_one)
{
    const json_t *any = json_object_get(s, "anyOf");
    const json_t *one = json_array_get(any, 0), *other = json_array_get(any, 1);
    const char *type = json_string_value(json_object_get(other, "type"));

    if (json_array_size(any) != 2 || type == NULL)
        return s;
    if (strcmp(type, "null") == 0) {
        *nullable = true;
        return plain_schema(one, nullable, or_one);
    }
    if (!json_equal(one, json_object_get(other, "items")))
        return s;
    *or_one = true;
    return other;
}

/* Calls `visit` for each table that a value of the schema may be, a list's with "[]" behind the
 * path. */
typedef void visit_fn(struct page *p, const char *name, const char *path, bool choice);
static void visit_refs(struct page *p, const json_t *schema, const char *path, visit_fn *visit)
{
    bool nullable = false, or_one = false;
    const json_t *s = plain_schema(schema, &nullable, &or_one), *choice;
    const json_t *items = json_object_get(s, "items");
    d9d_arena a = {0};
    size_t i;

    if (get_ref(s) != NULL)
        visit(p, get_ref(s), path, false);
    json_array_foreach(json_object_get(s, "oneOf"), i, choice)
        visit(p, get_ref(choice), path, true);
    if (items != NULL) {
        const char *list = d9d_arena_printf(&a, "%s[]", path);

        if (list != NULL)
            visit_refs(p, items, list, visit);
        p->failed |= list == NULL;
    }
    d9d_arena_release(&a);
}

/* --- headings ----------------------------------------------------------------------------------
 */

static bool heading_taken(const struct page *p, const char *heading)
{
    const char *name;
    json_t *other;

    json_object_foreach(p->headings, name,
                        other) if (strcmp(json_string_value(other), heading) == 0) return true;
    return false;
}

/* Gives the table the heading of the place where it is first met, and so all below it. */
static void find_headings(struct page *p, const char *name, const char *path, bool choice)
{
    const json_t *def = find_def(p, name);
    const char *title = json_string_value(json_object_get(def, "title")), *key;
    d9d_arena a = {0};
    char *heading;
    json_t *s;

    if (json_object_get(p->headings, name) != NULL)
        return;
    heading = choice ? d9d_arena_printf(&a, "%s: %s", path, title) : d9d_arena_strdup(&a, path);
    if (heading != NULL && heading_taken(p, heading))
        heading = d9d_arena_printf(&a, "%s (%s)", path, name);
    p->failed |=
        heading == NULL || json_object_set_new(p->headings, name, json_string(heading)) != 0;
    json_object_foreach(json_object_get(def, "properties"), key, s)
    {
        const char *below = d9d_arena_printf(&a, "%s%s%s", path, *path != '\0' ? "." : "", key);

        if (below != NULL)
            visit_refs(p, s, below, find_headings);
        p->failed |= below == NULL;
    }
    d9d_arena_release(&a);
}

/* --- cells -------------------------------------------------------------------------------------
 */

static void put_link(struct page *p, const char *name, const char *path, bool choice)
{
    const char *heading = json_string_value(json_object_get(p->headings, name));
    const char *title = json_string_value(json_object_get(find_def(p, name), "title"));

    put(p, p->out->len > 0 && p->out->data[p->out->len - 1] == ')' ? ", [" : "[");
    put(p, choice ? title : "keys");
    put(p, "](#");
    put_anchor(p, heading != NULL ? heading : path);
    put(p, ")");
}

static void put_type(struct page *p, const json_t *schema)
{
    bool nullable = false, or_one = false;
    const json_t *s = plain_schema(schema, &nullable, &or_one), *alternative;
    const char *type = json_string_value(json_object_get(s, "type"));
    size_t i;

    if (or_one)
        put(p, "one, or ");
    if (json_object_get(s, "items") != NULL) {
        put(p, "list of ");
        put_type(p, json_object_get(s, "items"));
    } else if (json_object_get(s, "additionalProperties") != NULL) {
        put(p, "object of ");
        put_type(p, json_object_get(s, "additionalProperties"));
    } else if (json_object_get(s, "oneOf") != NULL || get_ref(s) != NULL) {
        put(p, "object");
    } else if (json_object_get(s, "anyOf") != NULL) {
        json_array_foreach(json_object_get(s, "anyOf"), i, alternative)
        {
            put(p, i > 0 ? " or " : "");
            put_type(p, alternative);
        }
    } else {
        put(p, type != NULL ? type : json_object_get(s, "enum") != NULL ? "word" : "any JSON");
    }
    if (nullable)
        put(p, " or null");
}

/* "1 to 8", "above 0", "at most 1"; nothing without bounds. */
static void put_range(struct page *p, const json_t *s)
{
    const json_t *min = json_object_get(s, "minimum"), *max = json_object_get(s, "maximum");
    const json_t *above = json_object_get(s, "exclusiveMinimum");
    const json_t *below = json_object_get(s, "exclusiveMaximum");

    if (min != NULL && max != NULL) {
        put_number(p, json_number_value(min));
        put(p, " to ");
        put_number(p, json_number_value(max));
        return;
    }
    if (min != NULL || above != NULL) {
        put(p, min != NULL ? "from " : "above ");
        put_number(p, json_number_value(min != NULL ? min : above));
        put(p, max != NULL || below != NULL ? ", " : "");
    }
    if (max != NULL || below != NULL) {
        put(p, max != NULL ? "at most " : "below ");
        put_number(p, json_number_value(max != NULL ? max : below));
    }
}

/* "not empty", "2 or more elements", "32 bytes"; nothing without bounds. */
static void put_length(struct page *p, const json_t *min, const json_t *max, const char *unit)
{
    const double lo = json_number_value(min), hi = json_number_value(max);

    if (min == NULL && max == NULL)
        return;
    if (max == NULL && lo == 1) {
        put(p, "not empty");
        return;
    }
    if (min == NULL)
        put(p, "at most ");
    else if (max == NULL || lo < hi)
        put_number(p, lo);
    if (min != NULL && (max == NULL || lo < hi))
        put(p, max == NULL ? " or more" : " to ");
    if (max != NULL)
        put_number(p, hi);
    put(p, unit);
}

static void put_values(struct page *p, const json_t *schema);

/* Values of an element or an alternative, behind what is in the cell from `start` on. */
static void put_inner_values(struct page *p, const json_t *schema, size_t start)
{
    d9d_buf inner = {0}, *const out = p->out;

    p->out = &inner;
    put_values(p, schema);
    p->out = out;
    if (inner.len > 0) {
        put(p, out->len > start ? "; " : "");
        put(p, inner.data);
    }
    d9d_buf_release(&inner);
}

static void put_values(struct page *p, const json_t *schema)
{
    bool nullable = false, or_one = false;
    const json_t *s = plain_schema(schema, &nullable, &or_one), *v;
    const json_t *items = json_object_get(s, "items");
    const json_t *inside = items != NULL ? items : json_object_get(s, "additionalProperties");
    const size_t start = p->out->len;
    size_t i;

    json_array_foreach(json_object_get(s, "enum"), i, v)
    {
        put(p, i > 0 ? ", " : "");
        put_json_code(p, v);
    }
    json_array_foreach(json_object_get(s, "anyOf"), i, v) put_inner_values(p, v, start);
    put_range(p, s);
    put_length(p, json_object_get(s, "minLength"), json_object_get(s, "maxLength"), " bytes");
    put_length(p, json_object_get(s, "minItems"), json_object_get(s, "maxItems"), " elements");
    if (json_is_object(inside))
        put_inner_values(p, inside, start);
    else
        visit_refs(p, s, "", put_link);
}

/* --- tables ------------------------------------------------------------------------------------
 */

static void put_key(struct page *p, const char *name, const json_t *s)
{
    const json_t *def = json_object_get(s, "default"), *fixed = json_object_get(s, "const");
    const char *doc = json_string_value(json_object_get(s, "description"));

    put(p, "| ");
    put_code(p, name);
    put(p, " | ");
    if (fixed != NULL)
        put(p, "word");
    else
        put_type(p, s);
    put(p, " | ");
    if (def != NULL)
        put_json_code(p, def);
    else
        put(p, "required");
    put(p, " | ");
    if (fixed != NULL)
        put_json_code(p, fixed);
    else
        put_values(p, s);
    put(p, " | ");
    put_column(p, doc != NULL ? doc : "chooses these keys", false);
    put(p, " |\n");
}

static void put_table(struct page *p, const json_t *def)
{
    const json_t *others = json_object_get(def, "additionalProperties");
    const char *name;
    json_t *s;

    put(p, "| key | type | default | values | meaning |\n|---|---|---|---|---|\n");
    json_object_foreach(json_object_get(def, "properties"), name,
                        s) if (!json_is_true(json_object_get(s, "deprecated"))) put_key(p, name, s);
    if (json_is_object(others))
        put_key(p, "any other", others);
}

/* Fewer keys are repeated. */
enum { FEW_KEYS = 4 };

/* Do two choices have the same keys, but for the word that chooses them? */
static bool has_same_keys(const json_t *def, const json_t *other)
{
    json_t *keys = json_object_get(def, "properties"),
           *others = json_object_get(other, "properties");
    const char *name;
    json_t *s;

    if (json_object_size(keys) < FEW_KEYS || json_object_size(keys) != json_object_size(others) ||
        !json_equal(json_object_get(def, "additionalProperties"),
                    json_object_get(other, "additionalProperties")))
        return false;
    json_object_foreach(keys, name, s)
    {
        const json_t *t = json_object_get(others, name);

        if (json_object_get(s, "const") != NULL ? json_object_get(t, "const") == NULL
                                                : !json_equal(s, t))
            return false;
    }
    return true;
}

/* The keys of a table, or the first table on the page that has the same. */
static void put_keys(struct page *p, const char *table)
{
    const char *name;
    json_t *heading;

    json_object_foreach(p->headings, name, heading)
    {
        if (strcmp(name, table) == 0)
            break;
        if (!has_same_keys(find_def(p, table), find_def(p, name)))
            continue;
        put(p, "The keys are those of [");
        put(p, json_string_value(heading));
        put(p, "](#");
        put_anchor(p, json_string_value(heading));
        put(p, ").\n");
        return;
    }
    put_table(p, find_def(p, table));
}

static d9d_status put_page(struct page *p, const d9di_reference *r)
{
    const char *name;
    json_t *heading;

    p->headings = json_object();
    if (p->headings == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its page", r->id);
    find_headings(p, "", "", false);
    put(p, "# ");
    put(p, r->title);
    put(p, "\n\n");
    put(p, r->intro);
    json_object_foreach(p->headings, name, heading)
    {
        const json_t *def = find_def(p, name);
        const char *doc = json_string_value(json_object_get(def, "description"));

        put(p, "\n## ");
        put(p, *name != '\0' ? json_string_value(heading) : "Top level");
        put(p, "\n\n");
        if (doc != NULL && *doc != '\0') {
            put_sentence(p, doc);
            put(p, "\n\n");
        }
        put_keys(p, name);
    }
    json_decref(p->headings);
    return p->failed ? D9D_FAIL(D9D_ENOMEM, "%s: no memory for its page", r->id) : D9D_OK;
}

d9d_status d9di_reference_append(const d9d_table *table, const d9di_reference *r, d9d_buf *out)
{
    struct page p = {.out = out};
    d9d_buf text = {0};
    json_t *schema = NULL;
    d9d_status st = d9d_config_schema(table, r->id, &text);

    if (st == D9D_OK)
        st = d9d_json_parse(r->id, text.data, text.len, &schema);
    if (st == D9D_OK) {
        p.schema = schema;
        st = put_page(&p, r);
    }
    json_decref(schema);
    d9d_buf_release(&text);
    return st;
}
