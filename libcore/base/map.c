/* map.c - string map: entries in order of insertion, slots by hash with linear
 * probing, at most half full.  See d9d/base/mem.h. */
#include "d9d/base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"

enum { FIRST_SLOTS = 16 };

/* The slot that holds the key, or the free slot where it belongs. */
static size_t find_slot(const d9d_map *m, const char *key, size_t key_len)
{
    const size_t mask = m->n_slots - 1;
    size_t s = (size_t)d9d_hash_u64(key, key_len) & mask;

    for (; m->slots[s] != 0; s = (s + 1) & mask) {
        const struct d9d_map_entry *e = &m->entries[m->slots[s] - 1];

        if (e->key_len == key_len && (key_len == 0 || memcmp(e->key, key, key_len) == 0))
            break;
    }
    return s;
}

static const struct d9d_map_entry *find_entry(const d9d_map *m, const char *key, size_t key_len)
{
    uint32_t at = m->n_slots > 0 ? m->slots[find_slot(m, key, key_len)] : 0;

    return at > 0 ? &m->entries[at - 1] : NULL;
}

/* Twice the slots; entries stay where they are. */
static d9d_status grow_slots(d9d_map *m)
{
    const size_t n = m->n_slots > 0 ? 2 * m->n_slots : FIRST_SLOTS;
    uint32_t *slots = n / 2 <= UINT32_MAX ? calloc(n, sizeof(*slots)) : NULL;

    if (slots == NULL)
        return D9D_FAIL(D9D_ENOMEM, "map: cannot allocate %zu slots for %zu keys", n, m->len + 1);
    free(m->slots);
    m->slots = slots;
    m->n_slots = n;
    for (size_t i = 0; i < m->len; i++)
        m->slots[find_slot(m, m->entries[i].key, m->entries[i].key_len)] = (uint32_t)(i + 1);
    return D9D_OK;
}

d9d_status d9d_map_put(d9d_map *m, const char *key, size_t key_len, void *value)
{
    char *copy;

    if (d9d_map_has(m, key, key_len))
        return D9D_FAIL(D9D_EINVAL, "map: the key \"%.*s\" is there already",
                        key_len < 256 ? (int)key_len : 256, key);
    if (m->len >= m->n_slots / 2)
        D9D_TRY(grow_slots(m));
    D9D_TRY(d9d_vec_grow((void **)&m->entries, &m->cap, m->len, 1, sizeof(*m->entries)));
    copy = key_len < SIZE_MAX ? malloc(key_len + 1) : NULL;
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "map: cannot allocate a key of %zu bytes", key_len);
    if (key_len > 0)
        memcpy(copy, key, key_len);
    copy[key_len] = '\0';

    m->slots[find_slot(m, key, key_len)] = (uint32_t)(m->len + 1);
    m->entries[m->len++] = (struct d9d_map_entry){.key = copy, .key_len = key_len, .value = value};
    return D9D_OK;
}

void *d9d_map_get(const d9d_map *m, const char *key, size_t key_len)
{
    const struct d9d_map_entry *e = find_entry(m, key, key_len);

    return e != NULL ? e->value : NULL;
}

bool d9d_map_has(const d9d_map *m, const char *key, size_t key_len)
{
    return find_entry(m, key, key_len) != NULL;
}

void d9d_map_release(d9d_map *m)
{
    for (size_t i = 0; i < m->len; i++)
        free(m->entries[i].key);
    free(m->entries);
    free(m->slots);
    *m = (d9d_map){0};
}
