/* minhash.h - MinHash signatures and their bands (Broder 1997; Leskovec et al., chapter 3).
 *
 * Hash k of a shingle x is (a_k x + b_k) mod 2^64 / 2^32, multiply-shift of a 32-bit hash of the
 * shingle (Dietzfelbinger 1996), which vectorises. */
#ifndef D9DI_DATA_FILTER_MINHASH_H
#define D9DI_DATA_FILTER_MINHASH_H

#include "data/filter/text_words.h"

typedef struct d9di_minhash {
    size_t n, bands, rows; /* hashes: n = bands * rows */
    size_t ngram;
    uint64_t *a, *b;
} d9di_minhash;

d9d_status d9di_minhash_init(d9di_minhash *m, size_t bands, size_t rows, size_t ngram,
                             uint64_t seed);
void d9di_minhash_release(d9di_minhash *m);

/* The signature [n] of a text's words, at least one. */
void d9di_minhash_sign(const d9di_minhash *m, const d9di_text_words *w, uint32_t *signature);
/* A key for each band, [bands], never 0: texts that share one share that band. */
void d9di_minhash_keys(const d9di_minhash *m, const uint32_t *signature, uint64_t *keys);

#endif
