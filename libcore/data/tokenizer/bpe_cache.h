/* bpe_cache.h - a cache of recent pre-tokens and their ids, for one thread.
 *
 * Two tables of the same kind serve pre-tokens of up to 15 and up to 31 bytes.  A slot is a key of
 * `words` 64-bit words and as many bytes of ids.  A bucket is two slots, the newer one first (2-way
 * set associative):
 *
 *     key     the bytes, zeros, and the length in the last byte
 *     ids     2 * words ids; their number is in the top byte of the last
 *
 * A table that drops pre-tokens doubles, up to a limit.  What does not fit a slot is kept elsewhere
 * (bpe_store.h).
 */
#ifndef D9DI_DATA_TOKENIZER_BPE_CACHE_H
#define D9DI_DATA_TOKENIZER_BPE_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "d9d/base/status.h"

enum {
    D9DI_BPE_CACHE_SHORT = 2,
    D9DI_BPE_CACHE_LONG = 4,
    D9DI_BPE_CACHE_MAX_BYTES = 8 * D9DI_BPE_CACHE_LONG - 1
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the last byte is the highest");

typedef struct d9di_bpe_cache {
    uint64_t *slots;
    uint64_t mask;     /* mask of bucket numbers */
    uint64_t max_mask; /* the same of the largest table */
    uint64_t dropped;  /* pre-tokens, since the table has this size */
} d9di_bpe_cache;      /* zero-initialised may be released */

/* Allocates 2^log2_slots slots, at least two, which may become 2^log2_max. */
d9d_status d9di_bpe_cache_init(d9di_bpe_cache *w, unsigned words, unsigned log2_slots,
                               unsigned log2_max);
void d9di_bpe_cache_release(d9di_bpe_cache *w);

/* Makes the key of text[0, n), n < 8 * words.  Bytes before `end` may be read. */
static inline void d9di_bpe_cache_key(uint64_t *key, unsigned words, const char *text, size_t n,
                                      const char *end)
{
    static const unsigned char ones[2 * 8 * D9DI_BPE_CACHE_LONG] = {
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    const unsigned char *mask = ones + 8 * D9DI_BPE_CACHE_LONG - n;
    char copy[8 * D9DI_BPE_CACHE_LONG];

    if (__builtin_expect((size_t)(end - text) < 8 * words, 0)) {
        memset(copy, 0, sizeof(copy));
        memcpy(copy, text, n);
        text = copy;
    }
    for (unsigned i = 0; i < words; i++) {
        uint64_t m;

        memcpy(&key[i], text + 8 * i, sizeof(m));
        memcpy(&m, mask + 8 * i, sizeof(m));
        key[i] &= m;
    }
    key[words - 1] |= (uint64_t)n << 56;
}

static inline uint64_t d9di_bpe_cache_mix(uint64_t a, uint64_t b)
{
    const unsigned __int128 product =
        (unsigned __int128)(a ^ UINT64_C(0x9e3779b97f4a7c15)) * (b ^ UINT64_C(0xd1b54a32d192ed03));

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The bucket of a key, which is also prefetched. */
static inline uint64_t *d9di_bpe_cache_bucket(const d9di_bpe_cache *w, const uint64_t *key,
                                              unsigned words)
{
    uint64_t hash = d9di_bpe_cache_mix(key[0], key[1]), *bucket;

    if (words == D9DI_BPE_CACHE_LONG)
        hash = d9di_bpe_cache_mix(key[2] ^ hash, key[3]);
    bucket = w->slots + (hash & w->mask) * 4 * words;
    __builtin_prefetch(bucket);
    return bucket;
}

static inline bool d9di_bpe_cache_equal(const uint64_t *slot, const uint64_t *key, unsigned words)
{
    uint64_t diff = 0;

    for (unsigned i = 0; i < words; i++)
        diff |= slot[i] ^ key[i];
    return diff == 0;
}

/* Writes the ids of `key` to ids[0, 2 * words); returns how many count, 0 on a miss. */
static inline size_t d9di_bpe_cache_get(const uint64_t *bucket, const uint64_t *key, unsigned words,
                                        uint32_t *ids)
{
    const uint64_t *slot = bucket;
    size_t n;

    if (!d9di_bpe_cache_equal(slot, key, words)) {
        slot += 2 * words;
        if (!d9di_bpe_cache_equal(slot, key, words))
            return 0;
    }
    memcpy(ids, slot + words, 8 * words);
    n = ids[2 * words - 1] >> 24;
    ids[2 * words - 1] &= 0xffffff;
    return n;
}

/* Stores ids[0, n) in place of the older slot.  False: they do not fit. */
bool d9di_bpe_cache_put(d9di_bpe_cache *w, uint64_t *bucket, const uint64_t *key, unsigned words,
                        const uint32_t *ids, size_t n);

/* Doubles a table that dropped many pre-tokens, where there is memory.  Its buckets move. */
void d9di_bpe_cache_grow(d9di_bpe_cache *w, unsigned words);
static inline void d9di_bpe_cache_fit(d9di_bpe_cache *w, unsigned words)
{
    if (__builtin_expect(w->dropped > w->mask / 4 && w->mask < w->max_mask, 0))
        d9di_bpe_cache_grow(w, words);
}

#endif
