/* schema.c - JSON Schema (2020-12) of a key table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/config/config.h"

/* A table is described once for each way it is told apart: by itself, or as a choice
 * of a union, where the discriminator stands among its keys. */
struct def {
    const d9d_table *table;
    const char *tag;
    char *name;
};

struct build {
    d9d_arena arena;
    D9D_VEC(struct def) defs; /* described in this order; grows while they are */
    bool failed;              /* memory was out somewhere; said once, at the end */
    const char *not_json;     /* the first key whose default is no JSON */
};

static json_t *schema_of(struct build *b, const d9d_key *k);

/* --- building, with one check for memory ------------------------------------ */

static json_t *checked(struct build *b, json_t *v)
{
    if (v == NULL)
        b->failed = true;
    return v;
}

static json_t *text(struct build *b, const char *s)
{
    return checked(b, json_string(s));
}

static void put(struct build *b, json_t *obj, const char *key, json_t *v)
{
    if (json_object_set_new(obj, key, v) != 0)
        b->failed = true;
}

static void push(struct build *b, json_t *list, json_t *v)
{
    if (json_array_append_new(list, v) != 0)
        b->failed = true;
}

static json_t *typed(struct build *b, const char *type)
{
    json_t *s = checked(b, json_object());

    put(b, s, "type", text(b, type));
    return s;
}

static json_t *words_of(struct build *b, const char *const *words)
{
    json_t *list = checked(b, json_array());

    for (; *words != NULL; words++)
        push(b, list, text(b, *words));
    return list;
}

/* Integers are written as such; bounds that no 64-bit number reaches are none. */
static void put_bound(struct build *b, json_t *s, const char *key, double v)
{
    if (!isfinite(v) || fabs(v) >= 0x1p63)
        return;
    put(b, s, key, checked(b, v == floor(v) ? json_integer((json_int_t)v) : json_real(v)));
}

/* --- references ------------------------------------------------------------------ */

static bool name_taken(const struct build *b, const char *name)
{
    for (size_t i = 0; i < b->defs.len; i++)
        if (b->defs.data[i].name != NULL && strcmp(b->defs.data[i].name, name) == 0)
            return true;
    return false;
}

/* The name of a table's entry; two tables of one name are "x" and "x-2". */
static const char *def_name(struct build *b, const d9d_table *t, const char *tag)
{
    char *name;

    for (size_t i = 0; i < b->defs.len; i++)
        if (b->defs.data[i].table == t && b->defs.data[i].tag == tag)
            return b->defs.data[i].name;
    name = d9d_arena_strdup(&b->arena, t->name);
    for (int i = 2; name != NULL && name_taken(b, name); i++)
        name = d9d_arena_printf(&b->arena, "%s-%d", t->name, i);
    if (name == NULL || D9D_VEC_PUSH(&b->defs, (struct def){t, tag, name}) != D9D_OK) {
        b->failed = true;
        return "";
    }
    return name;
}

static json_t *ref(struct build *b, const d9d_table *t, const char *tag)
{
    const char *path = d9d_arena_printf(&b->arena, "#/$defs/%s", def_name(b, t, tag));
    json_t *s = checked(b, json_object());

    put(b, s, "$ref", text(b, path != NULL ? path : ""));
    return s;
}

/* --- one kind each ------------------------------------------------------------------ */

static json_t *of_bool(struct build *b, const d9d_key *k)
{
    (void)k;
    return typed(b, "boolean");
}

static json_t *of_int(struct build *b, const d9d_key *k)
{
    json_t *s = typed(b, "integer");

    put_bound(b, s, "minimum", k->min);
    put_bound(b, s, "maximum", k->max);
    return s;
}

static json_t *of_real(struct build *b, const d9d_key *k)
{
    json_t *s = typed(b, "number");

    put_bound(b, s, k->flags & D9D_ABOVE_MIN ? "exclusiveMinimum" : "minimum", k->min);
    put_bound(b, s, k->flags & D9D_BELOW_MAX ? "exclusiveMaximum" : "maximum", k->max);
    return s;
}

static void put_lengths(struct build *b, json_t *s, const d9d_key *k, const char *least,
                        const char *most)
{
    if (k->min > 0)
        put_bound(b, s, least, k->min);
    if (k->max > 0)
        put_bound(b, s, most, k->max);
}

static json_t *of_str(struct build *b, const d9d_key *k)
{
    json_t *s = typed(b, "string");

    put_lengths(b, s, k, "minLength", "maxLength");
    return s;
}

static json_t *of_enum(struct build *b, const d9d_key *k)
{
    json_t *s = checked(b, json_object());

    put(b, s, "enum", words_of(b, k->words));
    return s;
}

static json_t *of_table(struct build *b, const d9d_key *k)
{
    return ref(b, k->table, NULL);
}

static json_t *of_union(struct build *b, const d9d_key *k)
{
    json_t *s = checked(b, json_object()), *list = checked(b, json_array());

    for (const d9d_table *const *c = k->choices; *c != NULL; c++)
        push(b, list, ref(b, *c, k->words[0]));
    put(b, s, "oneOf", list);
    return s;
}

static json_t *either_of(struct build *b, json_t *one, json_t *other)
{
    json_t *either = checked(b, json_object()), *list = checked(b, json_array());

    push(b, list, one);
    push(b, list, other);
    put(b, either, "anyOf", list);
    return either;
}

static json_t *of_list(struct build *b, const d9d_key *k)
{
    json_t *s = typed(b, "array");

    put(b, s, "items", schema_of(b, k->elem));
    put_lengths(b, s, k, "minItems", "maxItems");
    return k->flags & D9D_OR_ONE ? either_of(b, schema_of(b, k->elem), s) : s;
}

static json_t *of_map(struct build *b, const d9d_key *k)
{
    json_t *s = typed(b, "object");

    put(b, s, "additionalProperties", of_int(b, k));
    return s;
}

static json_t *of_json(struct build *b, const d9d_key *k)
{
    (void)k;
    return checked(b, json_object());
}

static json_t *of_custom(struct build *b, const d9d_key *k)
{
    return checked(b, json_loads(k->custom->schema, 0, NULL));
}

static json_t *(*const kinds[])(struct build *, const d9d_key *) = {
    [D9D_KIND_BOOL] = of_bool,   [D9D_KIND_INT] = of_int,       [D9D_KIND_REAL] = of_real,
    [D9D_KIND_STR] = of_str,     [D9D_KIND_ENUM] = of_enum,     [D9D_KIND_TABLE] = of_table,
    [D9D_KIND_UNION] = of_union, [D9D_KIND_LIST] = of_list,     [D9D_KIND_STR_INT_MAP] = of_map,
    [D9D_KIND_JSON] = of_json,   [D9D_KIND_CUSTOM] = of_custom,
};

static json_t *schema_of(struct build *b, const d9d_key *k)
{
    json_t *plain = kinds[k->kind](b, k);

    if (!(k->flags & D9D_NULLABLE) || k->kind == D9D_KIND_JSON || k->kind == D9D_KIND_CUSTOM)
        return plain;
    return either_of(b, plain, typed(b, "null"));
}

/* --- tables ------------------------------------------------------------------------- */

static json_t *default_of(struct build *b, const d9d_key *k)
{
    json_t *v = json_loads(k->def, JSON_DECODE_ANY, NULL);

    if (v == NULL && b->not_json == NULL)
        b->not_json = k->name;
    return v;
}

static json_t *property(struct build *b, const d9d_key *k)
{
    json_t *s = schema_of(b, k);
    const char *doc = k->doc != NULL ? k->doc : "";

    if (k->flags & D9D_NO_EFFECT)
        doc = d9d_arena_printf(&b->arena, "%s (accepted, but has no effect)", doc);
    put(b, s, "description", text(b, doc != NULL ? doc : ""));
    if (k->def != D9D_REQUIRED)
        put(b, s, "default", default_of(b, k));
    return s;
}

/* Fill `s` with what an object of the table must be. */
static void describe(struct build *b, const d9d_table *t, const char *tag, json_t *s)
{
    json_t *properties = checked(b, json_object()), *required = checked(b, json_array());

    put(b, s, "title", text(b, t->name));
    if (t->doc != NULL)
        put(b, s, "description", text(b, t->doc));
    put(b, s, "type", text(b, "object"));
    if (tag != NULL) {
        json_t *is = checked(b, json_object());

        put(b, is, "const", text(b, t->name));
        put(b, properties, tag, is);
        push(b, required, text(b, tag));
    }
    for (const d9d_key *k = t->keys; k->name != NULL; k++) {
        put(b, properties, k->name, property(b, k));
        if (k->def == D9D_REQUIRED)
            push(b, required, text(b, k->name));
    }
    put(b, s, "properties", properties);
    if (json_array_size(required) > 0)
        put(b, s, "required", required);
    else
        json_decref(required);
    put(b, s, "additionalProperties",
        t->others != NULL ? property(b, t->others) : checked(b, json_false()));
}

static json_t *build_root(struct build *b, const d9d_table *t, const char *id)
{
    json_t *root = checked(b, json_object()), *defs = checked(b, json_object());

    put(b, root, "$schema", text(b, "https://json-schema.org/draft/2020-12/schema"));
    put(b, root, "$id", text(b, id));
    describe(b, t, NULL, root);
    for (size_t i = 0; i < b->defs.len; i++) {
        const struct def d = b->defs.data[i];
        json_t *s = checked(b, json_object());

        describe(b, d.table, d.tag, s);
        put(b, defs, d.name, s);
    }
    if (json_object_size(defs) > 0)
        put(b, root, "$defs", defs);
    else
        json_decref(defs);
    return root;
}

d9d_status d9d_config_schema(const d9d_table *table, const char *id, d9d_buf *out)
{
    struct build b = {0};
    json_t *root = build_root(&b, table, id);
    d9d_status st;

    if (b.not_json != NULL)
        st = D9D_FAIL(D9D_EINVAL, "%s: the default of %s is not JSON", id, b.not_json);
    else if (b.failed)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its schema", id);
    else
        st = d9d_json_put(out, root, 2);
    if (st == D9D_OK)
        st = d9d_buf_append(out, "\n", 1);
    json_decref(root);
    D9D_VEC_RELEASE(&b.defs);
    d9d_arena_release(&b.arena);
    return st;
}
