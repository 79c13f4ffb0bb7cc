/* bpe_cache.c - see bpe_cache.h. */
#include "data/tokenizer/bpe_cache.h"

#include <stdlib.h>

enum { CACHE_LINE = 64 };

d9d_status d9di_bpe_cache_init(d9di_bpe_cache *w, unsigned words, unsigned log2_slots)
{
    const unsigned log2_buckets = log2_slots > 0 ? log2_slots - 1 : 0;
    const size_t bytes = ((size_t)4 * 8 * words) << log2_buckets;

    w->mask = (UINT64_C(1) << log2_buckets) - 1;
    w->slots = aligned_alloc(CACHE_LINE, bytes);
    if (!w->slots)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a cache of %zu bytes", bytes);
    memset(w->slots, 0, bytes); /* zero marks free slots: no key is zero, since lengths are not */
    return D9D_OK;
}

void d9di_bpe_cache_release(d9di_bpe_cache *w)
{
    free(w->slots);
    w->slots = NULL;
}

void d9di_bpe_cache_put(uint64_t *bucket, const uint64_t *key, unsigned words, const uint32_t *ids,
                        size_t n)
{
    uint32_t entry[2 * D9DI_BPE_CACHE_LONG] = {0};

    if (n == 0 || n > 2 * words)
        return;
    memcpy(entry, ids, n * sizeof(*ids));
    entry[2 * words - 1] |= (uint32_t)n << 24;
    memcpy(bucket + 2 * words, bucket, 16 * words);
    memcpy(bucket, key, 8 * words);
    memcpy(bucket + words, entry, 8 * words);
}
