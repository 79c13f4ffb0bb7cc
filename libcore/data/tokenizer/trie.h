/* trie.h - byte strings with a number each, walked a byte at a time.
 *
 * A double array: the child of a node for byte c is the cell at base ^ c, if that cell's label is
 * c.  Each node with children has a base of its own, so a label is enough to know the parent:
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
#define D9DI_TRIE_FREE UINT64_C(0x100)    /* label of a free cell: no byte's */
#define D9DI_TRIE_FLAG UINT64_C(0x8000)

typedef struct d9di_trie {
    D9D_VEC(uint64_t) entries;
    uint32_t root; /* base of the empty string */
} d9di_trie;       /* zero-initialised may be released */

struct d9di_trie_key {
    const char *text;
    uint32_t n, value;
    bool flag; /* read with the value; what it means is up to the caller */
};

/* Keys are sorted in place; none is empty, no two are equal, values are below D9DI_TRIE_NONE.
 * ENOTSUP when it would have more than 2^24 cells. */
d9d_status d9di_trie_build(d9di_trie *trie, struct d9di_trie_key *keys, size_t n);
void d9di_trie_release(d9di_trie *trie);

/* The cell behind byte c from the node with this base. */
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
