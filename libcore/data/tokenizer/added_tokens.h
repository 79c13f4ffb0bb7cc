/* added_tokens.h - added tokens: strings that are one token wherever they occur.
 *
 * A set is searched from left to right.  The longest token at the leftmost position wins, as in
 * HF's Aho-Corasick automaton.  There are two sets: tokens matched in the raw text, and tokens
 * ("normalized") matched in the normalised text. */
#ifndef D9DI_DATA_TOKENIZER_ADDED_TOKENS_H
#define D9DI_DATA_TOKENIZER_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/mem.h"

typedef struct d9di_added_tokens_entry {
    uint32_t id;
    bool special, lstrip, rstrip, single_word;
} d9di_added_tokens_entry;

/* A trie node for one byte; links are index + 1, 0 is none. */
struct d9di_added_tokens_node {
    uint32_t sibling, child;
    uint32_t token; /* token that ends here */
    unsigned char byte;
};

typedef struct d9di_added_tokens {
    D9D_VEC(struct d9di_added_tokens_node) nodes;
    uint32_t root[256]; /* root nodes by first byte */
    unsigned n_firsts;  /* number of distinct first bytes */
    char first;         /* the first byte that was added last */
    D9D_VEC(d9di_added_tokens_entry) tokens;
} d9di_added_tokens; /* zero-initialised is empty */

/* Adds a token.  If two tokens have the same search text, the first counts. (HF takes either, by
 * the order of a hash table.) */
d9d_status d9di_added_tokens_add(d9di_added_tokens *set, const char *text, size_t n,
                                 d9di_added_tokens_entry token);
void d9di_added_tokens_release(d9di_added_tokens *set);

/* Splits text[0, n) at the tokens.  Calls `fn` in order for each stretch between tokens (token
 * NULL, never empty) and for each token (with an empty stretch, after it).  A token that `accepts`
 * (may be NULL) rejects is ordinary text. */
typedef d9d_status (*d9di_added_tokens_fn)(void *arg, const d9di_added_tokens_entry *token,
                                           const char *text, size_t n);
typedef bool (*d9di_added_tokens_filter)(const void *arg, const d9di_added_tokens_entry *token,
                                         const char *text, size_t n);
d9d_status d9di_added_tokens_split(const d9di_added_tokens *set, const char *text, size_t n,
                                   d9di_added_tokens_filter accepts, d9di_added_tokens_fn fn,
                                   void *arg);

#endif
