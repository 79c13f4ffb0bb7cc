/* extend.c - copies of key tables with more choices in their unions, for plugins.  See
 * d9d/config/config.h. */
#include <string.h>

#include "d9d/config/config.h"

/* A table that was copied, so that a table which contains itself is copied once. */
typedef struct table_copy {
    const d9d_table *from;
    d9d_table *to;
    struct table_copy *before;
} table_copy;

typedef struct extend {
    const d9d_config_extension *more;
    size_t n;
    d9d_arena *a;
    table_copy *last;
} extend;

static d9d_status no_memory(const d9d_table *t)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its key table", t->name);
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static d9d_status copy_table(extend *e, const d9d_table *t, d9d_table **out);

static size_t count_tables(const d9d_table *const *list)
{
    size_t n = 0;

    while (list[n] != NULL)
        n++;
    return n;
}

static d9d_status copy_choices(extend *e, const d9d_table *t, d9d_key *k)
{
    static const d9d_table *const none[] = {NULL};
    const d9d_table *const *lists[2] = {k->choices, none};
    const d9d_table **all;
    size_t n = 0;

    for (size_t i = 0; i < e->n; i++)
        if (e->more[i].choices == k->choices)
            lists[1] = e->more[i].more;
    all =
        d9d_arena_alloc(e->a, (count_tables(lists[0]) + count_tables(lists[1]) + 1) * sizeof(*all));
    if (all == NULL)
        return no_memory(t);
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; lists[l][i] != NULL; i++) {
            d9d_table *one;

            D9D_TRY(copy_table(e, lists[l][i], &one));
            all[n++] = one;
        }
    k->choices = all;
    return D9D_OK;
}

/* Key `i` of t, by the key size with which t was compiled. */
static const d9d_key *key_at(const d9d_table *t, size_t i)
{
    const size_t step = t->bytes.key > 0 ? t->bytes.key : sizeof(d9d_key);

    return (const d9d_key *)(const void *)((const char *)t->keys + i * step);
}

/* Bytes of the C type that a key fills. */
static size_t field_size(const d9d_key *k)
{
    static const size_t sizes[] = {
        [D9D_KIND_BOOL] = sizeof(bool),     [D9D_KIND_INT] = sizeof(int64_t),
        [D9D_KIND_REAL] = sizeof(double),   [D9D_KIND_STR] = sizeof(char *),
        [D9D_KIND_ENUM] = sizeof(int),      [D9D_KIND_UNION] = sizeof(d9d_union),
        [D9D_KIND_LIST] = sizeof(d9d_list), [D9D_KIND_STR_INT_MAP] = sizeof(d9d_str_int_map),
        [D9D_KIND_JSON] = sizeof(json_t *),
    };

    if (k->kind == D9D_KIND_TABLE)
        return (k->flags & D9D_NULLABLE) != 0 ? sizeof(void *) : k->table->size;
    return k->kind == D9D_KIND_CUSTOM ? k->custom->size : sizes[k->kind];
}

/* The name of a member that the kind of the key needs and that is missing; NULL: none. */
static const char *missing_member(const d9d_key *k)
{
    const struct {
        d9d_key_kind kind;
        const void *member;
        const char *name;
    } needs[] = {
        {D9D_KIND_ENUM, k->names, "words"},  {D9D_KIND_TABLE, k->table, "table"},
        {D9D_KIND_UNION, k->names, "words"}, {D9D_KIND_UNION, k->choices, "choices"},
        {D9D_KIND_LIST, k->elem, "elem"},    {D9D_KIND_CUSTOM, k->custom, "custom"},
    };

    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        if (k->kind == needs[i].kind && needs[i].member == NULL)
            return needs[i].name;
    return NULL;
}

static bool is_json(const char *text)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    const bool is = v != NULL;

    json_decref(v);
    return is;
}

/* `field`: the key is a field of t's struct, not an element of a list. */
static d9d_status check_key(const d9d_table *t, const d9d_key *k, bool field)
{
    const char *name = field ? k->name : "an element", *lack;

    if ((unsigned)k->kind > D9D_KIND_CUSTOM)
        return D9D_FAIL(D9D_ECONFIG, "key table %s: %s has the kind %d, which is none", t->name,
                        name, (int)k->kind);
    lack = missing_member(k);
    if (lack != NULL)
        return D9D_FAIL(D9D_ECONFIG, "key table %s: %s has no %s", t->name, name, lack);
    if (field && k->offset != D9D_NO_FIELD && k->offset + field_size(k) > t->size)
        return D9D_FAIL(D9D_ECONFIG, "key table %s: %s ends at byte %zu of a struct that has %zu",
                        t->name, name, k->offset + field_size(k), t->size);
    if (field && k->def != D9D_REQUIRED && !is_json(k->def))
        return D9D_FAIL(D9D_ECONFIG,
                        "key table %s: the default of %s is %s, which is not JSON; a text has "
                        "quotes of its own",
                        t->name, name, k->def);
    return D9D_OK;
}

static d9d_status copy_key(extend *e, const d9d_table *t, const d9d_key *from, bool field,
                           d9d_key *k)
{
    d9d_table *below;

    memcpy(k, from, t->bytes.key > 0 ? min_size(t->bytes.key, sizeof(*k)) : sizeof(*k));
    D9D_TRY(check_key(t, k, field));
    if (k->kind == D9D_KIND_TABLE) {
        D9D_TRY(copy_table(e, k->table, &below));
        k->table = below;
    }
    if (k->kind == D9D_KIND_UNION)
        D9D_TRY(copy_choices(e, t, k));
    if (k->kind == D9D_KIND_LIST) {
        d9d_key *elem = d9d_arena_alloc(e->a, sizeof(*elem));

        if (elem == NULL)
            return no_memory(t);
        D9D_TRY(copy_key(e, t, k->elem, false, elem));
        k->elem = elem;
    }
    return D9D_OK;
}

static d9d_status copy_table(extend *e, const d9d_table *t, d9d_table **out)
{
    table_copy *done = e->last;
    d9d_key *keys;
    size_t n = 0;

    while (done != NULL && done->from != t)
        done = done->before;
    if (done != NULL) {
        *out = done->to;
        return D9D_OK;
    }
    if (t->keys == NULL)
        return D9D_FAIL(D9D_ECONFIG, "key table %s: it has no keys, not even their end", t->name);
    while (key_at(t, n)->name != NULL)
        n++;
    done = d9d_arena_alloc(e->a, sizeof(*done));
    *out = d9d_arena_alloc(e->a, sizeof(**out));
    keys = d9d_arena_alloc(e->a, (n + 1) * sizeof(*keys));
    if (done == NULL || *out == NULL || keys == NULL)
        return no_memory(t);
    memcpy(*out, t, t->bytes.table > 0 ? min_size(t->bytes.table, sizeof(*t)) : sizeof(*t));
    (*out)->keys = keys;
    (*out)->bytes.table = sizeof(d9d_table);
    (*out)->bytes.key = sizeof(d9d_key);
    *done = (table_copy){t, *out, e->last};
    e->last = done;
    for (size_t i = 0; i < n; i++)
        D9D_TRY(copy_key(e, t, key_at(t, i), true, &keys[i]));
    return D9D_OK;
}

d9d_status d9d_config_extend(const d9d_table *table, const d9d_config_extension *more, size_t n,
                             d9d_arena *a, d9d_table **out)
{
    extend e = {more, n, a, NULL};

    return copy_table(&e, table, out);
}
