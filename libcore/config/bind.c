/* bind.c - d9d_config_bind() and d9d_config_resolve(): one walk over a document and its table
 * checks, fills and resolves. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/path.h"
#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/config/config.h"

enum { DEPTH_MAX = 64, MAX_SHOWN = 60 };

struct bind_walk {
    d9d_arena *a;
    const d9d_log *log;
    int depth;
    int in_default; /* inside a default, whose text is freed after the walk */
};

/* A key, its value, its path, and the field to fill.  `resolved` receives a new reference; NULL if
 * not wanted. */
struct bind_slot {
    const d9d_key *key;
    json_t *value;
    const d9di_path *at;
    void *field;
    json_t **resolved;
};

#define BAD(w, at, fmt, ...)                                                                       \
    D9D_FAIL(D9D_ECONFIG, "%s: " fmt, d9di_path_text((at), (w)->a), __VA_ARGS__)

static d9d_status bind_value(struct bind_walk *w, const struct bind_slot *s);

/* --- messages --------------------------------------------------------------------------------- */

static d9d_status no_memory(const struct bind_walk *w, const d9di_path *at)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its value", d9di_path_text(at, w->a));
}

/* The JSON text of a plain value, truncated to fit a message. */
static const char *value_text(struct bind_walk *w, const json_t *v)
{
    d9d_buf b = {0};
    char *text = NULL;

    if (d9d_json_put(&b, v, -1) == D9D_OK)
        text = d9d_arena_printf(w->a, "%.*s%s", MAX_SHOWN, b.data, b.len > MAX_SHOWN ? "..." : "");
    d9d_buf_release(&b);
    return text != NULL ? text : "...";
}

/* In 9 digits if those are all: 0.9999999999 is not 1. */
static const char *number_text(struct bind_walk *w, const json_t *v)
{
    const double x = json_number_value(v);
    const char *text = d9d_arena_printf(w->a, "%.9g", x);

    return text != NULL && d9d_num_parse(text, NULL) == x ? text : value_text(w, v);
}

/* "a string ("x")", "a list": what was found. */
static const char *describe_value(struct bind_walk *w, const json_t *v)
{
    static const char *const noun[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    const char *what = noun[json_typeof(v)], *text;

    if (!json_is_string(v) && !json_is_number(v))
        return what;
    text = d9d_arena_printf(w->a, "%s (%s)", what, value_text(w, v));
    return text != NULL ? text : what;
}

static d9d_status fail_type(struct bind_walk *w, const struct bind_slot *s, const char *expected)
{
    return BAD(w, s->at, "expected %s%s, got %s", expected,
               s->key != NULL && (s->key->flags & (D9D_NULLABLE | D9D_NULL_DEFAULT)) ? " or null"
                                                                                     : "",
               describe_value(w, s->value));
}

/* "a", "b" or "c" of a NULL-ended list of words. */
static const char *join_names(struct bind_walk *w, const char *const *words)
{
    const char *text = "";

    for (size_t i = 0; words[i] != NULL && text != NULL; i++)
        text = d9d_arena_printf(w->a, "%s%s%s", text,
                                i == 0                 ? ""
                                : words[i + 1] == NULL ? " or "
                                                       : ", ",
                                words[i]);
    return text != NULL ? text : "...";
}

/* The end of a message about a word that is not among `words`: a suggestion, or the list. */
static const char *suggest_name(struct bind_walk *w, const char *given, const char *const *words)
{
    const char *near = d9d_config_did_you_mean(given, words);
    const char *text = near != NULL ? d9d_arena_printf(w->a, "did you mean \"%s\"?", near)
                                    : d9d_arena_printf(w->a, "expected %s", join_names(w, words));

    return text != NULL ? text : "it is not one of the known ones";
}

/* --- plain kinds ------------------------------------------------------------------------------ */

static d9d_status bind_bool(struct bind_walk *w, const struct bind_slot *s)
{
    if (!json_is_boolean(s->value))
        return fail_type(w, s, "true or false");
    *(bool *)s->field = json_is_true(s->value);
    return D9D_OK;
}

/* True if v is below the bound.  Not all integers are doubles: those beyond 2^53 are compared as
 * integers.
 */
static bool is_below(int64_t v, double bound)
{
    return bound >= 0x1p63 || (bound > -0x1p63 && v < (int64_t)bound);
}

static bool is_above(int64_t v, double bound)
{
    return bound < 0x1p63 && (bound < -0x1p63 || v > (int64_t)bound);
}

static d9d_status check_int(struct bind_walk *w, const struct bind_slot *s, const d9di_path *at,
                            int64_t v)
{
    if (is_below(v, s->key->min))
        return BAD(w, at, "%" PRId64 " is below the minimum of %.0f", v, s->key->min);
    if (is_above(v, s->key->max))
        return BAD(w, at, "%" PRId64 " is above the maximum of %.0f", v, s->key->max);
    return D9D_OK;
}

static d9d_status bind_int(struct bind_walk *w, const struct bind_slot *s)
{
    int64_t v;

    if (!json_is_integer(s->value))
        return fail_type(w, s, "an integer");
    v = json_integer_value(s->value);
    D9D_TRY(check_int(w, s, s->at, v));
    *(int64_t *)s->field = v;
    return D9D_OK;
}

/* Check that a number in range, or not 0, is so after rounding to float32 too. */
static d9d_status check_float32(struct bind_walk *w, const struct bind_slot *s, double v)
{
    const d9d_key *k = s->key;
    const double f = (double)(float)v;

    if ((f == 0 && v != 0) || isinf(f) || ((k->flags & D9D_ABOVE_MIN) && f == k->min) ||
        ((k->flags & D9D_BELOW_MAX) && f == k->max))
        return BAD(w, s->at, "%s is %.9g in float32, in which it is used", number_text(w, s->value),
                   f);
    return D9D_OK;
}

static d9d_status bind_real(struct bind_walk *w, const struct bind_slot *s)
{
    const d9d_key *k = s->key;
    double v;

    if (!json_is_number(s->value))
        return fail_type(w, s, "a number");
    v = json_number_value(s->value);
    if (v < k->min || ((k->flags & D9D_ABOVE_MIN) && v == k->min))
        return BAD(w, s->at, "%s is not %s %.9g", number_text(w, s->value),
                   k->flags & D9D_ABOVE_MIN ? "above" : "at least", k->min);
    if (v > k->max || ((k->flags & D9D_BELOW_MAX) && v == k->max))
        return BAD(w, s->at, "%s is not %s %.9g", number_text(w, s->value),
                   k->flags & D9D_BELOW_MAX ? "below" : "at most", k->max);
    if (k->flags & D9D_FLOAT32)
        D9D_TRY(check_float32(w, s, v));
    *(double *)s->field = v;
    return D9D_OK;
}

/* Lengths of strings and lists; a maximum of 0 is none. */
static d9d_status check_length(struct bind_walk *w, const struct bind_slot *s, size_t n,
                               const char *unit)
{
    const d9d_key *k = s->key;

    if ((double)n < k->min)
        return BAD(w, s->at, "has %zu %s%s, at least %.0f %s needed", n, unit, D9D_PLURAL(n),
                   k->min, k->min == 1 ? "is" : "are");
    if (k->max > 0 && (double)n > k->max)
        return BAD(w, s->at, "has %zu %s%s, at most %.0f %s allowed", n, unit, D9D_PLURAL(n),
                   k->max, k->max == 1 ? "is" : "are");
    return D9D_OK;
}

static d9d_status bind_str(struct bind_walk *w, const struct bind_slot *s)
{
    char *copy;

    if (!json_is_string(s->value))
        return fail_type(w, s, "a string");
    D9D_TRY(check_length(w, s, json_string_length(s->value), "byte"));
    copy = d9d_arena_strdup(w->a, json_string_value(s->value));
    if (copy == NULL)
        return no_memory(w, s->at);
    *(const char **)s->field = copy;
    return D9D_OK;
}

static d9d_status bind_enum(struct bind_walk *w, const struct bind_slot *s)
{
    const char *const *words = s->key->names;
    const char *given;

    if (!json_is_string(s->value))
        return fail_type(w, s, join_names(w, words));
    given = json_string_value(s->value);
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(words[i], given) == 0) {
            *(int *)s->field = i;
            return D9D_OK;
        }
    return BAD(w, s->at, "unknown word %s; %s", value_text(w, s->value),
               suggest_name(w, given, words));
}

static d9d_status bind_map(struct bind_walk *w, const struct bind_slot *s)
{
    d9d_str_int_map m = {0};
    const char *name;
    json_t *v;

    if (!json_is_object(s->value))
        return fail_type(w, s, "an object of integers");
    m.names = d9d_arena_alloc(w->a, json_object_size(s->value) * sizeof(*m.names));
    m.values = d9d_arena_alloc(w->a, json_object_size(s->value) * sizeof(*m.values));
    if (m.names == NULL || m.values == NULL)
        return no_memory(w, s->at);
    json_object_foreach(s->value, name, v)
    {
        const d9di_path at = {s->at, name, 0};
        const struct bind_slot one = {s->key, v, &at, &m.values[m.n], NULL};

        D9D_TRY(bind_int(w, &one));
        m.names[m.n] = d9d_arena_strdup(w->a, name);
        if (m.names[m.n++] == NULL)
            return no_memory(w, s->at);
    }
    *(d9d_str_int_map *)s->field = m;
    return D9D_OK;
}

static d9d_status bind_json(struct bind_walk *w, const struct bind_slot *s)
{
    *(json_t **)s->field = w->in_default > 0 ? NULL : s->value;
    return D9D_OK;
}

static d9d_status bind_custom(struct bind_walk *w, const struct bind_slot *s)
{
    D9D_TRY(s->key->custom->parse(s->value, d9di_path_text(s->at, w->a), w->a, s->field));
    return D9D_OK;
}

/* --- compound kinds --------------------------------------------------------------------------- */

/* The discriminator and every name of a table, for a suggestion. */
static const char *const *key_names(struct bind_walk *w, const d9d_table *t, const char *tag)
{
    static const char *const none[] = {NULL};
    const char **names;
    size_t n = 0;

    while (t->keys[n].name != NULL)
        n++;
    names = d9d_arena_alloc(w->a, (n + 2) * sizeof(*names));
    if (names == NULL)
        return none;
    if (tag != NULL)
        *names = tag;
    for (size_t i = 0; i < n; i++)
        names[i + (tag != NULL)] = t->keys[i].name;
    return names;
}

static size_t field_size(const d9d_key *k);

static d9d_status check_other(struct bind_walk *w, const d9d_key *k, json_t *v, const d9di_path *at)
{
    const struct bind_slot s = {k, v, at, d9d_arena_alloc(w->a, field_size(k)), NULL};

    return s.field != NULL ? bind_value(w, &s) : no_memory(w, at);
}

static bool has_name(const d9d_key *k, const char *name)
{
    return strcmp(k->name, name) == 0 || (k->former != NULL && strcmp(k->former, name) == 0);
}

static d9d_status check_names(struct bind_walk *w, const d9d_table *t, const char *tag,
                              const json_t *doc, const d9di_path *up)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)doc, name, v)
    {
        const d9di_path at = {up, name, 0};
        const d9d_key *k = t->keys;

        while (k->name != NULL && !has_name(k, name))
            k++;
        if (k->name != NULL || (tag != NULL && strcmp(tag, name) == 0))
            continue;
        if (t->others == NULL)
            return BAD(w, &at, "unknown key; %s", suggest_name(w, name, key_names(w, t, tag)));
        D9D_TRY(check_other(w, t->others, v, &at));
    }
    return D9D_OK;
}

static d9d_status bind_default(struct bind_walk *w, const struct bind_slot *s)
{
    struct bind_slot d = *s;
    json_error_t err;
    d9d_status st;

    if (s->key->def == D9D_REQUIRED)
        return BAD(w, s->at, "required key is missing (%s)", s->key->doc);
    d.value = json_loads(s->key->def, JSON_DECODE_ANY, &err);
    if (d.value == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: its default %s is not JSON", d9di_path_text(s->at, w->a),
                        s->key->def);
    w->in_default++;
    st = bind_value(w, &d);
    w->in_default--;
    json_decref(d.value);
    return st;
}

/* `given` stands at `at`; NULL: the default is bound. */
static d9d_status bind_found(struct bind_walk *w, const d9d_key *k, json_t *given,
                             const d9di_path *at, char *base, json_t *resolved)
{
    json_t *full = NULL, *v = json_is_null(given) && (k->flags & D9D_NULL_DEFAULT) ? NULL : given;
    const bool keep = resolved != NULL && (v != NULL || !(k->flags & D9D_NO_EFFECT));
    struct bind_slot s = {k, v, at, NULL, keep ? &full : NULL};

    s.field = k->offset != D9D_NO_FIELD ? base + k->offset : d9d_arena_alloc(w->a, field_size(k));
    if (s.field == NULL)
        return no_memory(w, at);
    D9D_TRY(v != NULL ? bind_value(w, &s) : bind_default(w, &s));
    if (v != NULL && resolved == NULL && (k->flags & D9D_NO_EFFECT))
        d9d_log_info(w->log, "%s: accepted, but has no effect here", d9di_path_text(at, w->a));
    if (keep && json_object_set_new(resolved, k->name, full) != 0)
        return no_memory(w, at);
    return D9D_OK;
}

/* The value of a key by either of its names; *name: by which.  NULL: it is not given. */
static d9d_status find_value(struct bind_walk *w, const d9d_key *k, const json_t *doc,
                             const d9di_path *up, const char **name, json_t **v)
{
    const d9di_path former = {up, k->former, 0};
    json_t *old = k->former != NULL ? json_object_get(doc, k->former) : NULL;

    *v = json_object_get(doc, k->name);
    if (old == NULL)
        return D9D_OK;
    if (*v != NULL)
        return BAD(w, &former, "is the former name of %s, which is given too", k->name);
    d9d_log_warn(w->log, "%s is now %s", d9di_path_text(&former, w->a), k->name);
    *v = old;
    *name = k->former;
    return D9D_OK;
}

static d9d_status bind_key(struct bind_walk *w, const d9d_key *k, const json_t *doc,
                           const d9di_path *up, char *base, json_t *resolved)
{
    d9di_path at = {up, k->name, 0};
    json_t *v;

    D9D_TRY(find_value(w, k, doc, up, &at.key, &v));
    return bind_found(w, k, v, &at, base, resolved);
}

static d9d_status bind_keys(struct bind_walk *w, const d9d_table *t, const char *tag,
                            const json_t *doc, const d9di_path *at, void *out, json_t *resolved)
{
    memset(out, 0, t->size);
    D9D_TRY(check_names(w, t, tag, doc, at));
    if (tag != NULL && resolved != NULL &&
        json_object_set(resolved, tag, json_object_get(doc, tag)) != 0)
        return no_memory(w, at);
    for (const d9d_key *k = t->keys; k->name != NULL; k++)
        D9D_TRY(bind_key(w, k, doc, at, out, resolved));
    if (t->check != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(t->name, t, check, out, d9di_path_text(at, w->a)));
    return D9D_OK;
}

/* `tag` is the discriminator that is allowed besides the table's keys, or NULL. */
static d9d_status bind_table(struct bind_walk *w, const d9d_table *t, const char *tag,
                             const json_t *doc, const d9di_path *at, void *out, json_t **resolved)
{
    json_t *full = NULL;
    d9d_status st;

    if (++w->depth > DEPTH_MAX)
        return BAD(w, at, "is nested deeper than %d", DEPTH_MAX);
    if (resolved != NULL && (full = json_object()) == NULL)
        return no_memory(w, at);
    st = bind_keys(w, t, tag, doc, at, out, full);
    w->depth--;
    if (st != D9D_OK) {
        json_decref(full);
        return st;
    }
    if (resolved != NULL)
        *resolved = full;
    return D9D_OK;
}

static d9d_status bind_table_key(struct bind_walk *w, const struct bind_slot *s)
{
    const d9d_table *t = s->key->table;
    void *out = s->field;

    if (!json_is_object(s->value))
        return fail_type(w, s, "an object");
    if (s->key->flags & D9D_NULLABLE) {
        out = d9d_arena_alloc(w->a, t->size);
        if (out == NULL)
            return no_memory(w, s->at);
        *(void **)s->field = out;
    }
    return bind_table(w, t, NULL, s->value, s->at, out, s->resolved);
}

static const char *const *choice_names(struct bind_walk *w, const d9d_table *const *choices)
{
    static const char *const none[] = {NULL};
    const char **names;
    size_t n = 0;

    while (choices[n] != NULL)
        n++;
    names = d9d_arena_alloc(w->a, (n + 1) * sizeof(*names));
    if (names == NULL)
        return none;
    for (size_t i = 0; i < n; i++)
        names[i] = choices[i]->name;
    return names;
}

static d9d_status bind_union(struct bind_walk *w, const struct bind_slot *s)
{
    const d9d_table *const *choices = s->key->choices;
    const char *tag = s->key->names[0], *given;
    const d9di_path at = {s->at, tag, 0};
    const json_t *word;
    d9d_union u = {0};

    if (!json_is_object(s->value))
        return fail_type(w, s, "an object");
    word = json_object_get(s->value, tag);
    if (word == NULL)
        return BAD(w, &at, "required key is missing; expected %s",
                   join_names(w, choice_names(w, choices)));
    if (!json_is_string(word))
        return BAD(w, &at, "expected %s, got %s", join_names(w, choice_names(w, choices)),
                   describe_value(w, word));
    given = json_string_value(word);
    while (choices[u.which] != NULL && strcmp(choices[u.which]->name, given) != 0)
        u.which++;
    if (choices[u.which] == NULL)
        return BAD(w, &at, "unknown word %s; %s", value_text(w, word),
                   suggest_name(w, given, choice_names(w, choices)));
    u.choice = choices[u.which];
    u.choices = choices;
    u.value = d9d_arena_alloc(w->a, u.choice->size);
    if (u.value == NULL)
        return no_memory(w, s->at);
    D9D_TRY(bind_table(w, u.choice, tag, s->value, s->at, u.value, s->resolved));
    *(d9d_union *)s->field = u;
    return D9D_OK;
}

static d9d_status bind_items(struct bind_walk *w, const struct bind_slot *s, char *items,
                             size_t size, json_t *resolved)
{
    json_t *v;
    size_t i;

    json_array_foreach(s->value, i, v)
    {
        const d9di_path at = {s->at, NULL, i};
        json_t *full = NULL;
        const struct bind_slot one = {s->key->elem, v, &at, items + i * size,
                                      resolved != NULL ? &full : NULL};

        D9D_TRY(bind_value(w, &one));
        if (resolved != NULL && json_array_append_new(resolved, full) != 0)
            return no_memory(w, &at);
    }
    return D9D_OK;
}

static d9d_status bind_list(struct bind_walk *w, const struct bind_slot *s)
{
    const size_t size = field_size(s->key->elem);
    const bool one = (s->key->flags & D9D_OR_ONE) && !json_is_array(s->value);
    d9d_list list = {NULL, one ? 1 : json_array_size(s->value)};
    json_t *full = NULL;
    uint64_t bytes;
    d9d_status st;

    if (!one && !json_is_array(s->value))
        return fail_type(w, s, "a list");
    D9D_TRY(check_length(w, s, list.n, "element"));
    if (!d9d_checked_mul_u64(list.n, size, &bytes) ||
        (list.items = d9d_arena_alloc(w->a, (size_t)bytes)) == NULL)
        return no_memory(w, s->at);
    *(d9d_list *)s->field = list;
    if (one)
        return bind_value(
            w, &(struct bind_slot){s->key->elem, s->value, s->at, list.items, s->resolved});
    if (s->resolved != NULL && (full = json_array()) == NULL)
        return no_memory(w, s->at);
    st = bind_items(w, s, list.items, size, full);
    if (st != D9D_OK) {
        json_decref(full);
        return st;
    }
    if (s->resolved != NULL)
        *s->resolved = full;
    return D9D_OK;
}

/* --- any kind --------------------------------------------------------------------------------- */

static void null_zero(void *field, size_t size)
{
    memset(field, 0, size);
}
static void null_int(void *field, size_t size)
{
    (void)size, *(int64_t *)field = D9D_INT_NULL;
}
static void null_real(void *field, size_t size)
{
    (void)size, *(double *)field = (double)NAN;
}
static void null_enum(void *field, size_t size)
{
    (void)size, *(int *)field = -1;
}
static void null_union(void *field, size_t size)
{
    (void)size, *(d9d_union *)field = (d9d_union){.which = -1};
}

/* size 0: depends on the key.  `null` NULL: the kind handles null itself. */
static const struct bind_kind {
    size_t size;
    d9d_status (*bind)(struct bind_walk *w, const struct bind_slot *s);
    void (*null)(void *field, size_t size);
} bind_kinds[] = {
    [D9D_KIND_BOOL] = {sizeof(bool), bind_bool, NULL},
    [D9D_KIND_INT] = {sizeof(int64_t), bind_int, null_int},
    [D9D_KIND_REAL] = {sizeof(double), bind_real, null_real},
    [D9D_KIND_STR] = {sizeof(const char *), bind_str, null_zero},
    [D9D_KIND_ENUM] = {sizeof(int), bind_enum, null_enum},
    [D9D_KIND_TABLE] = {0, bind_table_key, null_zero},
    [D9D_KIND_UNION] = {sizeof(d9d_union), bind_union, null_union},
    [D9D_KIND_LIST] = {sizeof(d9d_list), bind_list, null_zero},
    [D9D_KIND_STR_INT_MAP] = {sizeof(d9d_str_int_map), bind_map, null_zero},
    [D9D_KIND_JSON] = {sizeof(json_t *), bind_json, NULL},
    [D9D_KIND_CUSTOM] = {0, bind_custom, NULL},
};

static size_t field_size(const d9d_key *k)
{
    if (k->kind == D9D_KIND_TABLE)
        return k->flags & D9D_NULLABLE ? sizeof(void *) : k->table->size;
    return k->kind == D9D_KIND_CUSTOM ? k->custom->size : bind_kinds[k->kind].size;
}

static d9d_status bind_value(struct bind_walk *w, const struct bind_slot *s)
{
    const struct bind_kind *bind_kind = &bind_kinds[s->key->kind];

    if (json_is_null(s->value) && bind_kind->null != NULL && (s->key->flags & D9D_NULLABLE))
        bind_kind->null(s->field, field_size(s->key));
    else
        D9D_TRY(bind_kind->bind(w, s));
    if (s->resolved != NULL && *s->resolved == NULL)
        *s->resolved = json_incref(s->value);
    return D9D_OK;
}

static d9d_status bind_root(struct bind_walk *w, const d9d_table *table, const json_t *doc,
                            const char *where, void *out, json_t **resolved)
{
    const d9di_path root = {NULL, where, 0};

    if (!json_is_object(doc))
        return D9D_FAIL(D9D_ECONFIG, "%s: expected an object, got %s", where,
                        doc != NULL ? describe_value(w, doc) : "nothing");
    return bind_table(w, table, NULL, doc, &root, out, resolved);
}

d9d_status d9d_config_bind(const d9d_table *table, const json_t *doc, const char *where,
                           const d9d_log *log, d9d_arena *a, void *out)
{
    struct bind_walk w = {.a = a, .log = log};

    return bind_root(&w, table, doc, where, out, NULL);
}

d9d_status d9d_config_resolve(const d9d_table *table, const json_t *doc, const char *where,
                              const d9d_log *log, json_t **out)
{
    d9d_arena scratch = {0};
    struct bind_walk w = {.a = &scratch, .log = log};
    void *value = d9d_arena_alloc(&scratch, table->size);
    d9d_status st;

    st = value != NULL
             ? bind_root(&w, table, doc, where, value, out)
             : D9D_FAIL(D9D_ENOMEM, "%s: no memory for its %zu bytes", where, table->size);
    d9d_arena_release(&scratch);
    return st;
}
