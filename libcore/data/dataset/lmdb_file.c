/* lmdb_file.c - see lmdb_file.h. */
#include "data/dataset/lmdb_file.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "LMDB writes the processor's own order");

enum { BRANCH = 0x01, LEAF = 0x02, OVERFLOW = 0x04, META = 0x08, LEAF2 = 0x20 };
enum { BIG_DATA = 0x01, SUB_DATA = 0x02, DUP_DATA = 0x04 };
enum { HEADER = 16, NODE = 8, MIN_PAGE = 512, MAX_PAGE = 65536, MAX_DEPTH = 32 };
#define MAGIC   UINT32_C(0xbeefc0de)
#define NO_PAGE UINT64_MAX

/* As stored by LMDB. */
struct record {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
};
struct meta {
    uint32_t magic, version;
    uint64_t address, map_size;
    struct record free, main;
    uint64_t last_page, transaction;
};
_Static_assert(sizeof(struct record) == 48 && sizeof(struct meta) == 136, "LMDB's layout");

struct node {
    const unsigned char *key, *data;
    size_t key_bytes, data_bytes;
    uint64_t child; /* child page of a branch node */
    uint16_t flags;
};

static uint16_t u16_at(const unsigned char *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t u32_at(const unsigned char *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t u64_at(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* --- opening ------------------------------------------------------------------------------- */

static d9d_status read_meta(const d9di_lmdb *db, size_t at, struct meta *out)
{
    if (at > db->bytes || db->bytes - at < HEADER + sizeof(*out))
        return D9D_FAIL(D9D_EFORMAT, "%s: has %zu bytes, which is no index", db->name, db->bytes);
    memcpy(out, db->p + at + HEADER, sizeof(*out));
    if (!(u16_at(db->p + at + 10) & META) || out->magic != MAGIC || out->version != 1)
        return D9D_FAIL(D9D_EFORMAT, "%s: is no LMDB file of version 1", db->name);
    if (out->free.pad < MIN_PAGE || out->free.pad > MAX_PAGE ||
        (out->free.pad & (out->free.pad - 1)) != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: pages of %u bytes", db->name, out->free.pad);
    return D9D_OK;
}

static d9d_status read_tree(const d9di_lmdb *db, const struct record *r, d9di_lmdb_tree *out)
{
    if (r->flags != 0 || r->depth > MAX_DEPTH || (r->root >= db->pages && r->root != NO_PAGE))
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: a tree of flags %u, depth %u, with its root at page %llu of %llu",
                        db->name, r->flags, r->depth, (unsigned long long)r->root,
                        (unsigned long long)db->pages);
    *out = (d9di_lmdb_tree){r->root, r->entries, r->depth};
    return D9D_OK;
}

d9d_status d9di_lmdb_open(const char *name, const void *p, size_t n, d9di_lmdb *out)
{
    d9di_lmdb db = {.name = name, .p = p, .bytes = n};
    struct meta meta[2];

    D9D_TRY(read_meta(&db, 0, &meta[0]));
    db.page = meta[0].free.pad;
    D9D_TRY(read_meta(&db, db.page, &meta[1]));
    if (meta[1].free.pad != db.page)
        return D9D_FAIL(D9D_EFORMAT, "%s: pages of %zu and of %u bytes", name, db.page,
                        meta[1].free.pad);
    db.pages = n / db.page;
    D9D_TRY(read_tree(&db, &meta[meta[1].transaction > meta[0].transaction].main, &db.main));
    *out = db;
    return D9D_OK;
}

/* --- pages --------------------------------------------------------------------------------- */

static d9d_status fail_page(const d9di_lmdb *db, uint64_t page, const char *what)
{
    return D9D_FAIL(D9D_EFORMAT, "%s: page %llu of %llu: %s", db->name, (unsigned long long)page,
                    (unsigned long long)db->pages, what);
}

/* Gets a page and its number of nodes. */
static d9d_status page_at(const d9di_lmdb *db, uint64_t page, uint16_t flag,
                          const unsigned char **out, size_t *nodes)
{
    const unsigned char *p;
    uint16_t flags, lower;

    if (page >= db->pages)
        return fail_page(db, page, "is behind the end");
    p = db->p + page * db->page;
    flags = u16_at(p + 10);
    lower = u16_at(p + 12);
    if ((flags & (BRANCH | LEAF | OVERFLOW | META | LEAF2)) != flag || u64_at(p) != page)
        return fail_page(db, page, "is of another kind than its place in the tree");
    if (lower < HEADER || lower > db->page || lower % 2 != 0)
        return fail_page(db, page, "its list of nodes does not fit in");
    *nodes = (size_t)(lower - HEADER) / 2;
    *out = p;
    return D9D_OK;
}

static d9d_status node_at(const d9di_lmdb *db, uint64_t page, const unsigned char *p, size_t i,
                          struct node *out)
{
    const size_t at = u16_at(p + HEADER + 2 * i);
    const unsigned char *node = p + at;

    if (at < HEADER || at + NODE > db->page)
        return fail_page(db, page, "a node does not fit in");
    out->flags = u16_at(node + 4);
    out->key_bytes = u16_at(node + 6);
    if (out->key_bytes > db->page - at - NODE)
        return fail_page(db, page, "a key does not fit in");
    out->key = node + NODE;
    out->data = out->key + out->key_bytes;
    out->data_bytes = u32_at(node);
    out->child = u32_at(node) | (uint64_t)out->flags << 32;
    return D9D_OK;
}

static int compare_keys(const void *a, size_t na, const void *b, size_t nb)
{
    const int c = memcmp(a, b, na < nb ? na : nb);

    return c != 0 ? c : (na > nb) - (na < nb);
}

/* The last node from `first` on whose key is <= the requested one; first - 1 if there is none.
 * *same: the keys are equal. */
static d9d_status search_page(const d9di_lmdb *db, uint64_t page, const unsigned char *p,
                              size_t first, size_t nodes, const void *key, size_t n, size_t *out,
                              bool *same)
{
    size_t low = first, high = nodes;

    *same = false;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        struct node node;
        int c;

        D9D_TRY(node_at(db, page, p, middle, &node));
        c = compare_keys(node.key, node.key_bytes, key, n);
        *same = *same || c == 0;
        if (c <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low - 1;
    return D9D_OK;
}

/* --- lookup -------------------------------------------------------------------------------- */

/* Finds the leaf page for a key. */
static d9d_status find_leaf(const d9di_lmdb *db, const d9di_lmdb_tree *tree, const void *key,
                            size_t n, uint64_t *leaf)
{
    uint64_t page = tree->root;

    for (int level = 1; level < tree->depth; level++) {
        const unsigned char *p;
        struct node node;
        size_t nodes, i;
        bool same;

        D9D_TRY(page_at(db, page, BRANCH, &p, &nodes));
        if (nodes == 0)
            return fail_page(db, page, "a branch has no nodes");
        D9D_TRY(search_page(db, page, p, 1, nodes, key, n, &i,
                            &same)); /* a branch page's first node has no key */
        D9D_TRY(node_at(db, page, p, i, &node));
        page = node.child;
    }
    *leaf = page;
    return D9D_OK;
}

/* Reads a value stored in overflow pages. */
static d9d_status read_overflow_value(const d9di_lmdb *db, uint64_t leaf, const struct node *node,
                                      const void **value)
{
    const unsigned char *p;
    uint64_t page;

    if (db->page - (size_t)(node->data - (db->p + leaf * db->page)) < sizeof(page))
        return fail_page(db, leaf, "a value does not fit in");
    page = u64_at(node->data);
    if (page >= db->pages)
        return fail_page(db, page, "is behind the end");
    p = db->p + page * db->page;
    if (!(u16_at(p + 10) & OVERFLOW) || u64_at(p) != page)
        return fail_page(db, page, "is of another kind than its place in the tree");
    if (node->data_bytes > db->bytes - page * db->page - HEADER ||
        node->data_bytes + (uint64_t)HEADER > (uint64_t)u32_at(p + 12) * db->page)
        return fail_page(db, page, "a value does not fit in");
    *value = p + HEADER;
    return D9D_OK;
}

static d9d_status find_value(const d9di_lmdb *db, const d9di_lmdb_tree *tree, const void *key,
                             size_t n, uint16_t flags, const void **value, size_t *value_bytes)
{
    const unsigned char *p;
    struct node node;
    uint64_t leaf = 0;
    size_t nodes, i;
    bool same;

    *value = NULL;
    *value_bytes = 0;
    if (tree->root == NO_PAGE || tree->depth == 0)
        return D9D_OK;
    D9D_TRY(find_leaf(db, tree, key, n, &leaf));
    D9D_TRY(page_at(db, leaf, LEAF, &p, &nodes));
    D9D_TRY(search_page(db, leaf, p, 0, nodes, key, n, &i, &same));
    if (!same)
        return D9D_OK;
    D9D_TRY(node_at(db, leaf, p, i, &node));
    if ((node.flags & (SUB_DATA | DUP_DATA)) != flags)
        return fail_page(db, leaf, "a value is of another kind than its tree's");
    if (node.flags & BIG_DATA)
        D9D_TRY(read_overflow_value(db, leaf, &node, value));
    else if (node.data_bytes > db->page - (size_t)(node.data - p))
        return fail_page(db, leaf, "a value does not fit in");
    else
        *value = node.data;
    *value_bytes = node.data_bytes;
    return D9D_OK;
}

d9d_status d9di_lmdb_get(const d9di_lmdb *db, const d9di_lmdb_tree *tree, const void *key, size_t n,
                         const void **value, size_t *value_bytes)
{
    return find_value(db, tree, key, n, 0, value, value_bytes);
}

d9d_status d9di_lmdb_find_tree(const d9di_lmdb *db, const char *name, d9di_lmdb_tree *out)
{
    struct record r;
    const void *value;
    size_t bytes;

    D9D_TRY(find_value(db, &db->main, name, strlen(name), SUB_DATA, &value, &bytes));
    if (value == NULL || bytes != sizeof(r))
        return D9D_FAIL(D9D_EFORMAT, "%s: has no database \"%s\"", db->name, name);
    memcpy(&r, value, sizeof(r));
    return read_tree(db, &r, out);
}
