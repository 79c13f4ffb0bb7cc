/* spec_tables.c - the key tables of d9d.mapper.v1, and parsing.  See
 * d9d/ckpt/mapper/mapper_spec.h. */
#include "ckpt/mapper/spec_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 1 << 16, MAX_STAGES = 64, MAX_STEPS = 1 << 16 };

/* --- names: a string or several ------------------------------------------------------ */

static d9d_status parse_names(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    d9di_mapper_spec_names names = {d9d_arena_alloc(a, (n + 1) * sizeof(*names.item)), 0};

    if (json_is_null(v)) {
        *(d9di_mapper_spec_names *)field = (d9di_mapper_spec_names){0};
        return D9D_OK;
    }
    if (names.item == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    if (n == 0 || n > MAX_NAMES)
        return D9D_FAIL(D9D_ECONFIG, "%s: has %zu names, 1 to %d are allowed", path, n,
                        (int)MAX_NAMES);
    for (; names.n < n; names.n++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, names.n) : v;

        if (!json_is_string(one) || json_string_length(one) == 0)
            return D9D_FAIL(D9D_ECONFIG, "%s: expected a name or a list of names", path);
        names.item[names.n] = d9d_arena_strdup(a, json_string_value(one));
        if (names.item[names.n] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    }
    *(d9di_mapper_spec_names *)field = names;
    return D9D_OK;
}

static d9d_status parse_required_names(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    if (json_is_null(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected a name or a list of names", path);
    return parse_names(v, path, a, field);
}

#define NAMES_SCHEMA                                                                               \
    "{\"type\": \"string\", \"minLength\": 1}, {\"type\": \"array\", \"minItems\": 1, \"items\": " \
    "{\"type\": \"string\", \"minLength\": 1}}"

static const d9d_key_custom names_kind = {parse_required_names, "{\"anyOf\": [" NAMES_SCHEMA "]}",
                                          sizeof(d9di_mapper_spec_names)};
static const d9d_key_custom maybe_names_kind = {
    parse_names, "{\"anyOf\": [{\"type\": \"null\"}, " NAMES_SCHEMA "]}",
    sizeof(d9di_mapper_spec_names)};

/* --- placements: "replicate", "shard(0)" ------------------------------------------------ */

static d9d_status parse_placement(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    d9d_mapper_placement p = {.shard = strcmp(s, "replicate") != 0};
    int end = 0;

    (void)a;
    if (p.shard && (sscanf(s, "shard(%3d)%n", &p.dim, &end) != 1 || s[end] != '\0' || end == 0))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected \"replicate\" or \"shard(N)\"", path);
    *(d9d_mapper_placement *)field = p;
    return D9D_OK;
}

static const d9d_key_custom placement_kind = {
    parse_placement,
    "{\"type\": \"string\", \"pattern\": \"^(replicate|shard\\\\(-?[0-9]+\\\\))$\"}",
    sizeof(d9d_mapper_placement)};

/* --- expected shapes --------------------------------------------------------------------- */

static bool is_size(const char *s)
{
    size_t n = strspn(s, "0123456789"), word;

    for (;;) {
        word = n > 0 ? n : strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
        if (word == 0 || n > 18)
            return false;
        s += word;
        if (*s != '*')
            return *s == '\0';
        s++;
        n = strspn(s, "0123456789");
    }
}

static d9d_status parse_shape(const json_t *v, const char *path, const char *pattern, d9d_arena *a,
                              d9di_mapper_spec_shape *out)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v) || n > D9D_MAX_DIMS)
        return D9D_FAIL(D9D_ECONFIG, "%s[\"%s\"]: expected a list of at most %d sizes", path,
                        pattern, D9D_MAX_DIMS);
    out->pattern = d9d_arena_strdup(a, pattern);
    out->ndim = (int)n;
    for (size_t d = 0; d < n; d++) {
        const json_t *one = json_array_get(v, d);

        out->size[d] = json_is_string(one)
                           ? d9d_arena_strdup(a, json_string_value(one))
                           : d9d_arena_printf(a, "%" JSON_INTEGER_FORMAT, json_integer_value(one));
        if (out->pattern == NULL || out->size[d] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
        if ((!json_is_string(one) && !json_is_integer(one)) || !is_size(out->size[d]))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s[\"%s\"][%zu]: expected a size: a number, a word, or their product "
                            "such as \"3*H\"",
                            path, pattern, d);
    }
    return D9D_OK;
}

static d9d_status parse_expect(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    d9di_mapper_spec_expect e = {0};
    const char *pattern;
    json_t *shape;

    if (!json_is_object(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected an object of shapes", path);
    e.shape = d9d_arena_alloc(a, (json_object_size(v) + 1) * sizeof(*e.shape));
    if (e.shape == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    json_object_foreach((json_t *)(uintptr_t)v, pattern, shape)
        D9D_TRY(parse_shape(shape, path, pattern, a, &e.shape[e.n++]));
    *(d9di_mapper_spec_expect *)field = e;
    return D9D_OK;
}

static const d9d_key_custom expect_kind = {
    parse_expect,
    "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"array\", \"items\": {\"anyOf\": "
    "[{\"type\": \"integer\", \"minimum\": 0}, {\"type\": \"string\", \"pattern\": "
    "\"^([0-9]+|[A-Za-z_]+)(\\\\*([0-9]+|[A-Za-z_]+))*$\"}]}}}",
    sizeof(d9di_mapper_spec_expect)};

/* --- steps ----------------------------------------------------------------------------------- */

static const d9d_key an_int = {.kind = D9D_KIND_INT, .min = -D9D_MAX_DIMS, .max = D9D_MAX_DIMS};
static const d9d_key a_size = {.kind = D9D_KIND_INT, .min = 0, .max = 0x1p62};
static const d9d_key a_factor = {.kind = D9D_KIND_INT, .min = -1, .max = 0x1p62};
static const d9d_key a_part = {.kind = D9D_KIND_INT, .min = 1, .max = 0x1p31};
static const d9d_key a_place = {.kind = D9D_KIND_INT, .min = 0, .max = 0x1p31};
static const d9d_key a_placement = {.kind = D9D_KIND_CUSTOM, .custom = &placement_kind};
static const char *const dtypes[] = {"float32", "bfloat16", "float16", "float64", NULL};
static const char *const rest_names[] = {"refuse", "keep", "drop", NULL};

#define S          d9di_mapper_spec_step
#define FROM(text) D9D_KEY_CUSTOM(S, from, D9D_REQUIRED, &names_kind, text)
#define TO(text)   D9D_KEY_CUSTOM(S, to, D9D_REQUIRED, &names_kind, text)
#define FROM_EACH  FROM("pattern of the tensors to take, or several")
#define FROM_PARTS FROM("patterns of the parts, in order; or one, with over")
#define TO_ONE     TO("template of its name")
#define TO_PARTS   TO("templates of the parts' names, in order; or one, with over")
#define TO_MAYBE   D9D_KEY_CUSTOM(S, to, "null", &maybe_names_kind, "template; null: as it was")
#define DIM                                                                                        \
    D9D_KEY_INT(S, dim, "0", -D9D_MAX_DIMS, D9D_MAX_DIMS, "dimension; negative: from the end")
#define OPTIONAL D9D_KEY_BOOL(S, optional, "false", "whether it may match nothing")
#define OVER                                                                                       \
    D9D_KEY_STR(S, over, "null", "the capture that numbers the parts from 0",                      \
                .flags = D9D_NULLABLE),                                                            \
        D9D_KEY_INT(S, count, "null", 1, 0x1p31, "how many parts there must be, or are made",      \
                    .flags = D9D_NULLABLE)
#define MESH                                                                                       \
    D9D_KEY_LIST(S, mesh, D9D_REQUIRED, &a_part, "sizes of the mesh", .min = 1,                    \
                 .max = D9D_MAX_MESH),                                                             \
        D9D_KEY_LIST(S, placements, D9D_REQUIRED, &a_placement,                                    \
                     "for each of them, \"replicate\" or \"shard(DIM)\"", .min = 1,                \
                     .max = D9D_MAX_MESH)
#define BODY(T, at)                                                                                \
    {.name = "stages",                                                                             \
     .kind = D9D_KIND_LIST,                                                                        \
     .offset = offsetof(T, at.stages),                                                             \
     .def = D9D_REQUIRED,                                                                          \
     .max = MAX_STAGES,                                                                            \
     .elem = &a_stage,                                                                             \
     .doc = "one after another: lists of steps side by side"},                                     \
    {                                                                                              \
        .name = "rest", .kind = D9D_KIND_ENUM, .offset = offsetof(T, at.rest),                     \
        .def = "\"refuse\"", .names = rest_names,                                                  \
        .doc = "what becomes of names that no step takes"                                          \
    }
#define PREFIX(key, field, text)                                                                   \
    {                                                                                              \
        .name = (key), .kind = D9D_KIND_STR, .offset = offsetof(S, field), .def = "\"\"",          \
        .doc = (text)                                                                              \
    }

static const d9d_key a_stage;

static const d9d_key each_keys[] = {FROM_EACH, TO_MAYBE, OPTIONAL, D9D_KEY_END};
static const d9d_key rename_keys[] = {FROM_EACH, TO_ONE, OPTIONAL, D9D_KEY_END};
static const d9d_key drop_keys[] = {FROM_EACH, OPTIONAL, D9D_KEY_END};
static const d9d_key select_keys[] = {
    D9D_KEY_STR(S, parent, D9D_REQUIRED, "the module whose children are taken", .min = 1),
    D9D_KEY_CUSTOM(S, from, "\"{name:any}\"", &names_kind, "patterns of their names in it"),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key transpose_keys[] = {
    FROM_EACH,
    TO_MAYBE,
    D9D_KEY_LIST(S, dims, "[-2, -1]", &an_int, "the two dimensions to swap", .min = 2, .max = 2),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key squeeze_keys[] = {
    FROM_EACH,
    TO_MAYBE,
    D9D_KEY_INT(S, dim, "null", -D9D_MAX_DIMS, D9D_MAX_DIMS,
                "dimension of size 1; null: every such", .flags = D9D_NULLABLE),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key unsqueeze_keys[] = {FROM_EACH, TO_MAYBE, DIM, OPTIONAL, D9D_KEY_END};
static const d9d_key unflatten_keys[] = {
    FROM_EACH,
    TO_MAYBE,
    DIM,
    D9D_KEY_LIST(S, sizes, D9D_REQUIRED, &a_factor,
                 "sizes of the dimensions that take its place; -1: what remains", .min = 1,
                 .max = D9D_MAX_DIMS),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key flatten_keys[] = {
    FROM_EACH,
    TO_MAYBE,
    D9D_KEY_INT(S, start_dim, "0", -D9D_MAX_DIMS, D9D_MAX_DIMS, "the first dimension to merge"),
    D9D_KEY_INT(S, end_dim, "-1", -D9D_MAX_DIMS, D9D_MAX_DIMS, "the last dimension to merge"),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key cast_keys[] = {
    FROM_EACH, TO_MAYBE,    D9D_KEY_ENUM(S, dtype, D9D_REQUIRED, dtypes, "type of the result"),
    OPTIONAL,  D9D_KEY_END,
};
static const d9d_key join_keys[] = {FROM_PARTS, TO_ONE, DIM, OVER, OPTIONAL, D9D_KEY_END};
static const d9d_key cut_keys[] = {FROM_EACH, TO_PARTS, DIM, OVER, OPTIONAL, D9D_KEY_END};
static const d9d_key split_keys[] = {
    FROM_EACH,
    TO("templates of the parts' names, in order"),
    DIM,
    D9D_KEY_LIST(S, sizes, D9D_REQUIRED, &a_size, "sizes of the parts", .min = 1, .max = MAX_NAMES),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key duplicate_keys[] = {FROM_EACH, TO("templates of its names"), OPTIONAL,
                                         D9D_KEY_END};
static const d9d_key distribute_keys[] = {
    FROM_EACH,
    TO_MAYBE,
    MESH,
    D9D_KEY_LIST(S, coordinate, D9D_REQUIRED, &a_place, "whose part to take", .min = 1,
                 .max = D9D_MAX_MESH),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key gather_keys[] = {FROM_PARTS, TO_ONE, MESH, OVER, OPTIONAL, D9D_KEY_END};
static const d9d_key scope_keys[] = {
    PREFIX("from", from_prefix, "prefix of the names to take; captures make a scope each"),
    PREFIX("to", to_prefix, "prefix of the names that come out"),
    BODY(S, body),
    OPTIONAL,
    D9D_KEY_END,
};
static const d9d_key shard_keys[] = {
    D9D_KEY_INT(S, total, D9D_REQUIRED, 1, 0x1p31, "number of workers"),
    D9D_KEY_INT(S, current, D9D_REQUIRED, 0, 0x1p31, "whose groups to keep; others are dropped"),
    BODY(S, body),
    D9D_KEY_END,
};

/* --- checks across keys ------------------------------------------------------------------- */

static d9d_status check_one_name(const d9di_mapper_spec_names *names, const char *key,
                                 const char *why, const char *path)
{
    if (names->n > 1)
        return D9D_FAIL(D9D_ECONFIG, "%s.%s: has %zu names, %s one", path, key, names->n, why);
    return D9D_OK;
}

static d9d_status check_to(const void *value, const char *path)
{
    return check_one_name(&((const d9di_mapper_spec_step *)value)->to, "to", "this op gives", path);
}

static d9d_status check_over(const void *value, const char *path)
{
    const d9di_mapper_spec_step *s = value;

    D9D_TRY(check_to(s, path));
    if (s->over != NULL)
        return check_one_name(&s->from, "from", "over numbers", path);
    if (s->count != D9D_INT_NULL && s->count != (int64_t)s->from.n)
        return D9D_FAIL(D9D_ECONFIG, "%s.count: is %lld, from has %zu names", path,
                        (long long)s->count, s->from.n);
    return D9D_OK;
}

static d9d_status check_unstack(const void *value, const char *path)
{
    const d9di_mapper_spec_step *s = value;

    if (s->over != NULL)
        return check_one_name(&s->to, "to", "over numbers", path);
    if (s->count != D9D_INT_NULL && s->count != (int64_t)s->to.n)
        return D9D_FAIL(D9D_ECONFIG, "%s.count: is %lld, to has %zu names", path,
                        (long long)s->count, s->to.n);
    return D9D_OK;
}

static d9d_status check_chunk(const void *value, const char *path)
{
    const d9di_mapper_spec_step *s = value;

    if (s->over != NULL && s->count == D9D_INT_NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s.count: over needs to know how many parts to make", path);
    return check_unstack(value, path);
}

static d9d_status check_split(const void *value, const char *path)
{
    const d9di_mapper_spec_step *s = value;

    if (s->sizes.n != s->to.n)
        return D9D_FAIL(D9D_ECONFIG, "%s.sizes: has %zu sizes, to has %zu names", path, s->sizes.n,
                        s->to.n);
    return D9D_OK;
}

static d9d_status same_length(const d9d_list *list, const char *key, const d9d_list *mesh,
                              const char *path)
{
    if (list->n != mesh->n)
        return D9D_FAIL(D9D_ECONFIG, "%s.%s: has %zu entries, mesh has %zu", path, key, list->n,
                        mesh->n);
    return D9D_OK;
}

static d9d_status check_distribute(const void *value, const char *path)
{
    const d9di_mapper_spec_step *s = value;

    D9D_TRY(check_to(s, path));
    D9D_TRY(same_length(&s->placements, "placements", &s->mesh, path));
    return same_length(&s->coordinate, "coordinate", &s->mesh, path);
}

static d9d_status check_gather(const void *value, const char *path)
{
    const d9di_mapper_spec_step *s = value;

    D9D_TRY(check_over(s, path));
    return same_length(&s->placements, "placements", &s->mesh, path);
}

/* --- the union ------------------------------------------------------------------------------ */

/* Columns: name, arity, operation, key table, check across keys, help line. */
#define OPS(X)                                                                                     \
    X(identity, EACH, IDENTITY, each_keys, check_to, "pass tensors on")                            \
    X(rename, EACH, RENAME, rename_keys, check_to, "give tensors other names")                     \
    X(select, EACH, RENAME, select_keys, NULL, "take children of a module, without its name")      \
    X(transpose, EACH, TRANSPOSE, transpose_keys, check_to, "swap two dimensions")                 \
    X(squeeze, EACH, SQUEEZE, squeeze_keys, check_to, "remove dimensions of size 1")               \
    X(unsqueeze, EACH, UNSQUEEZE, unsqueeze_keys, check_to, "insert a dimension of size 1")        \
    X(unflatten, EACH, UNFLATTEN, unflatten_keys, check_to, "several dimensions in place of one")  \
    X(flatten, EACH, FLATTEN, flatten_keys, check_to, "one dimension in place of several")         \
    X(cast, EACH, CAST, cast_keys, check_to, "another floating type, rounded to nearest even")     \
    X(drop, EACH, DROP, drop_keys, NULL, "leave tensors behind")                                   \
    X(stack, JOIN, STACK, join_keys, check_over, "parts along a new dimension")                    \
    X(concat, JOIN, CONCAT, join_keys, check_over, "parts along a dimension that they have")       \
    X(unstack, SPREAD, UNSTACK, cut_keys, check_unstack, "the slices of a dimension, without it")  \
    X(chunk, SPREAD, CHUNK, cut_keys, check_chunk, "parts of equal size along a dimension")        \
    X(split, SPREAD, SPLIT, split_keys, check_split, "parts of given sizes along a dimension")     \
    X(duplicate, SPREAD, DUPLICATE, duplicate_keys, NULL, "the same tensor under several names")   \
    X(distribute, EACH, DISTRIBUTE, distribute_keys, check_distribute,                             \
      "the part of one coordinate of a mesh")                                                      \
    X(gather, JOIN, GATHER, gather_keys, check_gather,                                             \
      "the whole of the parts of every coordinate of a mesh")                                      \
    X(scope, SCOPE, N_OPS, scope_keys, NULL, "stages on the names with a prefix")                  \
    X(shard, SHARE, N_OPS, shard_keys, NULL, "one worker's share of the groups of stages")

#define X(word, arity, kind, k, ch, text)                                                          \
    static const d9d_table word##_table = {                                                        \
        .name = #word, .size = sizeof(S), .keys = (k), .doc = (text), .check = (ch)};
OPS(X)
#undef X

const d9di_mapper_spec_op d9di_mapper_spec_ops[] = {
#define X(word, arity, kind, k, ch, text) {#word, D9DI_##arity, D9DI_##kind},
    OPS(X)
#undef X
};

static const d9d_table *const choices[] = {
#define X(word, arity, kind, k, ch, text) &word##_table,
    OPS(X)
#undef X
        NULL,
};

static const char *const op_tag[] = {"op", NULL};
static const d9d_key a_step = {.kind = D9D_KIND_UNION, .names = op_tag, .choices = choices};
static const d9d_key a_stage = {.kind = D9D_KIND_LIST, .max = MAX_STEPS, .elem = &a_step};

/* --- the document
 * ------------------------------------------------------------------------------
 */

static const char *const ids[] = {"d9d.mapper.v1", NULL};

static const d9d_key keys[] = {
    D9D_KEY_ENUM(d9d_mapper_spec, schema, D9D_REQUIRED, ids, "the format"),
    D9D_KEY_STR(d9d_mapper_spec, description, "\"\"", "for people"),
    BODY(d9d_mapper_spec, body),
    D9D_KEY_CUSTOM(d9d_mapper_spec, expect, "{}", &expect_kind,
                   "shapes of source tensors by pattern; letters stand for one size throughout"),
    {.name = "config",
     .kind = D9D_KIND_JSON,
     .offset = offsetof(d9d_mapper_spec, config),
     .def = "{}",
     .doc = "patch to config.json: null removes a key"},
    D9D_KEY_END,
};

static d9d_status check_spec(const void *value, const char *path)
{
    const d9d_mapper_spec *s = value;

    if (s->config != NULL && !json_is_object(s->config))
        return D9D_FAIL(D9D_ECONFIG, "%s: config: expected an object", path);
    return D9D_OK;
}

const d9d_table d9d_mapper_table = {
    .name = "mapper",
    .size = sizeof(d9d_mapper_spec),
    .keys = keys,
    .doc = "how tensors of one checkpoint become those of another",
    .check = check_spec,
};

/* --- reading
 * ------------------------------------------------------------------------------------
 */

static d9d_status bind_spec(const char *name, json_t *doc, d9d_mapper_spec **out)
{
    d9d_mapper_spec *s = calloc(1, sizeof(*s));
    d9d_arena a = {0};
    d9d_status st;

    if (s == NULL) {
        json_decref(doc);
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", name);
    }
    st = d9d_json_check_schema(doc, name, "mapper", 1);
    if (st == D9D_OK)
        st = d9d_config_bind(&d9d_mapper_table, doc, name, NULL, &a, s);
    s->arena = a;
    s->doc = doc;
    s->name = d9d_arena_strdup(&s->arena, name);
    if (st == D9D_OK && s->name == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", name);
    if (st == D9D_OK)
        *out = s;
    else
        d9d_mapper_spec_free(s);
    return st;
}

/* Errors in what a user wrote are ECONFIG: a retry does not help. */
static d9d_status to_econfig(d9d_status st)
{
    d9d_err_copy e;

    if (st != D9D_EFORMAT && st != D9D_ENOTFOUND)
        return st;
    d9d_err_save(&e, D9D_ECONFIG);
    return d9d_err_restore(&e);
}

d9d_status d9d_mapper_spec_parse(const char *name, const char *text, size_t n,
                                 d9d_mapper_spec **out)
{
    json_t *doc = NULL;
    d9d_status st = d9d_json_parse(name, text, n, &doc);

    return to_econfig(st == D9D_OK ? bind_spec(name, doc, out) : st);
}

d9d_status d9d_mapper_spec_read(const char *path, d9d_mapper_spec **out)
{
    json_t *doc = NULL;
    d9d_status st = d9d_json_read(path, D9D_MAPPER_SPEC_MAX, &doc);

    return to_econfig(st == D9D_OK ? bind_spec(path, doc, out) : st);
}

void d9d_mapper_spec_free(d9d_mapper_spec *s)
{
    if (s == NULL)
        return;
    json_decref(s->doc);
    d9d_arena_release(&s->arena);
    free(s);
}

const json_t *d9d_mapper_spec_config(const d9d_mapper_spec *s)
{
    return s->config;
}
