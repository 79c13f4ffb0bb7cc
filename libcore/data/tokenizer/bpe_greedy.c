/* bpe_greedy.c - greedy BPE: finds the tokens of a pre-token from left to right, without merging
 * its bytes.
 *
 * Merging goes by rank, leftmost first, and is never undone.  As long as no merge crosses a
 * position, its two sides do not influence each other.  So a token sequence is the result for a
 * text exactly if each token is the result for its own bytes, and each pair of neighbours is the
 * result for theirs.  Exactly one sequence has this property.  To find it, take the longest token
 * that is compatible with the previous one, and backtrack if none is.  A position from which the
 * search backtracked is dead on every path, so each is tried once.
 *
 * A run of one repeated token continues without a search as long as the examined text repeats
 * itself, because dead ends then repeat too.
 *
 * The last merges of two tokens, traced backwards in time, decide whether they are compatible.
 * Time is the rank, provided that every merge has a higher rank than the merges of its parts.
 * Other vocabularies, and those that lack bytes or are spelled in characters, are merged in bpe.c.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe_private.h"

/* --- two neighbours ---------------------------------------------------------------------- */

/* The time at which two tokens merge. */
static inline uint32_t merge_time(const d9di_bpe *b, uint32_t left, uint32_t right)
{
    if (!(b->derivation[left].as_left & d9di_bpe_filter_bit(right)) ||
        !(b->derivation[right].as_right & d9di_bpe_filter_bit(left)))
        return D9DI_BPE_NEVER;
    left = d9di_bpe_rank(b, left, right);
    return left == D9DI_NO_ID ? D9DI_BPE_NEVER : left + 1;
}

/* True if no merge crosses the position between x and y before they are joined at `joined`
 * (D9DI_BPE_NEVER: they are not). x exists from its own merge until x_end, when it becomes part of
 * another token; y until y_end.  Of two merges of one rank that share a symbol, the left one comes
 * first. */
static bool pair_is_valid(const d9di_bpe *b, uint32_t x, uint32_t y, uint32_t joined)
{
    uint32_t x_end = joined, y_end = D9DI_BPE_NEVER;

    for (;;) {
        const struct d9di_bpe_derivation *mx = &b->derivation[x], *my = &b->derivation[y];
        const uint32_t crossing = merge_time(b, x, y);

        if (crossing < x_end && crossing <= y_end)
            return false;
        if (mx->time > my->time) {
            x_end = mx->time;
            x = mx->right;
        } else if (my->time > 0) {
            y_end = my->time;
            y = my->left;
        } else {
            return true;
        }
    }
}

/* The same for tokens that are never joined, with a cache. */
static inline bool pair_is_valid_cached(const d9di_bpe *b, d9di_bpe_scratch *s, uint32_t x,
                                        uint32_t y)
{
    const uint64_t pair = ((uint64_t)x << 24 | y) << 1; /* ids are below 2^24 - 1 */
    uint64_t *slot = &s->pairs[d9di_bpe_hash(pair) % D9DI_BPE_PAIRS];

    if (*slot >> 1 << 1 != pair)
        *slot = pair | pair_is_valid(b, x, y, D9DI_BPE_NEVER);
    return *slot & 1;
}

/* --- greedy search ------------------------------------------------------------------------- */

/* The longest token at the start of text[0, n), its length, and the number of bytes examined. */
static uint32_t longest_token(const d9di_bpe *b, const char *text, size_t n, size_t *len,
                              size_t *seen)
{
    uint32_t base = b->trie.root, id = D9DI_NO_ID;
    size_t i;

    for (i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const uint64_t entry = d9di_trie_entry(&b->trie, base, c);

        if (!d9di_trie_has_label(entry, c))
            break;
        if (d9di_trie_value(entry) != D9DI_TRIE_NONE && !(entry & D9DI_TRIE_FLAG)) {
            id = d9di_trie_value(entry);
            *len = i + 1;
        }
        base = d9di_trie_base(entry);
    }
    *seen = i + 1;
    return id;
}

static uint32_t find_whole_token(const d9di_bpe *b, const char *text, size_t n)
{
    uint32_t base = b->trie.root;
    uint64_t entry = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];

        entry = d9di_trie_entry(&b->trie, base, c);
        if (!d9di_trie_has_label(entry, c))
            return D9DI_TRIE_NONE;
        base = d9di_trie_base(entry);
    }
    return d9di_trie_value(entry);
}

static bool is_dead_end(const uint64_t *dead, size_t at)
{
    return dead[at / 64] >> at % 64 & 1;
}

/* How many more times the token pretoken[at, at + len), which follows its copy, repeats: as long as
 * the text from it to `reach`, past everything examined, repeats. */
static size_t count_repeats(const char *pretoken, size_t n, size_t at, size_t len, size_t reach,
                            const uint64_t *dead)
{
    const size_t window = reach - at;
    size_t run = 0;

    for (at += len; at <= n && n - at >= window; at += len, run++)
        if (memcmp(pretoken + at - len, pretoken + at, window) != 0 || is_dead_end(dead, at + len))
            break;
    return run;
}

d9d_status d9di_bpe_greedy_encode(const d9di_bpe *b, d9di_bpe_scratch *s, const char *pretoken,
                                  size_t n, uint32_t *ids, size_t *out_n)
{
    uint64_t few = 0, *dead = &few; /* bits */
    size_t at = 0, count = 0, len = 0, seen, reach;
    uint32_t id;

    if (b->ignore_merges && (id = find_whole_token(b, pretoken, n)) != D9DI_TRIE_NONE) {
        ids[0] = id;
        *out_n = 1;
        return D9D_OK;
    }
    if (n >= 64) {
        s->dead_ends.len = 0;
        D9D_TRY(D9D_VEC_RESERVE(&s->dead_ends, n / 64 + 1));
        dead = s->dead_ends.data;
        memset(dead, 0, (n / 64 + 1) * sizeof(*dead));
    }
    id = longest_token(b, pretoken, n, &len, &reach);
    while (at < n) {
        if (id == D9DI_NO_ID) { /* dead end: the token before is wrong too */
            assert(count > 0);
            dead[at / 64] |= UINT64_C(1) << at % 64;
            id = ids[--count];
            at -= b->derivation[id].len;
        } else if (!is_dead_end(dead, at + len) &&
                   (count == 0 || pair_is_valid_cached(b, s, ids[count - 1], id))) {
            if (count > 0 && ids[count - 1] == id) {
                const size_t run = count_repeats(pretoken, n, at, len, reach, dead);

                for (size_t i = 0; i < run; i++)
                    ids[count++] = id;
                at += run * len;
                reach += run * len;
            }
            at += len;
            ids[count++] = id;
            id = longest_token(b, pretoken + at, n - at, &len, &seen);
            reach = at + seen > reach ? at + seen : reach;
            continue;
        }
        id = b->derivation[id].shorter;
        len = id != D9DI_NO_ID ? b->derivation[id].len : 0;
    }
    *out_n = count;
    return D9D_OK;
}

/* --- preparation ------------------------------------------------------------------------------ */

/* Computes `time`, `left` and `right`.  False if a merge precedes one that makes a part of it:
 * ranks are then not times. */
static bool compute_merge_times(d9di_bpe *b)
{
    for (uint32_t id = 0; id < b->vocab.n_tokens; id++)
        b->derivation[id].time = D9DI_BPE_NEVER;
    for (size_t i = 0; i < 256; i++)
        b->derivation[b->byte_id[i]].time = 0;
    for (uint32_t rank = 0; rank < b->n_merges; rank++) {
        const struct d9di_bpe_merge *m = &b->merges[rank];

        b->derivation[m->left].as_left |= d9di_bpe_filter_bit(m->right);
        b->derivation[m->right].as_right |= d9di_bpe_filter_bit(m->left);
    }
    for (uint32_t rank = 0; rank < b->n_merges; rank++) {
        const struct d9di_bpe_merge *m = &b->merges[rank];
        struct d9di_bpe_derivation *made;

        if (m->id == D9DI_NO_ID)
            continue;
        made = &b->derivation[m->id];
        if (b->derivation[m->left].time == D9DI_BPE_NEVER ||
            b->derivation[m->right].time == D9DI_BPE_NEVER || made->time != D9DI_BPE_NEVER ||
            !pair_is_valid(b, m->left, m->right, rank + 1))
            continue;
        made->time = rank + 1;
        made->left = m->left;
        made->right = m->right;
    }
    for (uint32_t rank = 0; rank < b->n_merges; rank++) {
        const struct d9di_bpe_merge *m = &b->merges[rank];
        const uint32_t left = b->derivation[m->left].time, right = b->derivation[m->right].time;

        if (m->id != D9DI_NO_ID &&
            ((left != D9DI_BPE_NEVER && left > rank) || (right != D9DI_BPE_NEVER && right > rank)))
            return false;
    }
    return true;
}

static d9d_status build_token_trie(d9di_bpe *b)
{
    struct d9di_trie_key *keys = malloc((b->vocab.n_tokens + 1) * sizeof(*keys));
    d9d_status st;
    size_t n = 0;

    if (!keys)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", b->vocab.n_tokens);
    for (uint32_t id = 0; id < b->vocab.n_tokens; id++) {
        const uint32_t len = b->byte_offset[id + 1] - b->byte_offset[id];
        const bool never = b->derivation[id].time == D9DI_BPE_NEVER;

        if (len > 0 && b->vocab.tokens[id].spelled && (!never || b->ignore_merges))
            keys[n++] = (struct d9di_trie_key){b->bytes + b->byte_offset[id], len, id, never};
    }
    st = d9di_trie_build(&b->trie, keys, n);
    free(keys);
    return st;
}

static void compute_shorter(d9di_bpe *b)
{
    for (uint32_t id = 0; id < b->vocab.n_tokens; id++) {
        struct d9di_bpe_derivation *made = &b->derivation[id];
        size_t len, seen;

        made->len = b->byte_offset[id + 1] - b->byte_offset[id];
        made->shorter = made->len > 0 ? longest_token(b, b->bytes + b->byte_offset[id],
                                                      made->len - 1, &len, &seen)
                                      : D9DI_NO_ID;
    }
}

d9d_status d9di_bpe_greedy_prepare(d9di_bpe *b)
{
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < 256; i++)
        if (b->byte_id[i] == D9DI_NO_ID)
            return D9D_OK;
    if (b->chars || b->affixed || b->vocab.n_tokens > D9DI_TRIE_NONE)
        return D9D_OK;
    b->derivation = calloc((size_t)b->vocab.n_tokens + 1, sizeof(*b->derivation));
    if (!b->derivation)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", b->vocab.n_tokens);
    b->is_greedy = compute_merge_times(b);
    if (!b->is_greedy)
        return D9D_OK;
    st = build_token_trie(b);
    if (st == D9D_OK)
        compute_shorter(b);
    b->is_greedy = st == D9D_OK;
    return st == D9D_ENOTSUP ? D9D_OK : st; /* too large for greedy encoding */
}
