/* bpe.h - the "model" of a tokenizer.json: a vocabulary and ranked merges. */
#ifndef D9DI_DATA_TOKENIZER_BPE_H
#define D9DI_DATA_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/bpe_cache.h"
#include "data/tokenizer/bpe_store.h"
#include "data/tokenizer/pretok.h"
#include "data/tokenizer/trie.h"
#include "data/tokenizer/vocab.h"

#define D9DI_BPE_SLACK 16 /* readable bytes after a token's bytes */
#define D9DI_BPE_AFFIX 31 /* bytes of a prefix or suffix of symbols */

/* A merge of two neighbours; its rank is its index in the list of merges. */
struct d9di_bpe_merge {
    uint32_t left, right;
    uint32_t id; /* D9DI_NO_ID: a later duplicate of the pair counts */
};

typedef struct d9di_bpe {
    d9di_vocab vocab;
    struct d9di_bpe_merge *merges; /* by rank */
    uint32_t n_merges;
    uint32_t *merge_table; /* open addressing: part of the hash << 24 | rank + 1, 0 free */
    uint64_t merge_mask;

    char *bytes;           /* the bytes of all tokens, concatenated */
    uint32_t *byte_offset; /* [n_tokens + 1] offset of each id's bytes */

    bool is_greedy;                         /* greedy encoding (bpe_greedy.c) applies: */
    d9di_trie trie;                         /* ids by their bytes */
    struct d9di_bpe_derivation *derivation; /* by id */

    /* The initial symbols of a pre-token are bytes, or (`chars`) characters.  A character that is
     * not a token becomes its bytes (`byte_fallback`, if all are tokens), `unk`, or nothing if that
     * is D9DI_NO_ID. */
    bool chars, byte_fallback, fuse_unk;
    uint32_t byte_id[256]; /* id of a byte, or of a fallback byte; D9DI_NO_ID: none */
    uint32_t unk;
    /* What is written before all symbols but the first, and behind the last; "" mostly. */
    char prefix[D9DI_BPE_AFFIX + 1], suffix[D9DI_BPE_AFFIX + 1];
    bool affixed; /* one of them is not "" */
    bool ignore_merges;
} d9di_bpe; /* embedded; zero-initialised may be released */

/* Reads the model.  `chars`: tokens are spelled in characters, not in the byte alphabet. */
d9d_status d9di_bpe_init(const json_t *model, const char *where, bool chars, d9di_bpe *out);
void d9di_bpe_release(d9di_bpe *b);

/* Buffers of one thread. */
typedef struct d9di_bpe_scratch {
    d9di_bpe_cache short_cache, long_cache; /* cached pre-tokens */
    d9di_bpe_store store;                   /* and those that do not fit */
    D9D_VEC(struct d9di_bpe_symbol) symbols;
    D9D_VEC(struct d9di_bpe_candidate) heap;
    uint64_t *pairs;             /* cache of valid and invalid token pairs */
    D9D_VEC(uint64_t) dead_ends; /* bits */
    d9d_buf spelled;
} d9di_bpe_scratch;
/* Allocates a cache for 2^log2_slots short pre-tokens, and a quarter of that for longer ones; they
 * become 2^log2_max and a quarter of that where a text has so many. */
d9d_status d9di_bpe_scratch_init(d9di_bpe_scratch *s, unsigned log2_slots, unsigned log2_max);
void d9di_bpe_scratch_release(d9di_bpe_scratch *s);

/* Appends the ids of some pre-tokens; bytes before `end` may be read. */
d9d_status d9di_bpe_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const d9di_pretoken *pretokens,
                           size_t n, const char *end, d9d_token_ids *out);

#endif
