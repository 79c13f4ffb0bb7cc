/* bpe_store.h - the ids of pre-tokens that have too many bytes or ids for a slot of the cache
 * (bpe_cache.h), for one thread.
 *
 * An open hash table of references into one array, where each entry is its ids and its bytes.  The
 * table grows up to a limit; an entry that would exceed it empties the store.
 */
#ifndef D9DI_DATA_TOKENIZER_BPE_STORE_H
#define D9DI_DATA_TOKENIZER_BPE_STORE_H

#include "d9d/base/mem.h"

enum { D9DI_BPE_STORE_MAX_BYTES = 256 }; /* longest pre-token that is kept */

typedef struct d9di_bpe_store {
    uint64_t *refs; /* [mask + 1]: hash above, place of the entry in `words` below; 0: free */
    uint64_t mask;
    size_t n;
    D9D_VEC(uint32_t) words; /* entries */
    size_t max_words;
} d9di_bpe_store; /* zero-initialised may be released */

/* Keeps at most max_words words of 32 bits. */
d9d_status d9di_bpe_store_init(d9di_bpe_store *s, size_t max_words);
void d9di_bpe_store_release(d9di_bpe_store *s);

uint64_t d9di_bpe_store_hash(const char *text, size_t n);
/* Writes the ids of text[0, n) to `ids`, which has n elements; returns how many, 0 if it is not
 * there. */
size_t d9di_bpe_store_get(const d9di_bpe_store *s, uint64_t hash, const char *text, size_t n,
                          uint32_t *ids);
/* Keeps a text that is not there, if it is short enough. */
d9d_status d9di_bpe_store_put(d9di_bpe_store *s, uint64_t hash, const char *text, size_t n,
                              const uint32_t *ids, size_t n_ids);

#endif
