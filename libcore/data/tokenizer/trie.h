/* trie.h - a trie (double array) that maps byte strings to numbers, traversed byte by byte.
 *
 * The child of a node for byte c is the cell at base ^ c, if that cell's label is c.  Each node
 * with children has a unique base, so a label identifies the parent:
 *
 *     cell    base (24 bits) | value (24 bits) | flag, label (16 bits)
 */
#ifndef D9DI_DATA_TOKENIZER_TRIE_H
#define D9DI_DATA_TOKENIZER_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/mem.h"

#define D9DI_TRIE_NONE UINT32_C(0xffffff) /* no value */
#define D9DI_TRIE_FREE UINT64_C(0x100)    /* label of a free cell, which no byte has */
#define D9DI_TRIE_FLAG UINT64_C(0x8000)

typedef struct d9di_trie {
    D9D_VEC(uint64_t) entries;
    uint32_t root; /* base of the empty string */
} d9di_trie;       /* zero-initialised may be released */

struct d9di_trie_key {
    const char *text;
    uint32_t n, value;
    bool flag; /* stored with the value; its meaning is the caller's */
};

/* Builds a trie.  Keys are sorted in place; they must be distinct and not empty, with values below
 * D9DI_TRIE_NONE.  ENOTSUP if it needs more than 2^24 cells. */
d9d_status d9di_trie_build(d9di_trie *trie, struct d9di_trie_key *keys, size_t n);
void d9di_trie_release(d9di_trie *trie);

/* The child cell for byte c of the node with this base. */
static inline uint64_t d9di_trie_entry(const d9di_trie *trie, uint32_t base, unsigned char c)
{
    return trie->entries.data[base ^ c];
}
static inline bool d9di_trie_has_label(uint64_t entry, unsigned char c)
{
    return (entry & 0x1ff) == c;
}
static inline uint32_t d9di_trie_value(uint64_t entry)
{
    return (uint32_t)(entry >> 16) & D9DI_TRIE_NONE;
}
static inline uint32_t d9di_trie_base(uint64_t entry)
{
    return (uint32_t)(entry >> 40);
}

#endif
