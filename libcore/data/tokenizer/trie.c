/* trie.c - see trie.h.
 *
 * Keys are sorted, so the children of a node are consecutive ranges of the list.  The builder looks
 * for a base that puts the first child into a free cell of the last blocks of 256.  Cells that stay
 * free before these blocks remain unused.
 */
#include "data/tokenizer/trie.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 256,
    BLOCKS_TRIED = 4,
    MAX_ENTRIES = 1 << 24,
    LEAF = 0 /* a block without labels */
};

struct builder {
    d9di_trie *trie;
    D9D_VEC(bool) is_base;
    size_t first_free; /* cells before it are not tried */
    const struct d9di_trie_key *keys;
};

/* Keys [from, to) share their first `depth` bytes; they are children of `entry`. */
struct node {
    size_t from, to, entry;
    uint32_t depth;
};

static int compare_keys(const void *a, const void *b)
{
    const struct d9di_trie_key *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);

    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static d9d_status add_block(struct builder *m)
{
    size_t i;

    if (m->trie->entries.len + BLOCK > MAX_ENTRIES)
        return D9D_FAIL(D9D_ENOTSUP, "a vocabulary with more than %d nodes", MAX_ENTRIES);
    D9D_TRY(D9D_VEC_RESERVE(&m->trie->entries, BLOCK));
    D9D_TRY(D9D_VEC_RESERVE(&m->is_base, BLOCK));
    for (i = 0; i < BLOCK; i++) {
        m->trie->entries.data[m->trie->entries.len++] = D9DI_TRIE_FREE;
        m->is_base.data[m->is_base.len++] = false;
    }
    return D9D_OK;
}

static bool base_fits(const struct builder *m, uint32_t base, const unsigned char *labels, size_t n)
{
    if (m->is_base.data[base])
        return false;
    for (size_t i = 0; i < n; i++)
        if (m->trie->entries.data[base ^ labels[i]] != D9DI_TRIE_FREE)
            return false;
    return true;
}

/* Finds a base whose cells for `labels` are free. */
static d9d_status find_base(struct builder *m, const unsigned char *labels, size_t n, uint32_t *out)
{
    const size_t end = m->trie->entries.len;
    uint32_t base = 0;
    size_t i;

    if (end > BLOCKS_TRIED * BLOCK && m->first_free < end - BLOCKS_TRIED * BLOCK)
        m->first_free = end - BLOCKS_TRIED * BLOCK;
    while (m->first_free < end && m->trie->entries.data[m->first_free] != D9DI_TRIE_FREE)
        m->first_free++;
    for (i = m->first_free; i < end; i++) {
        if (m->trie->entries.data[i] != D9DI_TRIE_FREE)
            continue;
        base = (uint32_t)i ^ labels[0];
        if (base_fits(m, base, labels, n))
            break;
    }
    if (i >= end) {
        base = (uint32_t)end;
        D9D_TRY(add_block(m));
    }
    m->is_base.data[base] = true;
    *out = base;
    return D9D_OK;
}

/* Makes the entry of a child.  A key that ends at depth + 1 is the first of the child's range. */
static uint64_t make_entry(const struct d9di_trie_key *first, uint32_t depth, unsigned char label)
{
    const bool ends = first->n == depth + 1;

    return (uint64_t)(ends ? first->value : D9DI_TRIE_NONE) << 16 | label |
           (ends && first->flag ? D9DI_TRIE_FLAG : 0);
}

static size_t list_children(const struct builder *m, const struct node *node, unsigned char *labels,
                            size_t *starts)
{
    size_t n = 0;

    for (size_t i = node->from; i < node->to; i++) {
        const unsigned char c = (unsigned char)m->keys[i].text[node->depth];

        if (n == 0 || labels[n - 1] != c) {
            starts[n] = i;
            labels[n++] = c;
        }
    }
    starts[n] = node->to;
    return n;
}

static d9d_status build_nodes(struct builder *m, size_t n)
{
    D9D_VEC(struct node) todo = {0};
    d9d_status st;

    D9D_TRY_OR(st, add_block(m), out);
    D9D_TRY_OR(st, D9D_VEC_PUSH(&todo, (struct node){0, n, SIZE_MAX, 0}), out);
    while (todo.len > 0) {
        const struct node node = todo.data[--todo.len];
        unsigned char labels[256];
        size_t starts[257], i;
        uint32_t base = LEAF;
        const size_t n_children = list_children(m, &node, labels, starts);

        if (n_children > 0)
            D9D_TRY_OR(st, find_base(m, labels, n_children, &base), out);
        if (node.entry == SIZE_MAX)
            m->trie->root = base;
        else
            m->trie->entries.data[node.entry] |= (uint64_t)base << 40;
        for (i = n_children; i-- > 0;) {
            const struct d9di_trie_key *first = &m->keys[starts[i]];
            const size_t entry = base ^ labels[i];

            m->trie->entries.data[entry] = make_entry(first, node.depth, labels[i]);
            D9D_TRY_OR(st,
                       D9D_VEC_PUSH(&todo, (struct node){starts[i] + (first->n == node.depth + 1),
                                                         starts[i + 1], entry, node.depth + 1}),
                       out);
        }
    }
out:
    D9D_VEC_RELEASE(&todo);
    return st;
}

d9d_status d9di_trie_build(d9di_trie *trie, struct d9di_trie_key *keys, size_t n)
{
    struct builder m = {.trie = trie, .keys = keys, .first_free = BLOCK};
    d9d_status st;

    if (n > 0)
        qsort(keys, n, sizeof(*keys), compare_keys);
    st = build_nodes(&m, n);
    D9D_VEC_RELEASE(&m.is_base);
    return st;
}

void d9di_trie_release(d9di_trie *trie)
{
    D9D_VEC_RELEASE(&trie->entries);
}
