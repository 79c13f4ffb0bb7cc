/* bpe.c - merging the bytes of a piece to tokens.
 *
 * Of all neighbours that merge, the pair of the lowest rank goes first, and of equal pairs
 * the leftmost.  Short pieces scan for it; long ones keep candidates in a heap, which makes
 * O(n log n).  Pieces of a few bytes are remembered with their ids.
 */
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "data/bpe_private.h"
#include "data/bytelevel.h"
#include "data/utf8.h"

enum {
    SHORT_PIECE = 48,  /* bytes; longer ones use the heap */
    CACHED_BYTES = 22, /* longest piece that is remembered: a slot is one cache line */
    CACHED_IDS = 8,
    CACHE_SLOTS = 1 << 15
};

struct d9di_cached {
    uint64_t hash;
    uint32_t ids[CACHED_IDS];
    uint8_t len, n; /* len 0: free */
    char text[CACHED_BYTES];
};
_Static_assert(sizeof(struct d9di_cached) == 64, "a slot is one cache line");

struct d9di_symbol {
    uint32_t id; /* D9DI_NO_ID: merged into the one before */
    uint32_t prev, next;
};

struct d9di_candidate {
    uint32_t rank, at; /* of the left symbol */
    uint32_t left, right, id;
};

#define END UINT32_MAX

static const struct d9di_merge *find_merge(const d9di_bpe *b, uint32_t left, uint32_t right)
{
    const struct d9di_merge *m = d9di_bpe_slot(b, (uint64_t)left << 32 | right);

    return m->id == D9DI_NO_ID ? NULL : m;
}

/* The symbols that a piece begins as, into ids[0, n); how many there are. */
static size_t first_symbols(const d9di_bpe *b, const char *piece, size_t n, uint32_t *ids)
{
    size_t count = 0, i;
    bool unk_before = false;

    for (i = 0; i < n; i++) {
        const uint32_t id = b->byte_id[(unsigned char)piece[i]];

        if (id != D9DI_NO_ID)
            ids[count++] = id;
        else if (b->unk != D9DI_NO_ID && !(b->fuse_unk && unk_before))
            ids[count++] = b->unk;
        unk_before = id == D9DI_NO_ID;
    }
    return count;
}

/* --- short pieces -------------------------------------------------------------- */

static uint32_t rank_of(const d9di_bpe *b, const uint32_t *ids, size_t n, size_t at, uint32_t *to)
{
    const struct d9di_merge *m = at + 1 < n ? find_merge(b, ids[at], ids[at + 1]) : NULL;

    *to = m ? m->id : D9DI_NO_ID;
    return m ? m->rank : UINT32_MAX;
}

/* Merge ids[0, n) in place, n at most SHORT_PIECE; how many remain. */
static size_t merge_short(const d9di_bpe *b, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT_PIECE], to[SHORT_PIECE];
    size_t i;

    for (i = 0; i < n; i++)
        rank[i] = rank_of(b, ids, n, i, &to[i]);
    while (n > 1) {
        size_t best = 0;

        for (i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        ids[best] = to[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(*ids));
        memmove(rank + best + 1, rank + best + 2, (n - best - 1) * sizeof(*rank));
        memmove(to + best + 1, to + best + 2, (n - best - 1) * sizeof(*to));
        rank[best] = rank_of(b, ids, n, best, &to[best]);
        if (best > 0)
            rank[best - 1] = rank_of(b, ids, n, best - 1, &to[best - 1]);
    }
    return n;
}

/* --- long pieces ----------------------------------------------------------------- */

static bool goes_first(const struct d9di_candidate *a, const struct d9di_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_up(struct d9di_candidate *heap, size_t at)
{
    const struct d9di_candidate moved = heap[at];

    while (at > 0 && goes_first(&moved, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = moved;
}

static void sift_down(struct d9di_candidate *heap, size_t n, size_t at)
{
    const struct d9di_candidate moved = heap[at];

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= n)
            break;
        if (child + 1 < n && goes_first(&heap[child + 1], &heap[child]))
            child++;
        if (!goes_first(&heap[child], &moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Push the merge of the symbol at `at` with the next one, if they merge. */
static d9d_status consider(const d9di_bpe *b, d9di_bpe_scratch *s, uint32_t at)
{
    const struct d9di_symbol *left = &s->symbols.data[at];
    const struct d9di_merge *m;
    uint32_t right;

    if (left->next == END)
        return D9D_OK;
    right = s->symbols.data[left->next].id;
    m = find_merge(b, left->id, right);
    if (!m)
        return D9D_OK;
    D9D_TRY(D9D_VEC_PUSH(&s->heap, (struct d9di_candidate){m->rank, at, left->id, right, m->id}));
    sift_up(s->heap.data, s->heap.len - 1);
    return D9D_OK;
}

static d9d_status merge_candidate(const d9di_bpe *b, d9di_bpe_scratch *s,
                                  const struct d9di_candidate *c)
{
    struct d9di_symbol *left = &s->symbols.data[c->at], *right;

    if (left->id != c->left || left->next == END)
        return D9D_OK;
    right = &s->symbols.data[left->next];
    if (right->id != c->right)
        return D9D_OK;
    left->id = c->id;
    right->id = D9DI_NO_ID;
    left->next = right->next;
    if (left->next != END)
        s->symbols.data[left->next].prev = c->at;
    if (left->prev != END)
        D9D_TRY(consider(b, s, left->prev));
    return consider(b, s, c->at);
}

static d9d_status merge_long(const d9di_bpe *b, d9di_bpe_scratch *s, uint32_t *ids, size_t n,
                             size_t *out_n)
{
    uint32_t i;
    size_t count = 0;

    s->symbols.len = s->heap.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->symbols, n));
    for (i = 0; i < n; i++)
        s->symbols.data[i] = (struct d9di_symbol){ids[i], i - 1, i + 1 < n ? i + 1 : END};
    s->symbols.len = n;
    for (i = 0; i < n; i++)
        D9D_TRY(consider(b, s, i));
    while (s->heap.len > 0) {
        const struct d9di_candidate top = s->heap.data[0];

        s->heap.data[0] = s->heap.data[--s->heap.len];
        if (s->heap.len > 0)
            sift_down(s->heap.data, s->heap.len, 0);
        D9D_TRY(merge_candidate(b, s, &top));
    }
    for (i = 0; i < n; i++)
        if (s->symbols.data[i].id != D9DI_NO_ID)
            ids[count++] = s->symbols.data[i].id;
    *out_n = count;
    return D9D_OK;
}

/* --- pieces ---------------------------------------------------------------------- */

/* With ignore_merges a piece that is a token as a whole is that token. */
static d9d_status find_whole(const d9di_bpe *b, d9di_bpe_scratch *s, const char *piece, size_t n,
                             uint32_t *id)
{
    size_t i;

    s->spelled.len = 0;
    D9D_TRY(d9d_buf_reserve(&s->spelled, 2 * n));
    for (i = 0; i < n; i++)
        s->spelled.len += d9di_utf8_put(d9di_bytelevel_char((unsigned char)piece[i]),
                                        s->spelled.data + s->spelled.len);
    *id = d9di_bpe_find(b, s->spelled.data, s->spelled.len);
    return D9D_OK;
}

static d9d_status encode_piece(const d9di_bpe *b, d9di_bpe_scratch *s, const char *piece, size_t n,
                               d9d_ids *out)
{
    uint32_t *ids;
    size_t count;

    D9D_TRY(D9D_VEC_RESERVE(out, n));
    ids = out->data + out->len;
    if (b->ignore_merges) {
        D9D_TRY(find_whole(b, s, piece, n, ids));
        if (*ids != D9DI_NO_ID) {
            out->len++;
            return D9D_OK;
        }
    }
    count = first_symbols(b, piece, n, ids);
    if (count <= SHORT_PIECE)
        count = merge_short(b, ids, count);
    else
        D9D_TRY(merge_long(b, s, ids, count, &count));
    out->len += count;
    return D9D_OK;
}

d9d_status d9di_bpe_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const char *piece, size_t n,
                           d9d_ids *out)
{
    const size_t before = out->len;
    struct d9di_cached *c;
    uint64_t hash;

    if (n > CACHED_BYTES)
        return encode_piece(b, s, piece, n, out);
    hash = d9d_hash64(piece, n);
    c = &s->cache[hash % CACHE_SLOTS];
    if (c->hash == hash && c->len == n && memcmp(c->text, piece, n) == 0) {
        D9D_TRY(D9D_VEC_RESERVE(out, CACHED_IDS));
        memcpy(out->data + before, c->ids, sizeof(c->ids));
        out->len += c->n;
        return D9D_OK;
    }
    D9D_TRY(encode_piece(b, s, piece, n, out));
    if (out->len - before <= CACHED_IDS) {
        c->hash = hash;
        c->len = (uint8_t)n;
        c->n = (uint8_t)(out->len - before);
        memcpy(c->text, piece, n);
        memcpy(c->ids, out->data + before, c->n * sizeof(*c->ids));
    }
    return D9D_OK;
}

d9d_status d9di_bpe_bytes(const d9di_bpe *b, uint32_t id, d9d_buf *out)
{
    const struct d9di_bpe_token *t = &b->tokens[id];
    const size_t before = out->len;
    size_t i = 0;

    D9D_TRY(d9d_buf_reserve(out, t->len));
    while (i < t->len) {
        unsigned w;
        const int byte = d9di_bytelevel_byte(d9di_utf8_get(t->text + i, &w));

        if (byte < 0) { /* not spelled in the byte alphabet: it stands for itself */
            out->len = before;
            return d9d_buf_append(out, t->text, t->len);
        }
        out->data[out->len++] = (char)byte;
        i += w;
    }
    out->data[out->len] = '\0';
    return D9D_OK;
}

d9d_status d9di_bpe_scratch_init(d9di_bpe_scratch *s)
{
    memset(s, 0, sizeof(*s));
    s->cache = calloc(CACHE_SLOTS, sizeof(*s->cache));
    return s->cache ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for the word cache");
}

void d9di_bpe_scratch_release(d9di_bpe_scratch *s)
{
    free(s->cache);
    D9D_VEC_RELEASE(&s->symbols);
    D9D_VEC_RELEASE(&s->heap);
    d9d_buf_release(&s->spelled);
}
