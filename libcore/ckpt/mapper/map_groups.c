/* map_groups.c - the groups of a mapper: finding them, selecting some, sorting outputs.  See
 * map_graph.h. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/mapper/map_graph.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "mapper: out of memory");
}

static uint32_t find_root(uint32_t *parent, uint32_t i)
{
    while (parent[i] != i)
        i = parent[i] = parent[parent[i]];
    return i;
}

d9d_status d9di_mapper_groups(const d9d_mapper *m, d9d_arena *a, uint32_t **group,
                              uint32_t *n_groups)
{
    uint32_t n = (uint32_t)m->steps.len, found = 0;
    uint32_t *parent = d9d_arena_alloc(a, ((size_t)n + 1) * sizeof(*parent));
    uint32_t *number = d9d_arena_alloc(a, ((size_t)n + 1) * sizeof(*number));

    if (parent == NULL || number == NULL)
        return no_memory();
    for (uint32_t i = 0; i < n; i++)
        parent[i] = i;
    for (size_t v = 0; v < m->values.len; v++) {
        const d9di_mapper_value *value = &m->values.data[v];
        uint32_t x, y;

        if (value->producer == D9DI_NONE || value->consumer == D9DI_NONE)
            continue;
        x = find_root(parent, (uint32_t)value->producer);
        y = find_root(parent, (uint32_t)value->consumer);
        /* The root is the first step of its group. */
        parent[x < y ? y : x] = x < y ? x : y;
    }
    for (uint32_t i = 0; i < n; i++)
        number[i] = find_root(parent, i) == i ? found++ : number[find_root(parent, i)];
    *group = number;
    *n_groups = found;
    return D9D_OK;
}

/* --- selecting groups ----------------------------------------------------------------- */

struct assigned_group {
    const char *first; /* least input name */
    bool keep;
};

static int compare_first_input(const void *a, const void *b)
{
    const struct assigned_group *const *x = a, *const *y = b;

    return strcmp((*x)->first, (*y)->first);
}

/* Each input belongs to one group, so the least names are distinct and order the groups. */
static d9d_status assign_groups(const d9d_mapper *m, const uint32_t *group, uint32_t n,
                                uint64_t total, uint64_t current, d9d_arena *a,
                                struct assigned_group **out)
{
    struct assigned_group *groups = d9d_arena_alloc(a, ((size_t)n + 1) * sizeof(*groups));
    struct assigned_group **order =
        d9d_arena_alloc(a, ((size_t)n + 1) * sizeof(struct assigned_group *));

    if (groups == NULL || order == NULL)
        return no_memory();
    for (size_t i = 0; i < m->inputs.len; i++) {
        const char *name = m->inputs.entries[i].key;
        int32_t step = m->values.data[d9di_mapper_entry_value(&m->inputs, i)].consumer;
        struct assigned_group *g = &groups[group[step]];

        if (g->first == NULL || strcmp(name, g->first) < 0)
            g->first = name;
    }
    for (uint32_t i = 0; i < n; i++)
        order[i] = &groups[i];
    qsort(order, n, sizeof(struct assigned_group *), compare_first_input);
    for (uint32_t i = 0; i < n; i++)
        order[i]->keep = i % total == current;
    *out = groups;
    return D9D_OK;
}

/* Compacts the arrays after other groups' steps and values are removed. */
static d9d_status remove_other_groups(d9d_mapper *m, const uint32_t *group,
                                      const struct assigned_group *groups, d9d_arena *a)
{
    int32_t *steps = d9d_arena_alloc(a, (m->steps.len + 1) * sizeof(*steps));
    uint32_t *values = d9d_arena_alloc(a, (m->values.len + 1) * sizeof(*values)), n = 0;
    size_t n_steps = 0;

    if (steps == NULL || values == NULL)
        return no_memory();
    for (size_t i = 0; i < m->steps.len; i++)
        if (groups[group[i]].keep) {
            steps[i] = (int32_t)n_steps;
            m->steps.data[n_steps++] = m->steps.data[i];
        } else {
            steps[i] = D9DI_NONE;
        }
    m->steps.len = n_steps;
    for (size_t i = 0; i < m->values.len; i++) {
        d9di_mapper_value v = m->values.data[i];

        v.producer = v.producer == D9DI_NONE ? D9DI_NONE : steps[v.producer];
        v.consumer = v.consumer == D9DI_NONE ? D9DI_NONE : steps[v.consumer];
        values[i] = n;
        if (v.producer != D9DI_NONE || v.consumer != D9DI_NONE)
            m->values.data[n++] = v;
    }
    m->values.len = n;
    for (size_t i = 0; i < n_steps; i++)
        for (size_t k = 0; k < (size_t)m->steps.data[i].n_in + m->steps.data[i].n_out; k++)
            m->steps.data[i].in[k] = values[m->steps.data[i].in[k]];
    return D9D_OK;
}

/* Builds a map of the names of values [n], in the given order. */
static d9d_status map_names(const d9d_mapper *m, const uint32_t *values, size_t n, d9d_map *out)
{
    d9d_map names = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        const char *name = m->values.data[values[i]].name;

        st = d9d_map_put(&names, name, strlen(name), (void *)((uintptr_t)values[i] + 1));
    }
    if (st == D9D_OK) {
        d9d_map_release(out);
        *out = names;
    } else {
        d9d_map_release(&names);
    }
    return st;
}

/* Keeps the remaining inputs or outputs, in their order. */
static d9d_status filter_names(d9d_mapper *m, d9d_map *names, bool inputs, d9d_arena *a)
{
    uint32_t *values = d9d_arena_alloc(a, (names->len + 1) * sizeof(*values));
    d9d_map now = {0};
    d9d_status st = D9D_OK;
    size_t n = 0;

    if (values == NULL)
        return no_memory();
    for (size_t i = 0; i < m->values.len && st == D9D_OK; i++) {
        const d9di_mapper_value *v = &m->values.data[i];

        if ((inputs ? v->producer : v->consumer) == D9DI_NONE)
            st = d9d_map_put(&now, v->name, strlen(v->name), (void *)(i + 1));
    }
    for (size_t i = 0; i < names->len; i++) {
        const struct d9d_map_entry *e = &names->entries[i];
        uintptr_t at = (uintptr_t)d9d_map_get(&now, e->key, e->key_len);

        if (at != 0)
            values[n++] = (uint32_t)(at - 1);
    }
    d9d_map_release(&now);
    D9D_TRY(st);
    return map_names(m, values, n, names);
}

d9d_status d9d_mapper_shard(d9d_mapper *m, uint64_t total, uint64_t current)
{
    d9d_arena a = {0};
    uint32_t *group = NULL, n = 0;
    struct assigned_group *groups = NULL;
    d9d_status st;

    if (current >= total)
        return D9D_FAIL(D9D_ECONFIG, "mapper: share %" PRIu64 " of %" PRIu64, current, total);
    D9D_TRY_OR(st, d9di_mapper_groups(m, &a, &group, &n), out);
    D9D_TRY_OR(st, assign_groups(m, group, n, total, current, &a, &groups), out);
    D9D_TRY_OR(st, remove_other_groups(m, group, groups, &a), out);
    D9D_TRY_OR(st, filter_names(m, &m->inputs, true, &a), out);
    st = filter_names(m, &m->outputs, false, &a);
out:
    d9d_arena_release(&a);
    return st;
}

/* --- order ------------------------------------------------------------------------- */

/* Length of the run of digits at s; *first is its first significant digit. */
static size_t parse_number(const char *s, const char **first)
{
    size_t n = 0;

    while (*s == '0' && isdigit((unsigned char)s[1]))
        s++;
    *first = s;
    while (isdigit((unsigned char)s[n]))
        n++;
    return n;
}

int d9di_mapper_name_compare(const char *a, const char *b)
{
    const char *const whole_a = a, *const whole_b = b;
    int c;

    while (*a != '\0' && *b != '\0') {
        const char *x, *y;
        size_t n, k;

        if (!isdigit((unsigned char)*a) || !isdigit((unsigned char)*b)) {
            if (*a != *b)
                return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            a++;
            b++;
            continue;
        }
        n = parse_number(a, &x);
        k = parse_number(b, &y);
        c = n != k ? (n < k ? -1 : 1) : memcmp(x, y, n);
        if (c != 0)
            return c < 0 ? -1 : 1;
        a = x + n;
        b = y + k;
    }
    if (*a != *b)
        return *a == '\0' ? -1 : 1;
    c = strcmp(whole_a, whole_b); /* "01" and "1" */
    return (c > 0) - (c < 0);
}

static int compare_names(const void *a, const void *b)
{
    return d9di_mapper_name_compare(((const struct d9d_map_entry *)a)->key,
                                    ((const struct d9d_map_entry *)b)->key);
}

d9d_status d9di_mapper_sort_outputs(d9d_mapper *m)
{
    const size_t n = m->outputs.len;
    struct d9d_map_entry *order = malloc((n + 1) * sizeof(*order));
    uint32_t *values = malloc((n + 1) * sizeof(*values));
    d9d_status st = D9D_OK;

    if (order == NULL || values == NULL) {
        st = no_memory();
        goto out;
    }
    if (n > 0)
        memcpy(order, m->outputs.entries, n * sizeof(*order));
    qsort(order, n, sizeof(*order), compare_names);
    for (size_t i = 0; i < n; i++)
        values[i] = (uint32_t)((uintptr_t)order[i].value - 1);
    st = map_names(m, values, n, &m->outputs);
out:
    free(order);
    free(values);
    return st;
}
