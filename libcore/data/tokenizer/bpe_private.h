/* bpe_private.h - lookup tables that bpe_load.c makes and bpe.c uses. */
#ifndef D9DI_DATA_TOKENIZER_BPE_PRIVATE_H
#define D9DI_DATA_TOKENIZER_BPE_PRIVATE_H

#include "data/tokenizer/bpe.h"

static inline uint64_t d9di_bpe_hash(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* The slot of a pair, or the free slot for it; *tag: its content without the rank.
 */
static inline uint32_t *d9di_bpe_merge_slot(const d9di_bpe *b, uint32_t left, uint32_t right,
                                            uint32_t *tag)
{
    const uint64_t hash = d9di_bpe_hash((uint64_t)left << 32 | right);
    uint64_t at = hash & b->merge_mask;

    *tag = (uint32_t)(hash >> 32) & 0xff000000;
    for (; b->merge_table[at] != 0; at = (at + 1) & b->merge_mask) {
        const struct d9di_bpe_merge *m;

        if ((b->merge_table[at] & 0xff000000) != *tag)
            continue;
        m = &b->merges[(b->merge_table[at] & 0xffffff) - 1];
        if (m->left == left && m->right == right)
            break;
    }
    return &b->merge_table[at];
}

/* The rank of a pair; D9DI_NO_ID if it does not merge. */
static inline uint32_t d9di_bpe_rank(const d9di_bpe *b, uint32_t left, uint32_t right)
{
    uint32_t tag;

    return (*d9di_bpe_merge_slot(b, left, right, &tag) & 0xffffff) - 1;
}

/* How merging the bytes of a token by themselves produces it: the last merge joins `left` and
 * `right`. */
struct d9di_bpe_derivation {
    uint32_t time; /* 0 for a byte, the rank of the last merge + 1, D9DI_BPE_NEVER for others */
    uint32_t left, right;
    uint32_t len;     /* length in bytes */
    uint32_t shorter; /* its longest proper prefix that is a token; D9DI_NO_ID: none */
    /* Filters of the ids that it merges with (d9di_bpe_filter_bit()): only pairs in both filters
     * are looked up. */
    uint32_t as_left, as_right;
    uint32_t unused; /* pads to half a cache line */
};
_Static_assert(sizeof(struct d9di_bpe_derivation) == 32, "half a cache line");
#define D9DI_BPE_NEVER UINT32_MAX

static inline uint32_t d9di_bpe_filter_bit(uint32_t id)
{
    return UINT32_C(1) << (id * UINT32_C(0x9e3779b1) >> 27);
}

enum { D9DI_BPE_PAIRS = 1 << 13 }; /* pairs cached in a scratch */

/* Computes the derivation of each token and whether greedy encoding applies.  If not, `derivation`
 * and the trie stay empty. */
d9d_status d9di_bpe_greedy_prepare(d9di_bpe *b);

/* Encodes a pre-token to at most n ids; *out_n is their number. */
d9d_status d9di_bpe_greedy_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const char *pretoken,
                                  size_t n, uint32_t *ids, size_t *out_n);

#endif
