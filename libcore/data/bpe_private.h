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

/* How a token comes about when the bytes it stands for are merged by themselves: its last merge
 * joins `left` and `right`. */
struct d9di_bpe_made {
    uint32_t time; /* 0 for a byte, the rank of the last merge + 1, D9DI_BPE_NEVER for others */
    uint32_t left, right;
    uint32_t len;     /* bytes */
    uint32_t shorter; /* the longest other token that it begins with; D9DI_NO_ID: none */
    /* Ids that it merges with, as d9di_bpe_bit(): no pair is looked up that is not in both sets. */
    uint32_t as_left, as_right;
    uint32_t unused; /* half a cache line */
};
_Static_assert(sizeof(struct d9di_bpe_made) == 32, "half a cache line");
#define D9DI_BPE_NEVER UINT32_MAX

static inline uint32_t d9di_bpe_bit(uint32_t id)
{
    return UINT32_C(1) << (id * UINT32_C(0x9e3779b1) >> 27);
}

/* Find out how tokens are made and whether pieces can be walked; `made` and the trie are left out
 * when they cannot. */
d9d_status d9di_bpe_learn(d9di_bpe *b);

/* The ids of a piece, at most n of them, into `ids`; how many in *out_n. */
d9d_status d9di_bpe_walk(const d9di_bpe *b, d9di_bpe_scratch *s, const char *piece, size_t n,
                         uint32_t *ids, size_t *out_n);

#endif
