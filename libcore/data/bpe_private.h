/* bpe_private.h - what bpe_load.c makes and bpe.c looks up. */
#ifndef D9DI_DATA_BPE_PRIVATE_H
#define D9DI_DATA_BPE_PRIVATE_H

#include "data/bpe.h"

static inline uint64_t d9di_bpe_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* The slot of a pair, or the free one where it would go. */
static inline struct d9di_merge *d9di_bpe_slot(const d9di_bpe *b, uint64_t pair)
{
    uint64_t at = d9di_bpe_mix(pair) & b->merge_mask;

    while (b->merges[at].id != D9DI_NO_ID && b->merges[at].pair != pair)
        at = (at + 1) & b->merge_mask;
    return &b->merges[at];
}

#endif
