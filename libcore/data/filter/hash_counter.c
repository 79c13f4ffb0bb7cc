/* hash_counter.c - see hash_counter.h: open addressing; a slot of an earlier turn is free. */
#include "data/filter/hash_counter.h"

#include <stdlib.h>
#include <string.h>

d9d_status d9di_hash_counter_begin(d9di_hash_counter *c, size_t n)
{
    size_t want = 64;

    while (want < 2 * n)
        want *= 2;
    if (want > c->n_slots) {
        free(c->slots);
        c->slots = calloc(want, sizeof(*c->slots));
        c->n_slots = c->slots ? want : 0;
        c->turn = 0;
        if (!c->slots)
            return D9D_FAIL(D9D_ENOMEM, "no memory for %zu hashes", want);
    }
    if (++c->turn == 0) {
        memset(c->slots, 0, c->n_slots * sizeof(*c->slots));
        c->turn = 1;
    }
    return D9D_OK;
}

/* The slot of a hash, or the free one that it would have. */
static struct d9di_hash_counter_slot *find_slot(const d9di_hash_counter *c, uint64_t key)
{
    size_t i = (size_t)(key ^ key >> 32) & (c->n_slots - 1);

    while (c->slots[i].turn == c->turn && c->slots[i].key != key)
        i = (i + 1) & (c->n_slots - 1);
    return &c->slots[i];
}

uint32_t d9di_hash_counter_add(d9di_hash_counter *c, uint64_t key)
{
    struct d9di_hash_counter_slot *s = find_slot(c, key);

    if (s->turn != c->turn)
        *s = (struct d9di_hash_counter_slot){key, c->turn, 0};
    return ++s->count;
}

uint32_t d9di_hash_counter_get(const d9di_hash_counter *c, uint64_t key)
{
    const struct d9di_hash_counter_slot *s = find_slot(c, key);

    return s->turn == c->turn ? s->count : 0;
}

void d9di_hash_counter_release(d9di_hash_counter *c)
{
    free(c->slots);
    *c = (d9di_hash_counter){0};
}
