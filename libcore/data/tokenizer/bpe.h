/* bpe.h - the "model" of a tokenizer.json: a vocabulary and ranked merges. */
#ifndef D9DI_DATA_TOKENIZER_BPE_H
#define D9DI_DATA_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/bpe_cache.h"
#include "data/tokenizer/pretok.h"
#include "data/tokenizer/trie.h"

#define D9DI_NO_ID     UINT32_MAX
#define D9DI_MAX_VOCAB UINT32_C(0xffffff) /* an id, and a value for "none", fit 24 bits */

#define D9DI_BPE_SLACK 16 /* readable bytes after a token's bytes */

/* A merge of two neighbours; its rank is its index in the list of merges. */
struct d9di_bpe_merge {
    uint32_t left, right;
    uint32_t id; /* D9DI_NO_ID: a later duplicate of the pair counts */
};

typedef struct d9di_bpe {
    /* Tokens by id, spelled as in the file; text is NULL for unused ids. */
    struct d9di_bpe_token {
        const char *text;
        uint32_t len;
        bool spelled; /* spelled in the byte alphabet throughout */
    } * tokens;
    uint32_t n_tokens;  /* the largest id plus one */
    uint32_t n_entries; /* entries of the vocabulary */
    d9d_arena arena;    /* holds the texts */

    uint32_t *vocab_table; /* open addressing: part of the hash << 24 | id + 1, 0 free */
    uint64_t vocab_mask;
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
     * not a token becomes its bytes (`byte_fallback`), `unk`, or nothing if that is D9DI_NO_ID. */
    bool chars, byte_fallback, fuse_unk;
    uint32_t byte_id[256]; /* id of a byte, or of a fallback byte; D9DI_NO_ID: none */
    uint32_t unk;
    bool ignore_merges;
} d9di_bpe; /* embedded; zero-initialised may be released */

/* Reads the model.  `chars`: tokens are spelled in characters, not in the byte alphabet. */
d9d_status d9di_bpe_init(const json_t *model, const char *where, bool chars, d9di_bpe *out);
void d9di_bpe_release(d9di_bpe *b);

/* True if a token's text is that of a fallback byte: "<0x0A>". */
bool d9di_bpe_fallback_byte(const char *text, size_t n, unsigned char *byte);

/* The id of a token; D9DI_NO_ID if the vocabulary lacks it. */
uint32_t d9di_bpe_find_token(const d9di_bpe *b, const char *text, size_t n);

/* Buffers of one thread; private to bpe.c. */
typedef struct d9di_bpe_scratch {
    d9di_bpe_cache short_cache, long_cache; /* cached pre-tokens */
    D9D_VEC(struct d9di_bpe_symbol) symbols;
    D9D_VEC(struct d9di_bpe_candidate) heap;
    uint64_t *pairs;             /* cache of valid and invalid token pairs */
    D9D_VEC(uint64_t) dead_ends; /* bits */
    d9d_buf spelled;
} d9di_bpe_scratch;
/* Allocates a cache for 2^log2_words short pre-tokens, and a quarter of that for longer ones. */
d9d_status d9di_bpe_scratch_init(d9di_bpe_scratch *s, unsigned log2_words);
void d9di_bpe_scratch_release(d9di_bpe_scratch *s);

/* Number of bytes of text[0, n) that `id` covers, where the text is encoded to `id` and what
 * follows.  *skip: bytes before them that no token covers. */
size_t d9di_bpe_token_bytes(const d9di_bpe *b, const char *text, size_t n, uint32_t id,
                            size_t *skip);

/* Appends the ids of some pre-tokens; bytes before `end` may be read. */
d9d_status d9di_bpe_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const d9di_pretoken *pretokens,
                           size_t n, const char *end, d9d_token_ids *out);

#endif
