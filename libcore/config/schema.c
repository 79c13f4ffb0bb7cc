/* schema.c - JSON Schema (2020-12) of a key table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/config/config.h"

/* A table is described once for each discriminator: by itself, or as a choice of a union, where the
 * discriminator is among its keys. */
struct schema_def {
    const d9d_table *table;
    const char *tag;
    char *name;
};

struct schema_build {
    d9d_arena arena;
    D9D_VEC(struct schema_def) defs; /* described in this order; grows while they are */
    bool failed;                     /* out of memory somewhere; reported once, at the end */
    const char *not_json;            /* the first key whose default is not JSON */
};

static json_t *key_schema(struct schema_build *b, const d9d_key *k);

/* --- building, with one check for memory at the end ---------------------------------- */

static json_t *check_value(struct schema_build *b, json_t *v)
{
    if (v == NULL)
        b->failed = true;
    return v;
}

static json_t *json_text(struct schema_build *b, const char *s)
{
    return check_value(b, json_string(s));
}

static void put_member(struct schema_build *b, json_t *obj, const char *key, json_t *v)
{
    if (json_object_set_new(obj, key, v) != 0)
        b->failed = true;
}

static void push_value(struct schema_build *b, json_t *list, json_t *v)
{
    if (json_array_append_new(list, v) != 0)
        b->failed = true;
}

static json_t *typed_schema(struct schema_build *b, const char *type)
{
    json_t *s = check_value(b, json_object());

    put_member(b, s, "type", json_text(b, type));
    return s;
}

static json_t *enum_values(struct schema_build *b, const char *const *words)
{
    json_t *list = check_value(b, json_array());

    for (; *words != NULL; words++)
        push_value(b, list, json_text(b, *words));
    return list;
}

/* Write a bound, integers as such; omit bounds that no 64-bit number reaches. */
static void put_bound(struct schema_build *b, json_t *s, const char *key, double v)
{
    if (!isfinite(v) || fabs(v) >= 0x1p63)
        return;
    put_member(b, s, key,
               check_value(b, v == floor(v) ? json_integer((json_int_t)v) : json_real(v)));
}

/* --- references ------------------------------------------------------------------ */

static bool name_taken(const struct schema_build *b, const char *name)
{
    for (size_t i = 0; i < b->defs.len; i++)
        if (b->defs.data[i].name != NULL && strcmp(b->defs.data[i].name, name) == 0)
            return true;
    return false;
}

/* The name of a table in "$defs"; two tables with one name are "x" and "x-2". */
static const char *def_name(struct schema_build *b, const d9d_table *t, const char *tag)
{
    char *name;

    for (size_t i = 0; i < b->defs.len; i++)
        if (b->defs.data[i].table == t && b->defs.data[i].tag == tag)
            return b->defs.data[i].name;
    name = d9d_arena_strdup(&b->arena, t->name);
    for (int i = 2; name != NULL && name_taken(b, name); i++)
        name = d9d_arena_printf(&b->arena, "%s-%d", t->name, i);
    if (name == NULL || D9D_VEC_PUSH(&b->defs, (struct schema_def){t, tag, name}) != D9D_OK) {
        b->failed = true;
        return "";
    }
    return name;
}

static json_t *table_ref(struct schema_build *b, const d9d_table *t, const char *tag)
{
    const char *path = d9d_arena_printf(&b->arena, "#/$defs/%s", def_name(b, t, tag));
    json_t *s = check_value(b, json_object());

    put_member(b, s, "$ref", json_text(b, path != NULL ? path : ""));
    return s;
}

/* --- kinds --------------------------------------------------------------------------- */

static json_t *bool_schema(struct schema_build *b, const d9d_key *k)
{
    (void)k;
    return typed_schema(b, "boolean");
}

static json_t *int_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = typed_schema(b, "integer");

    put_bound(b, s, "minimum", k->min);
    put_bound(b, s, "maximum", k->max);
    return s;
}

static json_t *real_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = typed_schema(b, "number");

    put_bound(b, s, k->flags & D9D_ABOVE_MIN ? "exclusiveMinimum" : "minimum", k->min);
    put_bound(b, s, k->flags & D9D_BELOW_MAX ? "exclusiveMaximum" : "maximum", k->max);
    return s;
}

static void put_lengths(struct schema_build *b, json_t *s, const d9d_key *k, const char *min_key,
                        const char *max_key)
{
    if (k->min > 0)
        put_bound(b, s, min_key, k->min);
    if (k->max > 0)
        put_bound(b, s, max_key, k->max);
}

static json_t *str_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = typed_schema(b, "string");

    put_lengths(b, s, k, "minLength", "maxLength");
    return s;
}

static json_t *enum_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = check_value(b, json_object());

    put_member(b, s, "enum", enum_values(b, k->names));
    return s;
}

static json_t *table_schema(struct schema_build *b, const d9d_key *k)
{
    return table_ref(b, k->table, NULL);
}

static json_t *union_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = check_value(b, json_object()), *list = check_value(b, json_array());

    for (const d9d_table *const *c = k->choices; *c != NULL; c++)
        push_value(b, list, table_ref(b, *c, k->names[0]));
    put_member(b, s, "oneOf", list);
    return s;
}

static json_t *any_of(struct schema_build *b, json_t *one, json_t *other)
{
    json_t *either = check_value(b, json_object()), *list = check_value(b, json_array());

    push_value(b, list, one);
    push_value(b, list, other);
    put_member(b, either, "anyOf", list);
    return either;
}

static json_t *list_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = typed_schema(b, "array");

    put_member(b, s, "items", key_schema(b, k->elem));
    put_lengths(b, s, k, "minItems", "maxItems");
    return k->flags & D9D_OR_ONE ? any_of(b, key_schema(b, k->elem), s) : s;
}

static json_t *map_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = typed_schema(b, "object");

    put_member(b, s, "additionalProperties", int_schema(b, k));
    return s;
}

static json_t *json_schema(struct schema_build *b, const d9d_key *k)
{
    (void)k;
    return check_value(b, json_object());
}

static json_t *custom_schema(struct schema_build *b, const d9d_key *k)
{
    return check_value(b, json_loads(k->custom->schema, 0, NULL));
}

static json_t *(*const kind_schemas[])(struct schema_build *, const d9d_key *) = {
    [D9D_KIND_BOOL] = bool_schema,       [D9D_KIND_INT] = int_schema,
    [D9D_KIND_REAL] = real_schema,       [D9D_KIND_STR] = str_schema,
    [D9D_KIND_ENUM] = enum_schema,       [D9D_KIND_TABLE] = table_schema,
    [D9D_KIND_UNION] = union_schema,     [D9D_KIND_LIST] = list_schema,
    [D9D_KIND_STR_INT_MAP] = map_schema, [D9D_KIND_JSON] = json_schema,
    [D9D_KIND_CUSTOM] = custom_schema,
};

static json_t *key_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *plain = kind_schemas[k->kind](b, k);

    if (!(k->flags & (D9D_NULLABLE | D9D_NULL_DEFAULT)) || k->kind == D9D_KIND_JSON ||
        k->kind == D9D_KIND_CUSTOM)
        return plain;
    return any_of(b, plain, typed_schema(b, "null"));
}

/* --- tables ------------------------------------------------------------------------- */

static json_t *default_value(struct schema_build *b, const d9d_key *k)
{
    json_t *v = json_loads(k->def, JSON_DECODE_ANY, NULL);

    if (v == NULL && b->not_json == NULL)
        b->not_json = k->name;
    return v;
}

static json_t *property_schema(struct schema_build *b, const d9d_key *k)
{
    json_t *s = key_schema(b, k);
    const char *doc = k->doc != NULL ? k->doc : "";

    if (k->flags & D9D_NO_EFFECT)
        doc = d9d_arena_printf(&b->arena, "%s (accepted, but has no effect)", doc);
    put_member(b, s, "description", json_text(b, doc != NULL ? doc : ""));
    if (k->def != D9D_REQUIRED)
        put_member(b, s, "default", default_value(b, k));
    return s;
}

/* What the key may still be called: no default, for that is the other's. */
static json_t *former_schema(struct schema_build *b, const d9d_key *k)
{
    const char *doc = d9d_arena_printf(&b->arena, "now %s", k->name);
    json_t *s = key_schema(b, k);

    put_member(b, s, "description", json_text(b, doc != NULL ? doc : ""));
    put_member(b, s, "deprecated", check_value(b, json_true()));
    return s;
}

/* Fill `s` with the schema of the table's objects. */
static void describe_table(struct schema_build *b, const d9d_table *t, const char *tag, json_t *s)
{
    json_t *properties = check_value(b, json_object()), *required = check_value(b, json_array());

    put_member(b, s, "title", json_text(b, t->name));
    if (t->doc != NULL)
        put_member(b, s, "description", json_text(b, t->doc));
    put_member(b, s, "type", json_text(b, "object"));
    if (tag != NULL) {
        json_t *is = check_value(b, json_object());

        put_member(b, is, "const", json_text(b, t->name));
        put_member(b, properties, tag, is);
        push_value(b, required, json_text(b, tag));
    }
    for (const d9d_key *k = t->keys; k->name != NULL; k++) {
        put_member(b, properties, k->name, property_schema(b, k));
        if (k->former != NULL)
            put_member(b, properties, k->former, former_schema(b, k));
        if (k->def == D9D_REQUIRED)
            push_value(b, required, json_text(b, k->name));
    }
    put_member(b, s, "properties", properties);
    if (json_array_size(required) > 0)
        put_member(b, s, "required", required);
    else
        json_decref(required);
    put_member(b, s, "additionalProperties",
               t->others != NULL ? property_schema(b, t->others) : check_value(b, json_false()));
}

static json_t *build_root(struct schema_build *b, const d9d_table *t, const char *id)
{
    json_t *root = check_value(b, json_object()), *defs = check_value(b, json_object());

    put_member(b, root, "$schema", json_text(b, "https://json-schema.org/draft/2020-12/schema"));
    put_member(b, root, "$id", json_text(b, id));
    describe_table(b, t, NULL, root);
    for (size_t i = 0; i < b->defs.len; i++) {
        const struct schema_def d = b->defs.data[i];
        json_t *s = check_value(b, json_object());

        describe_table(b, d.table, d.tag, s);
        put_member(b, defs, d.name, s);
    }
    if (json_object_size(defs) > 0)
        put_member(b, root, "$defs", defs);
    else
        json_decref(defs);
    return root;
}

d9d_status d9d_config_schema(const d9d_table *table, const char *id, d9d_buf *out)
{
    struct schema_build b = {0};
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
