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
#define D9DI_MAX_VOCAB UINT32_C(0xffffff) /* an id and a mark for none fit 24 bits */

#define D9DI_BPE_SLACK 16 /* bytes that may be read behind what a token stands for */

/* What two neighbours merge to; ranks are the places in the list of merges. */
struct d9di_bpe_merge {
    uint32_t left, right;
    uint32_t id; /* D9DI_NO_ID: the pair is given again further down, where it counts */
};

typedef struct d9di_bpe {
    /* Tokens by id, spelled as in the file; text NULL where an id is unused. */
    struct d9di_bpe_token {
        const char *text;
        uint32_t len;
        bool spelled; /* in the alphabet of bytes throughout */
    } * tokens;
    uint32_t n_tokens;  /* the largest id plus one */
    uint32_t n_entries; /* entries of the vocabulary */
    d9d_arena arena;    /* texts */

    uint32_t *vocab_table; /* open addressing: part of the hash << 24 | id + 1, 0 free */
    uint64_t vocab_mask;
    struct d9di_bpe_merge *merges; /* by rank */
    uint32_t n_merges;
    uint32_t *merge_table; /* open addressing: part of the hash << 24 | rank + 1, 0 free */
    uint64_t merge_mask;

    char *bytes;           /* what the tokens stand for, one behind the other */
    uint32_t *byte_offset; /* where that of an id begins; n_tokens + 1 of them */

    bool is_greedy;                         /* bpe_greedy.c can tell the tokens of a piece: */
    d9di_trie trie;                         /* ids by the bytes they stand for */
    struct d9di_bpe_derivation *derivation; /* by id */

    /* A piece begins as bytes, or (`chars`) as characters; those that are no tokens as their bytes
     * (`byte_fallback`), as `unk`, or not at all when that is D9DI_NO_ID. */
    bool chars, byte_fallback, fuse_unk;
    uint32_t byte_id[256]; /* of a byte, or of a byte to fall back to; D9DI_NO_ID: none */
    uint32_t unk;
    bool ignore_merges;
} d9di_bpe; /* embedded; zero-initialised may be released */

/* `chars`: tokens are spelled in characters, not in the alphabet of bytes. */
d9d_status d9di_bpe_init(const json_t *model, const char *where, bool chars, d9di_bpe *out);
void d9di_bpe_release(d9di_bpe *b);

/* Whether a token's text is that of a byte to fall back to: "<0x0A>". */
bool d9di_bpe_fallback_byte(const char *text, size_t n, unsigned char *byte);

/* D9DI_NO_ID when the vocabulary lacks it. */
uint32_t d9di_bpe_find_token(const d9di_bpe *b, const char *text, size_t n);

/* Buffers of one thread; what is in them is bpe.c's affair. */
typedef struct d9di_bpe_scratch {
    d9di_bpe_cache short_cache, long_cache; /* pieces merged before */
    D9D_VEC(struct d9di_bpe_symbol) symbols;
    D9D_VEC(struct d9di_bpe_candidate) heap;
    uint64_t *pairs;             /* tokens that were found to go together, or not to */
    D9D_VEC(uint64_t) dead_ends; /* bits */
    d9d_buf spelled;
} d9di_bpe_scratch;
/* Room for 2^log2_words short words, and a quarter of that for longer ones. */
d9d_status d9di_bpe_scratch_init(d9di_bpe_scratch *s, unsigned log2_words);
void d9di_bpe_scratch_release(d9di_bpe_scratch *s);

/* How many bytes of text[0, n), which is encoded to `id` and what follows, that id is of; *skip
 * bytes before it are of none. */
size_t d9di_bpe_token_bytes(const d9di_bpe *b, const char *text, size_t n, uint32_t id,
                            size_t *skip);

/* Append the ids of some pieces; bytes before `end` may be read. */
d9d_status d9di_bpe_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const d9di_pretoken *pretokens,
                           size_t n, const char *end, d9d_token_ids *out);

#endif
