/* bpe.c - BPE: encodes pre-tokens from the cache, greedily, or by merging.
 *
 * The neighbouring pair with the lowest rank is merged first; among equal pairs the leftmost.
 * Where greedy encoding (bpe_greedy.c) does not apply, short pre-tokens scan for that pair.  Long
 * ones keep candidates in a heap, which makes O(n log n).
 */
#include "data/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe_private.h"
#include "data/tokenizer/bytelevel.h"
#include "data/tokenizer/utf8.h"

enum {
    SHORT_PRETOKEN = 48, /* bytes; longer ones use the heap */
    LOOKUP_GROUP = 32,   /* pre-tokens whose cache lookups are interleaved */
    STORE_WORDS = 4      /* of 32 bits, for each slot of the largest short table */
};

struct d9di_bpe_symbol {
    uint32_t id; /* D9DI_NO_ID: merged into the symbol before */
    uint32_t prev, next;
};

struct d9di_bpe_candidate {
    uint32_t rank, left; /* rank of the merge; index of the left symbol */
};

#define END UINT32_MAX

/* Longest pre-tokens.  Merging needs about 40 bytes of memory per byte, greedy encoding 4. */
#define MAX_MERGED ((size_t)16 << 20)
#define MAX_GREEDY ((size_t)1 << 30)

/* The token of a symbol, which is a character (or byte) of w bytes, with its prefix and suffix. */
static uint32_t find_affixed(const d9di_bpe *b, const char *symbol, unsigned w, bool first,
                             bool last)
{
    char text[2 * D9DI_BPE_AFFIX + 8];
    size_t n = 0;

    if (!first)
        n = (size_t)(stpcpy(text, b->prefix) - text);
    if (b->chars) {
        memcpy(text + n, symbol, w);
        n += w;
    } else {
        n += d9di_utf8_encode(d9di_bytelevel_char((unsigned char)*symbol), text + n);
    }
    if (last)
        n = (size_t)(stpcpy(text + n, b->suffix) - text);
    return d9di_vocab_find(&b->vocab, text, n);
}

static inline uint32_t find_symbol(const d9di_bpe *b, const char *symbol, unsigned w, bool first,
                                   bool last)
{
    if (__builtin_expect(b->affixed, 0))
        return find_affixed(b, symbol, w, first, last);
    return b->chars ? d9di_vocab_find(&b->vocab, symbol, w) : b->byte_id[(unsigned char)*symbol];
}

/* True if a character becomes its bytes. */
static bool falls_back(const d9di_bpe *b, const char *text, unsigned w)
{
    for (unsigned i = 0; i < w; i++)
        if (b->byte_id[(unsigned char)text[i]] == D9DI_NO_ID)
            return false;
    return b->byte_fallback;
}

/* Splits a pre-token into its initial symbols ids[0, n); returns their number.  As in HF, an
 * unknown symbol comes before the next known one, and so behind the bytes of characters between
 * them. */
static size_t init_symbols(const d9di_bpe *b, const char *pretoken, size_t n, uint32_t *ids)
{
    size_t count = 0, i = 0;
    bool unk_due = false;

    while (i < n) {
        const unsigned w = b->chars ? d9di_utf8_width((unsigned char)pretoken[i]) : 1;
        const uint32_t id = find_symbol(b, pretoken + i, w, i == 0, i + w == n);

        if (id != D9DI_NO_ID) {
            if (unk_due)
                ids[count++] = b->unk;
            unk_due = false;
            ids[count++] = id;
        } else if (falls_back(b, pretoken + i, w)) {
            for (unsigned k = 0; k < w; k++)
                ids[count++] = b->byte_id[(unsigned char)pretoken[i + k]];
        } else if (b->unk != D9DI_NO_ID) {
            if (unk_due && !b->fuse_unk)
                ids[count++] = b->unk;
            unk_due = true;
        }
        i += w;
    }
    if (unk_due)
        ids[count++] = b->unk;
    return count;
}

/* --- short pre-tokens -------------------------------------------------------------- */

static uint32_t pair_rank(const d9di_bpe *b, const uint32_t *ids, size_t n, size_t at)
{
    return at + 1 < n ? d9di_bpe_rank(b, ids[at], ids[at + 1]) : D9DI_NO_ID;
}

/* Merges ids[0, n) in place, n <= SHORT_PRETOKEN; returns the number that remains. */
static size_t merge_short(const d9di_bpe *b, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT_PRETOKEN];
    size_t i;

    for (i = 0; i < n; i++)
        rank[i] = pair_rank(b, ids, n, i);
    while (n > 1) {
        size_t best = 0;

        for (i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == D9DI_NO_ID)
            break;
        ids[best] = b->merges[rank[best]].id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(*ids));
        memmove(rank + best + 1, rank + best + 2, (n - best - 1) * sizeof(*rank));
        rank[best] = pair_rank(b, ids, n, best);
        if (best > 0)
            rank[best - 1] = pair_rank(b, ids, n, best - 1);
    }
    return n;
}

/* --- long pre-tokens ----------------------------------------------------------------- */

static bool candidate_before(const struct d9di_bpe_candidate *a, const struct d9di_bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void sift_up(struct d9di_bpe_candidate *heap, size_t at)
{
    const struct d9di_bpe_candidate moved = heap[at];

    while (at > 0 && candidate_before(&moved, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = moved;
}

static void sift_down(struct d9di_bpe_candidate *heap, size_t n, size_t at)
{
    const struct d9di_bpe_candidate moved = heap[at];

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= n)
            break;
        if (child + 1 < n && candidate_before(&heap[child + 1], &heap[child]))
            child++;
        if (!candidate_before(&heap[child], &moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Pushes the merge of the symbol at `at` with the next one, if they merge. */
static d9d_status push_candidate(const d9di_bpe *b, d9di_bpe_scratch *s, uint32_t at)
{
    const struct d9di_bpe_symbol *left = &s->symbols.data[at];
    uint32_t rank;

    if (left->next == END)
        return D9D_OK;
    rank = d9di_bpe_rank(b, left->id, s->symbols.data[left->next].id);
    if (rank == D9DI_NO_ID)
        return D9D_OK;
    D9D_TRY(D9D_VEC_PUSH(&s->heap, (struct d9di_bpe_candidate){rank, at}));
    sift_up(s->heap.data, s->heap.len - 1);
    return D9D_OK;
}

static d9d_status merge_candidate(const d9di_bpe *b, d9di_bpe_scratch *s,
                                  const struct d9di_bpe_candidate *c)
{
    const struct d9di_bpe_merge *m = &b->merges[c->rank];
    struct d9di_bpe_symbol *left = &s->symbols.data[c->left], *right;

    if (left->id != m->left || left->next == END)
        return D9D_OK;
    right = &s->symbols.data[left->next];
    if (right->id != m->right)
        return D9D_OK;
    left->id = m->id;
    right->id = D9DI_NO_ID;
    left->next = right->next;
    if (left->next != END)
        s->symbols.data[left->next].prev = c->left;
    if (left->prev != END)
        D9D_TRY(push_candidate(b, s, left->prev));
    return push_candidate(b, s, c->left);
}

static d9d_status merge_long(const d9di_bpe *b, d9di_bpe_scratch *s, uint32_t *ids, size_t n,
                             size_t *out_n)
{
    uint32_t i;
    size_t count = 0;

    s->symbols.len = s->heap.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->symbols, n));
    for (i = 0; i < n; i++)
        s->symbols.data[i] = (struct d9di_bpe_symbol){ids[i], i - 1, i + 1 < n ? i + 1 : END};
    s->symbols.len = n;
    for (i = 0; i < n; i++)
        D9D_TRY(push_candidate(b, s, i));
    while (s->heap.len > 0) {
        const struct d9di_bpe_candidate top = s->heap.data[0];

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

/* --- pre-tokens ---------------------------------------------------------------------- */

/* With ignore_merges a pre-token that is a vocabulary entry is that token. */
static d9d_status find_whole_token(const d9di_bpe *b, d9di_bpe_scratch *s, const char *pretoken,
                                   size_t n, uint32_t *id)
{
    size_t i;

    if (b->chars) {
        *id = d9di_vocab_find(&b->vocab, pretoken, n);
        return D9D_OK;
    }
    s->spelled.len = 0;
    D9D_TRY(d9d_buf_reserve(&s->spelled, 2 * n));
    for (i = 0; i < n; i++)
        s->spelled.len += d9di_utf8_encode(d9di_bytelevel_char((unsigned char)pretoken[i]),
                                           s->spelled.data + s->spelled.len);
    *id = d9di_vocab_find(&b->vocab, s->spelled.data, s->spelled.len);
    return D9D_OK;
}

static d9d_status merge_pretoken(const d9di_bpe *b, d9di_bpe_scratch *s, const char *pretoken,
                                 size_t n, uint32_t *ids, size_t *out_n)
{
    size_t count;

    if (b->ignore_merges) {
        D9D_TRY(find_whole_token(b, s, pretoken, n, ids));
        if (*ids != D9DI_NO_ID) {
            *out_n = 1;
            return D9D_OK;
        }
    }
    count = init_symbols(b, pretoken, n, ids);
    if (count > SHORT_PRETOKEN)
        return merge_long(b, s, ids, count, out_n);
    *out_n = merge_short(b, ids, count);
    return D9D_OK;
}

static d9d_status encode_pretoken(const d9di_bpe *b, d9di_bpe_scratch *s,
                                  const d9di_pretoken *pretoken, uint32_t *ids, size_t *out_n)
{
    const size_t limit = b->is_greedy ? MAX_GREEDY : MAX_MERGED;

    if (pretoken->n > limit)
        return D9D_FAIL(D9D_EFORMAT,
                        "%zu bytes without a place to split at; at most %zu can be merged",
                        pretoken->n, limit);
    return (b->is_greedy ? d9di_bpe_greedy_encode : merge_pretoken)(b, s, pretoken->text,
                                                                    pretoken->n, ids, out_n);
}

/* --- groups of pre-tokens -------------------------------------------------------------- */

struct lookup {
    uint64_t key[D9DI_BPE_CACHE_LONG], *bucket;
};

static inline void begin_lookup(const d9di_bpe_cache *table, unsigned words,
                                const d9di_pretoken *pretoken, const char *end, struct lookup *l)
{
    d9di_bpe_cache_key(l->key, words, pretoken->text, pretoken->n, end);
    l->bucket = d9di_bpe_cache_bucket(table, l->key, words);
}

/* The ids of a pre-token that is in no slot: from the store, or computed, and kept in the slot at
 * `l`, or in the store where they do not fit or there is none (NULL). */
static __attribute__((noinline)) d9d_status encode_missing(const d9di_bpe *b, d9di_bpe_scratch *s,
                                                           d9di_bpe_cache *table, unsigned words,
                                                           const d9di_pretoken *pretoken,
                                                           const struct lookup *l, uint32_t *ids,
                                                           size_t *n)
{
    const bool is_short = pretoken->n <= D9DI_BPE_STORE_MAX_BYTES;
    const uint64_t hash = is_short ? d9di_bpe_store_hash(pretoken->text, pretoken->n) : 0;

    *n = is_short ? d9di_bpe_store_get(&s->store, hash, pretoken->text, pretoken->n, ids) : 0;
    if (*n > 0)
        return D9D_OK;
    D9D_TRY(encode_pretoken(b, s, pretoken, ids, n));
    if (l != NULL && d9di_bpe_cache_put(table, l->bucket, l->key, words, ids, *n))
        return D9D_OK;
    return d9di_bpe_store_put(&s->store, hash, pretoken->text, pretoken->n, ids, *n);
}

static inline d9d_status end_lookup(const d9di_bpe *b, d9di_bpe_scratch *s, d9di_bpe_cache *table,
                                    unsigned words, const d9di_pretoken *pretoken,
                                    const struct lookup *l, d9d_token_ids *out)
{
    uint32_t *ids = out->data + out->len;
    size_t n = d9di_bpe_cache_get(l->bucket, l->key, words, ids);

    if (__builtin_expect(n == 0, 0))
        D9D_TRY(encode_missing(b, s, table, words, pretoken, l, ids, &n));
    out->len += n;
    return D9D_OK;
}

static d9d_status encode_group(const d9di_bpe *b, d9di_bpe_scratch *s,
                               const d9di_pretoken *pretokens, size_t n, const char *end,
                               d9d_token_ids *out)
{
    struct lookup lookups[LOOKUP_GROUP];
    size_t capacity = 2 * D9DI_BPE_CACHE_LONG, i, count;

    d9di_bpe_cache_fit(&s->short_cache, D9DI_BPE_CACHE_SHORT);
    d9di_bpe_cache_fit(&s->long_cache, D9DI_BPE_CACHE_LONG);
    for (i = 0; i < n; i++) {
        capacity += pretokens[i].n; /* no id is of less than a byte */
        if (pretokens[i].n < 8 * D9DI_BPE_CACHE_SHORT)
            begin_lookup(&s->short_cache, D9DI_BPE_CACHE_SHORT, &pretokens[i], end, &lookups[i]);
        else if (pretokens[i].n < 8 * D9DI_BPE_CACHE_LONG)
            begin_lookup(&s->long_cache, D9DI_BPE_CACHE_LONG, &pretokens[i], end, &lookups[i]);
    }
    D9D_TRY(D9D_VEC_RESERVE(out, capacity));
    for (i = 0; i < n; i++) {
        if (pretokens[i].n < 8 * D9DI_BPE_CACHE_SHORT) {
            D9D_TRY(end_lookup(b, s, &s->short_cache, D9DI_BPE_CACHE_SHORT, &pretokens[i],
                               &lookups[i], out));
        } else if (pretokens[i].n < 8 * D9DI_BPE_CACHE_LONG) {
            D9D_TRY(end_lookup(b, s, &s->long_cache, D9DI_BPE_CACHE_LONG, &pretokens[i],
                               &lookups[i], out));
        } else {
            D9D_TRY(
                encode_missing(b, s, NULL, 0, &pretokens[i], NULL, out->data + out->len, &count));
            out->len += count;
        }
    }
    return D9D_OK;
}

d9d_status d9di_bpe_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const d9di_pretoken *pretokens,
                           size_t n, const char *end, d9d_token_ids *out)
{
    while (n > 0) {
        const size_t some = n < LOOKUP_GROUP ? n : LOOKUP_GROUP;

        D9D_TRY(encode_group(b, s, pretokens, some, end, out));
        pretokens += some;
        n -= some;
    }
    return D9D_OK;
}

/* --- scratch -------------------------------------------------------------------------- */

/* The table for pre-tokens that are not short. */
static unsigned log2_long(unsigned log2_slots)
{
    return log2_slots > 2 ? log2_slots - 2 : 0;
}

d9d_status d9di_bpe_scratch_init(d9di_bpe_scratch *s, unsigned log2_slots, unsigned log2_max)
{
    memset(s, 0, sizeof(*s));
    s->pairs = malloc(D9DI_BPE_PAIRS * sizeof(*s->pairs));
    if (!s->pairs)
        return D9D_FAIL(D9D_ENOMEM, "no memory for pairs of tokens");
    memset(s->pairs, 0xff, D9DI_BPE_PAIRS * sizeof(*s->pairs)); /* no valid pair */
    D9D_TRY(d9di_bpe_store_init(&s->store, (size_t)STORE_WORDS << log2_max));
    D9D_TRY(d9di_bpe_cache_init(&s->short_cache, D9DI_BPE_CACHE_SHORT, log2_slots, log2_max));
    return d9di_bpe_cache_init(&s->long_cache, D9DI_BPE_CACHE_LONG, log2_long(log2_slots),
                               log2_long(log2_max));
}

void d9di_bpe_scratch_release(d9di_bpe_scratch *s)
{
    d9di_bpe_cache_release(&s->short_cache);
    d9di_bpe_cache_release(&s->long_cache);
    d9di_bpe_store_release(&s->store);
    D9D_VEC_RELEASE(&s->symbols);
    D9D_VEC_RELEASE(&s->heap);
    D9D_VEC_RELEASE(&s->dead_ends);
    free(s->pairs);
    d9d_buf_release(&s->spelled);
}
