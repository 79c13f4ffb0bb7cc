/* bpe_store.c - see bpe_store.h. */
#include "data/tokenizer/bpe_store.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"

enum { FIRST_SLOTS = 1 << 10, PLACE_BITS = 32 };

/* An entry: the numbers of bytes and of ids, the ids, the bytes and zeros. */
enum { HEAD_WORDS = 1 };

static uint32_t head_of(size_t n, size_t n_ids)
{
    return (uint32_t)(n << 16 | n_ids);
}

static size_t entry_words(size_t n, size_t n_ids)
{
    return HEAD_WORDS + n_ids + (n + 3) / 4;
}

uint64_t d9di_bpe_store_hash(const char *text, size_t n)
{
    return d9d_hash_u64(text, n);
}

static d9d_status alloc_refs(size_t slots, uint64_t **out)
{
    *out = calloc(slots, sizeof(**out));
    return *out != NULL ? D9D_OK
                        : D9D_FAIL(D9D_ENOMEM, "no memory for a cache of %zu slots", slots);
}

d9d_status d9di_bpe_store_init(d9di_bpe_store *s, size_t max_words)
{
    *s = (d9di_bpe_store){.mask = FIRST_SLOTS - 1, .max_words = max_words};
    return alloc_refs(FIRST_SLOTS, &s->refs);
}

void d9di_bpe_store_release(d9di_bpe_store *s)
{
    free(s->refs);
    D9D_VEC_RELEASE(&s->words);
    *s = (d9di_bpe_store){.refs = NULL};
}

static bool is_entry_of(const uint32_t *entry, const char *text, size_t n)
{
    const size_t n_ids = entry[0] & 0xffff;

    return entry[0] >> 16 == n && memcmp(entry + HEAD_WORDS + n_ids, text, n) == 0;
}

size_t d9di_bpe_store_get(const d9di_bpe_store *s, uint64_t hash, const char *text, size_t n,
                          uint32_t *ids)
{
    for (uint64_t at = hash & s->mask; s->refs[at] != 0; at = (at + 1) & s->mask) {
        const uint32_t *entry = s->words.data + (uint32_t)s->refs[at] - 1;

        if ((s->refs[at] ^ hash) >> PLACE_BITS == 0 && is_entry_of(entry, text, n)) {
            const size_t n_ids = entry[0] & 0xffff;

            memcpy(ids, entry + HEAD_WORDS, n_ids * sizeof(*ids));
            return n_ids;
        }
    }
    return 0;
}

static void put_ref(uint64_t *refs, uint64_t mask, uint64_t hash, size_t place)
{
    uint64_t at = hash & mask;

    while (refs[at] != 0)
        at = (at + 1) & mask;
    refs[at] = hash >> PLACE_BITS << PLACE_BITS | (place + 1);
}

/* Twice as many slots.  What is below the upper half of a hash is computed again. */
static d9d_status grow_refs(d9di_bpe_store *s)
{
    const uint64_t mask = 2 * s->mask + 1;
    uint64_t *refs;

    D9D_TRY(alloc_refs(mask + 1, &refs));
    for (size_t at = 0; at < s->words.len;) {
        const uint32_t *entry = s->words.data + at;
        const size_t n = entry[0] >> 16, n_ids = entry[0] & 0xffff;

        put_ref(refs, mask, d9di_bpe_store_hash((const char *)(entry + HEAD_WORDS + n_ids), n), at);
        at += entry_words(n, n_ids);
    }
    free(s->refs);
    s->refs = refs;
    s->mask = mask;
    return D9D_OK;
}

static void forget_all(d9di_bpe_store *s)
{
    memset(s->refs, 0, (s->mask + 1) * sizeof(*s->refs));
    s->words.len = s->n = 0;
}

d9d_status d9di_bpe_store_put(d9di_bpe_store *s, uint64_t hash, const char *text, size_t n,
                              const uint32_t *ids, size_t n_ids)
{
    const size_t words = entry_words(n, n_ids);
    uint32_t *entry;

    if (n > D9DI_BPE_STORE_MAX_BYTES || n_ids == 0 || n_ids > n || words > s->max_words)
        return D9D_OK;
    if (s->words.len + words > s->max_words)
        forget_all(s);
    if (2 * s->n > s->mask)
        D9D_TRY(grow_refs(s));
    D9D_TRY(D9D_VEC_RESERVE(&s->words, words));
    put_ref(s->refs, s->mask, hash, s->words.len);
    entry = s->words.data + s->words.len;
    entry[0] = head_of(n, n_ids);
    memcpy(entry + HEAD_WORDS, ids, n_ids * sizeof(*ids));
    entry[words - 1] = 0;
    memcpy(entry + HEAD_WORDS + n_ids, text, n);
    s->words.len += words;
    s->n++;
    return D9D_OK;
}
