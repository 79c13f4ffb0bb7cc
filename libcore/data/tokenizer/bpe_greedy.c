/* bpe_greedy.c - the tokens of a piece from left to right, without merging its bytes.
 *
 * Merging goes by rank, leftmost first, and is never undone.  So as long as no merge takes place
 * across a place, what is on its two sides does not know of each other: a sequence of tokens is the
 * result for a text exactly if each token is the result for its own bytes and each two neighbours
 * are the result for theirs.  Only one sequence is.  It is found by taking the longest token that
 * goes with the one before, and stepping back where none does; a place that was stepped back from
 * is dead, whatever leads to it, so that each is tried once.
 *
 * A run of one token goes on without a search as long as the text that was looked at repeats
 * itself: what was found to lead nowhere then does so again.
 *
 * Whether two tokens go together is told by their last merges, backwards in time.  Time is the
 * rank, where every merge has a higher rank than those that made its parts.  A vocabulary where
 * that is not so, or that lacks bytes or is spelled in characters, is merged in bpe.c.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe_private.h"

/* --- two neighbours ---------------------------------------------------------------------- */

/* When two tokens merge. */
static inline uint32_t merge_time(const d9di_bpe *b, uint32_t left, uint32_t right)
{
    if (!(b->derivation[left].as_left & d9di_bpe_filter_bit(right)) ||
        !(b->derivation[right].as_right & d9di_bpe_filter_bit(left)))
        return D9DI_BPE_NEVER;
    left = d9di_bpe_rank(b, left, right);
    return left == D9DI_NO_ID ? D9DI_BPE_NEVER : left + 1;
}

/* Whether no merge crosses the place between x and y before they are taken to be joined at
 * `joined`; D9DI_BPE_NEVER if they are not.  x lives from the merge that makes it until x_end,
 * when it becomes part of another token, and y until y_end.  Of merges of one rank that share a
 * symbol the left one goes first. */
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

/* The same of tokens that are not joined, from memory if it was asked lately. */
static inline bool pair_is_valid_cached(const d9di_bpe *b, d9di_bpe_scratch *s, uint32_t x,
                                        uint32_t y)
{
    const uint64_t pair = ((uint64_t)x << 24 | y) << 1; /* ids are below 2^24 - 1 */
    uint64_t *slot = &s->pairs[d9di_bpe_hash(pair) % D9DI_BPE_PAIRS];

    if (*slot >> 1 << 1 != pair)
        *slot = pair | pair_is_valid(b, x, y, D9DI_BPE_NEVER);
    return *slot & 1;
}

/* --- walking ------------------------------------------------------------------------------ */

/* The longest token that text[0, n) begins with, how long it is, and how much was looked at. */
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

/* How many times more the token piece[at, at + len), which follows its like, follows itself: as
 * long as the text from it to `reach`, behind all that was looked at, comes again. */
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
        if (id == D9DI_NO_ID) { /* nothing goes on from here: not even the token before is right */
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

/* --- learning ------------------------------------------------------------------------------ */

/* Fill in `time`, `left` and `right`.  False when a merge comes before one that makes a part of it:
 * ranks are not times then. */
static bool compute_merge_times(d9di_bpe *b)
{
    for (uint32_t id = 0; id < b->n_tokens; id++)
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
    struct d9di_trie_key *keys = malloc((b->n_tokens + 1) * sizeof(*keys));
    d9d_status st;
    size_t n = 0;

    if (!keys)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", b->n_tokens);
    for (uint32_t id = 0; id < b->n_tokens; id++) {
        const uint32_t len = b->byte_offset[id + 1] - b->byte_offset[id];
        const bool never = b->derivation[id].time == D9DI_BPE_NEVER;

        if (len > 0 && b->tokens[id].spelled && (!never || b->ignore_merges))
            keys[n++] = (struct d9di_trie_key){b->bytes + b->byte_offset[id], len, id, never};
    }
    st = d9di_trie_build(&b->trie, keys, n);
    free(keys);
    return st;
}

static void compute_shorter(d9di_bpe *b)
{
    for (uint32_t id = 0; id < b->n_tokens; id++) {
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
    if (b->chars || b->n_tokens > D9DI_TRIE_NONE)
        return D9D_OK;
    b->derivation = calloc((size_t)b->n_tokens + 1, sizeof(*b->derivation));
    if (!b->derivation)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", b->n_tokens);
    b->is_greedy = compute_merge_times(b);
    if (!b->is_greedy)
        return D9D_OK;
    st = build_token_trie(b);
    if (st == D9D_OK)
        compute_shorter(b);
    b->is_greedy = st == D9D_OK;
    return st == D9D_ENOTSUP ? D9D_OK : st; /* too large to be walked */
}
