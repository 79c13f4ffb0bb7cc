/* bpe_cache.c - see bpe_cache.h. */
#include "data/tokenizer/bpe_cache.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { CACHE_LINE = 64, HUGE_PAGE = 2 << 20 };

/* Zero marks free slots: no key is zero, since lengths are not.  NULL: no memory. */
static uint64_t *alloc_slots(unsigned words, uint64_t mask)
{
    const size_t bytes = (mask + 1) * 4 * 8 * words;
    uint64_t *slots = aligned_alloc(bytes < HUGE_PAGE ? CACHE_LINE : HUGE_PAGE, bytes);

    if (slots == NULL)
        return NULL;
    if (bytes >= HUGE_PAGE)
        (void)madvise(slots, bytes, MADV_HUGEPAGE); /* a hint */
    memset(slots, 0, bytes);
    return slots;
}

static uint64_t mask_of(unsigned log2_slots)
{
    return (UINT64_C(1) << (log2_slots > 0 ? log2_slots - 1 : 0)) - 1;
}

d9d_status d9di_bpe_cache_init(d9di_bpe_cache *w, unsigned words, unsigned log2_slots,
                               unsigned log2_max)
{
    const uint64_t mask = mask_of(log2_slots);

    *w = (d9di_bpe_cache){alloc_slots(words, mask), mask, mask_of(log2_max), 0};
    return w->slots != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "no memory for a cache of %zu pre-tokens", 2 * (mask + 1));
}

void d9di_bpe_cache_release(d9di_bpe_cache *w)
{
    free(w->slots);
    w->slots = NULL;
}

static bool is_used(const uint64_t *slot, unsigned words)
{
    return slot[words - 1] >> 56 != 0;
}

/* A bucket's slots are the keys and ids of the newer, then of the older pre-token. */
static void push_slot(uint64_t *bucket, unsigned words, const uint64_t *key, const void *ids)
{
    memcpy(bucket + 2 * words, bucket, 16 * words);
    memcpy(bucket, key, 8 * words);
    memcpy(bucket + words, ids, 8 * words);
}

bool d9di_bpe_cache_put(d9di_bpe_cache *w, uint64_t *bucket, const uint64_t *key, unsigned words,
                        const uint32_t *ids, size_t n)
{
    uint32_t entry[2 * D9DI_BPE_CACHE_LONG] = {0};

    if (n == 0 || n > 2 * words)
        return false;
    memcpy(entry, ids, n * sizeof(*ids));
    entry[2 * words - 1] |= (uint32_t)n << 24;
    w->dropped += is_used(bucket + 2 * words, words);
    push_slot(bucket, words, key, entry);
    return true;
}

void d9di_bpe_cache_grow(d9di_bpe_cache *w, unsigned words)
{
    d9di_bpe_cache big = {.mask = 2 * w->mask + 1, .max_mask = w->max_mask};

    w->dropped = 0;
    big.slots = alloc_slots(words, big.mask);
    if (big.slots == NULL)
        return;
    for (uint64_t i = 0; i <= w->mask; i++)
        for (int older = 1; older >= 0; older--) {
            const uint64_t *slot = w->slots + i * 4 * words + (older ? 2 * words : 0);

            if (is_used(slot, words))
                push_slot(d9di_bpe_cache_bucket(&big, slot, words), words, slot, slot + words);
        }
    free(w->slots);
    *w = big;
}
