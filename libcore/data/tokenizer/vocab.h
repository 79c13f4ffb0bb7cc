/* vocab.h - the tokens of a model: by id, and by their text. */
#ifndef D9DI_DATA_TOKENIZER_VOCAB_H
#define D9DI_DATA_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"

#define D9DI_NO_ID     UINT32_MAX
#define D9DI_MAX_VOCAB UINT32_C(0xffffff) /* an id, and a value for "none", fit 24 bits */

typedef struct d9di_vocab {
    /* Tokens by id, spelled as in the file; text is NULL for unused ids. */
    struct d9di_vocab_token {
        const char *text;
        uint32_t len;
        bool spelled; /* BPE: spelled in the byte alphabet throughout */
    } * tokens;
    uint32_t n_tokens;  /* the largest id plus one */
    uint32_t n_entries; /* entries of the vocabulary */
    d9d_arena arena;    /* holds the texts */

    uint32_t *table; /* open addressing: part of the hash << 24 | id + 1, 0 free */
    uint64_t mask;
} d9di_vocab; /* zero-initialised is empty, and may be released */

/* Reads {"token": id, ...}.  EFORMAT if two tokens have one id. */
d9d_status d9di_vocab_load(json_t *vocab, const char *where, d9di_vocab *out);
/* Reads [["token", score], ...], where a token's id is its index; *scores has one for each, and is
 * the caller's to free.  Of equal tokens the last counts. */
d9d_status d9di_vocab_load_scored(const json_t *vocab, const char *where, d9di_vocab *out,
                                  double **scores);
void d9di_vocab_release(d9di_vocab *v);

/* The id of a token; D9DI_NO_ID if the vocabulary lacks it. */
uint32_t d9di_vocab_find(const d9di_vocab *v, const char *text, size_t n);

/* The id of the fallback token of a byte, "<0x0A>"; D9DI_NO_ID if there is none. */
uint32_t d9di_vocab_find_byte(const d9di_vocab *v, unsigned char byte);
/* True if a token's text is that of a fallback byte. */
bool d9di_vocab_is_byte(const char *text, size_t n, unsigned char *byte);

/* The size of a hash table of n entries. */
uint64_t d9di_vocab_table_size(uint64_t n);

#endif
