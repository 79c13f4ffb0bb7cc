/* added_tokens.h - added tokens: pieces of text that are one token wherever they stand.
 *
 * A set is searched from left to right, the longest token at the leftmost place
 * winning, as HF's Aho-Corasick automaton does.  There are two sets: tokens matched in
 * the raw text and tokens ("normalized") matched in the normalised one. */
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

/* A byte of a trie; links are index + 1, 0 is none. */
struct d9di_added_tokens_node {
    uint32_t sibling, child;
    uint32_t token; /* that ends here */
    unsigned char byte;
};

typedef struct d9di_added_tokens {
    D9D_VEC(struct d9di_added_tokens_node) nodes;
    uint32_t root[256]; /* first nodes, by their byte */
    unsigned n_firsts;  /* how many of them there are, */
    char first;         /* and the last that was added */
    D9D_VEC(d9di_added_tokens_entry) tokens;
} d9di_added_tokens; /* zero-initialised is empty */

/* Add; where two tokens are looked for as one text, the first counts.  (HF takes either, by
 * the order of a hash table.) */
d9d_status d9di_added_tokens_add(d9di_added_tokens *set, const char *text, size_t n,
                                 d9di_added_tokens_entry token);
void d9di_added_tokens_release(d9di_added_tokens *set);

/* Cut text[0, n) at the tokens: `fn` gets, in order, each stretch between them (token
 * NULL, never empty) and each token (with an empty stretch, behind it).  Tokens are text like any
 * other where `accepts`, unless it is NULL, says so of their bytes. */
typedef d9d_status (*d9di_added_tokens_fn)(void *arg, const d9di_added_tokens_entry *token,
                                           const char *text, size_t n);
typedef bool (*d9di_added_tokens_filter)(const void *arg, const char *text, size_t n);
d9d_status d9di_added_tokens_split(const d9di_added_tokens *set, const char *text, size_t n,
                                   d9di_added_tokens_filter accepts, d9di_added_tokens_fn fn,
                                   void *arg);

#endif
