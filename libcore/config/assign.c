/* assign.c - d9d_config_set(): "a.b[2].c=VALUE" applied to a document. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/config/config.h"

/* One component of the path: the text between two dots or inside brackets. */
struct path_step {
    const char *at;
    size_t n;
    bool bracket;
};

#define BAD(text, fmt, ...) D9D_FAIL(D9D_ECONFIG, "--set %s: " fmt, (text), __VA_ARGS__)

/* The next component at *p, which is advanced; false at the end or at an empty one. */
static bool next_step(const char **p, const char *end, struct path_step *out)
{
    const bool bracket = *p < end && **p == '[';
    const char *from = *p + bracket, *to = from;

    while (to < end && (bracket ? *to != ']' : *to != '.' && *to != '['))
        to++;
    if (to == from || (bracket && to == end))
        return false;
    *out = (struct path_step){from, (size_t)(to - from), bracket};
    to += bracket;
    if (to < end && *to == '.')
        to += to + 1 < end; /* a trailing dot stays, and is an error */
    *p = to;
    return true;
}

static bool begins_like_json(const char *text)
{
    return memchr("{[\"", *text, 3) != NULL;
}

static json_t *parse_value(const char *text)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);

    return v != NULL || begins_like_json(text) ? v : json_string(text);
}

/* --- keys ------------------------------------------------------------------------------------- */

static const d9d_key *key_in_table(const d9d_table *t, const struct path_step *s)
{
    for (const d9d_key *k = t->keys; k->name != NULL; k++)
        if ((strncmp(k->name, s->at, s->n) == 0 && k->name[s->n] == '\0') ||
            (k->former != NULL && strncmp(k->former, s->at, s->n) == 0 && k->former[s->n] == '\0'))
            return k;
    return NULL;
}

/* Of any choice; one that is no text, if there is one. */
static const d9d_key *key_in_choices(const d9d_table *const *choices, const struct path_step *s)
{
    const d9d_key *found = NULL;

    for (; *choices != NULL; choices++) {
        const d9d_key *k = key_in_table(*choices, s);

        if (k != NULL && (found == NULL || k->kind != D9D_KIND_STR))
            found = k;
    }
    return found;
}

/* The key that a component names within another; NULL: none, or it takes anything. */
static const d9d_key *key_within(const d9d_key *in, const struct path_step *s)
{
    switch (in->kind) {
    case D9D_KIND_TABLE: return key_in_table(in->table, s);
    case D9D_KIND_LIST: return in->elem;
    case D9D_KIND_UNION: return key_in_choices(in->choices, s);
    default: return NULL;
    }
}

/* Does the path name a text, whatever is chosen on its way? */
static bool names_text(const d9d_table *table, const char *text, const char *eq)
{
    const d9d_key whole = {.kind = D9D_KIND_TABLE, .table = table};
    const d9d_key *k = table != NULL ? &whole : NULL;
    const char *p = text;
    struct path_step s;

    while (k != NULL && p < eq && next_step(&p, eq, &s))
        k = key_within(k, &s);
    return k != NULL && k->kind == D9D_KIND_STR;
}

/* --- the document ----------------------------------------------------------------------------- */

/* The index in `list` that a component names; the length of the list means append. */
static d9d_status element_index(const char *text, const json_t *list, const struct path_step *s,
                                size_t *out)
{
    const size_t n = json_array_size(list);
    char *end;
    unsigned long long i;

    errno = 0;
    i = strtoull(s->at, &end, 10);
    if (*s->at < '0' || *s->at > '9' || end != s->at + s->n || errno != 0)
        return BAD(text, "\"%.*s\" is not the number of a list element", (int)s->n, s->at);
    if (i > n)
        return BAD(text, "there is no element %llu in a list of %zu", i, n);
    *out = (size_t)i;
    return D9D_OK;
}

/* Members by the name of a component: jansson takes lengths of names from 2.14 on. */
static json_t *get_member(const json_t *in, const struct path_step *s)
{
    char *name = strndup(s->at, s->n);
    json_t *v = name != NULL ? json_object_get(in, name) : NULL;

    free(name);
    return v;
}

static int set_member(json_t *in, const struct path_step *s, json_t *v)
{
    char *name = strndup(s->at, s->n);
    const int rc = json_object_set_new(in, name, v); /* refuses NULL, too */

    free(name);
    return rc;
}

/* What the component names in `in`; NULL if absent. */
static d9d_status find_child(const char *text, json_t *in, const struct path_step *s, json_t **out)
{
    size_t i;

    if (json_is_object(in) && s->bracket)
        return BAD(text, "[%.*s] would be an element, and what has it is no list", (int)s->n,
                   s->at);
    if (json_is_object(in)) {
        *out = get_member(in, s);
        return D9D_OK;
    }
    if (!json_is_array(in))
        return BAD(text, "\"%.*s\" would be inside of a plain value", (int)s->n, s->at);
    D9D_TRY(element_index(text, in, s, &i));
    *out = json_array_get(in, i);
    return D9D_OK;
}

/* Set the component to `v` (reference stolen), replacing what is there. */
static d9d_status set_child(const char *text, json_t *in, const struct path_step *s, json_t *v)
{
    size_t i = 0;
    d9d_status st = D9D_OK;

    if (json_is_array(in))
        st = element_index(text, in, s, &i);
    if (st != D9D_OK) {
        json_decref(v);
        return st;
    }
    if (json_is_object(in)        ? set_member(in, s, v) != 0
        : i < json_array_size(in) ? json_array_set_new(in, i, v) != 0
                                  : json_array_append_new(in, v) != 0)
        return BAD(text, "\"%.*s\" cannot be set: it is no UTF-8, or memory is out", (int)s->n,
                   s->at);
    return D9D_OK;
}

static d9d_status assign_value(json_t *doc, const char *text, const char *eq, json_t *v)
{
    const char *p = text;
    struct path_step s;
    json_t *in = doc, *child;
    d9d_status st;

    while (next_step(&p, eq, &s)) {
        D9D_TRY_OR(st, find_child(text, in, &s, &child), drop);
        if (p == eq)
            return set_child(text, in, &s, v);
        if (child == NULL || json_is_null(child)) {
            D9D_TRY_OR(st, set_child(text, in, &s, *p == '[' ? json_array() : json_object()), drop);
            D9D_TRY_OR(st, find_child(text, in, &s, &child), drop);
        }
        in = child;
    }
    st = BAD(text, "expected a path such as a.b[0].c before the \"=\", stuck at \"%.*s\"",
             (int)(eq - p), p);
drop:
    json_decref(v);
    return st;
}

d9d_status d9d_config_set(const d9d_table *table, json_t *doc, const char *assignment)
{
    const char *eq = strchr(assignment, '=');
    json_t *v;

    if (eq == NULL || eq == assignment)
        return BAD(assignment, "%s", "expected KEY=VALUE");
    v = parse_value(eq + 1);
    if ((json_is_number(v) || json_is_boolean(v)) && names_text(table, assignment, eq)) {
        json_decref(v);
        v = json_string(eq + 1);
    }
    if (v == NULL)
        return BAD(assignment, "the value %s",
                   begins_like_json(eq + 1) ? "begins like JSON, but is not" : "is not UTF-8");
    return assign_value(doc, assignment, eq, v);
}
