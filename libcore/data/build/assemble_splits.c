/* assemble_splits.c - splits of given size: chooses the documents that they take.
 *
 * Documents have random keys; copies have equal keys.  A split takes all keys below a bound, which
 * is found in two steps.  First, a radix histogram of the keys finds the key at which the samples
 * reach the number asked for; for packs, the positions that they can hold.  Packs are never quite
 * full, so there are at least as many, and the bound is at or below this key.  Second, the few
 * documents below it are packed without their tokens for different bounds, by bisection. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "data/build/assemble_private.h"
#include "data/io/out_file.h"

enum { DIGIT_BITS = 16, DIGITS = 1 << DIGIT_BITS, CANDIDATES_PER_READ = 512 };
#define ALL_KEYS (UINT64_C(1) << D9DI_ASSEMBLE_KEY_BITS)

/* A document that a split may take. */
struct candidate {
    uint32_t key, stored;
};

struct split_search {
    const d9di_assemble_opts *opts;
    bool labels;
    uint64_t from; /* lower keys are taken already */
    /* Weight of each digit after a prefix of keys. */
    uint64_t prefix, weight[DIGITS];
    int shift; /* bit position of the digit in the key */
    uint64_t upto;
    d9di_out_file candidates; /* documents with keys in [from, upto) */
    uint64_t n_candidates;
};

static bool is_packed(const struct split_search *c)
{
    return c->opts->packer.size > 0;
}

/* --- the key ------------------------------------------------------------------------------- */

static d9d_status add_weight(void *arg, const char *path, const d9di_shard_unit_state *unit,
                             const struct d9di_shard_unit_record *r)
{
    struct split_search *c = arg;

    (void)path;
    if (r->key >= c->from && (uint64_t)r->key >> (c->shift + DIGIT_BITS) == c->prefix)
        c->weight[r->key >> c->shift & (DIGITS - 1)] +=
            is_packed(c) ? (uint64_t)d9di_assemble_sample_length(unit, r) : 1;
    return D9D_OK;
}

static d9d_status add_unit_weights(void *arg, const char *dir, const d9di_shard_unit_state *unit)
{
    return d9di_assemble_each_record(dir, unit, add_weight, arg);
}

/* Finds the key at which the weight from c->from on reaches `n`, or ALL_KEYS.  *lacks: what lower
 * keys lack of n; *has: the key's own weight. */
static d9d_status find_key(struct split_search *c, uint64_t n, uint64_t *key, uint64_t *lacks,
                           uint64_t *has)
{
    c->prefix = 0;
    for (c->shift = DIGIT_BITS; c->shift >= 0; c->shift -= DIGIT_BITS) {
        uint64_t digit = 0;

        memset(c->weight, 0, sizeof(c->weight));
        D9D_TRY(d9di_assemble_each_unit(c->opts, add_unit_weights, c));
        for (; digit < DIGITS && n > c->weight[digit]; digit++)
            n -= c->weight[digit];
        *lacks = n;
        *key = ALL_KEYS;
        if (digit == DIGITS)
            return D9D_OK;
        *has = c->weight[digit];
        c->prefix = c->prefix << DIGIT_BITS | digit;
    }
    *key = c->prefix;
    return D9D_OK;
}

/* --- packs --------------------------------------------------------------------------------- */

static d9d_status add_candidate(void *arg, const char *path, const d9di_shard_unit_state *unit,
                                const struct d9di_shard_unit_record *r)
{
    struct split_search *c = arg;
    const struct candidate x = {r->key, r->stored};

    (void)path;
    (void)unit;
    if (r->key < c->from || r->key >= c->upto)
        return D9D_OK;
    c->n_candidates++;
    return d9di_out_file_write(&c->candidates, &x, sizeof(x));
}

static d9d_status add_unit_candidates(void *arg, const char *dir, const d9di_shard_unit_state *unit)
{
    return d9di_assemble_each_record(dir, unit, add_candidate, arg);
}

static d9d_status collect_candidates(struct split_search *c)
{
    char *path = NULL;
    d9d_status st;

    if (asprintf(&path, "%s/assemble.candidates", c->opts->unit.dir) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", c->opts->unit.dir);
    d9di_out_file_release(&c->candidates);
    c->n_candidates = 0;
    st = d9di_out_file_create(&c->candidates, path);
    free(path);
    D9D_TRY(st);
    D9D_TRY(d9di_assemble_each_unit(c->opts, add_unit_candidates, c));
    return d9di_out_file_flush(&c->candidates);
}

static d9d_status pack_candidates(const struct split_search *c, uint64_t upto, d9di_packer *p)
{
    struct candidate some[CANDIDATES_PER_READ];

    for (uint64_t at = 0; at < c->n_candidates; at += CANDIDATES_PER_READ) {
        const uint64_t left = c->n_candidates - at;
        const size_t n = left < CANDIDATES_PER_READ ? (size_t)left : CANDIDATES_PER_READ;

        D9D_TRY(d9d_file_read_at(&c->candidates.file, some, n * sizeof(*some), at * sizeof(*some)));
        for (size_t i = 0; i < n; i++)
            if (some[i].key < upto)
                D9D_TRY(d9di_packer_add(p, 0, &(d9di_shard_document){.n = some[i].stored},
                                        (int64_t)some[i].stored - !c->labels));
    }
    return d9di_packer_flush(p);
}

/* Counts the packs of documents with keys in [from, upto). */
static d9d_status count_packs(const struct split_search *c, uint64_t upto, int64_t *out)
{
    d9di_packer *p = NULL;
    d9d_status st;

    D9D_TRY(d9di_packer_create(NULL, 0, &c->opts->packer, &p));
    st = pack_candidates(c, upto, p);
    *out = d9di_packer_samples(p);
    d9di_packer_free(p);
    return st;
}

/* True if the higher bound is nearer to `want`, or the lower one gives nothing. */
static bool more_is_nearer(int64_t want, int64_t less, int64_t more)
{
    return less == 0 || more - want <= want - less;
}

/* Bisects for the bound in (from, upto] whose number of packs is closest to `want`; *made is that
 * number. */
static d9d_status bisect_bound(const struct split_search *c, int64_t want, uint64_t *upto,
                               int64_t *made)
{
    uint64_t low = c->from, high = c->upto;
    int64_t less = 0, more;

    D9D_TRY(count_packs(c, high, &more));
    while (more > want && less < want && high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        int64_t n;

        D9D_TRY(count_packs(c, middle, &n));
        if (n > want) {
            high = middle;
            more = n;
        } else {
            low = middle;
            less = n;
        }
    }
    *upto = more <= want || (less < want && more_is_nearer(want, less, more)) ? high : low;
    *made = *upto == high ? more : less;
    return D9D_OK;
}

/* --- the bound of a split
 * ---------------------------------------------------------------------------------
 */

/* Finds the bound for `want` samples; *made 0: there are not enough. */
static d9d_status find_bound(struct split_search *c, int64_t want, int64_t *made)
{
    const uint64_t size = is_packed(c) ? (uint64_t)c->opts->packer.size : 1;
    uint64_t key, lacks = 0, has = 0, upto = 0;

    D9D_TRY(find_key(c, (uint64_t)want * size, &key, &lacks, &has));
    if (is_packed(c)) {
        c->upto = key == ALL_KEYS ? ALL_KEYS : key + 1;
        D9D_TRY(collect_candidates(c));
        D9D_TRY(bisect_bound(c, want, &upto, made));
        c->upto = upto;
        return D9D_OK;
    }
    c->upto = key;
    *made = want - (int64_t)lacks;
    if (key != ALL_KEYS && more_is_nearer(want, *made, *made + (int64_t)has)) {
        c->upto = key + 1;
        *made += (int64_t)has;
    }
    return D9D_OK;
}

static d9d_status fail_too_few(const d9di_assemble_opts *opts, int64_t made)
{
    int64_t want = 0;

    for (size_t i = 0; i < opts->unit.n_splits; i++)
        want += opts->counts[i] > 0 ? opts->counts[i] : 0;
    return D9D_FAIL(D9D_EFORMAT, "the splits are to have %lld sample%s, there are %lld",
                    (long long)want, D9D_PLURAL(want), (long long)made);
}

static d9d_status find_splits(struct split_search *c, d9di_assemble_splits *out)
{
    int64_t all = 0;

    for (size_t i = 0; i < c->opts->unit.n_splits; i++) {
        const int64_t want = c->opts->counts[i];
        int64_t made = 0;

        if (want <= 0)
            continue;
        D9D_TRY(find_bound(c, want, &made));
        all += made;
        if (made == 0 || (made < want && c->upto == ALL_KEYS))
            return fail_too_few(c->opts, all);
        out->list[out->n++] = (d9di_assemble_split){i, c->from, c->upto};
        c->from = c->upto;
    }
    return D9D_OK;
}

d9d_status d9di_assemble_choose_splits(const d9di_assemble_opts *opts,
                                       const d9di_dataset_manifest *m, d9di_assemble_splits *out)
{
    struct split_search *c;
    d9d_status st;

    out->n = 0;
    c = calloc(1, sizeof(*c));
    if (!c)
        return D9D_FAIL(D9D_ENOMEM, "no memory to deal %lld samples", (long long)m->samples);
    c->opts = opts;
    c->labels = m->labels;
    st = find_splits(c, out);
    d9di_out_file_release(&c->candidates);
    free(c);
    return st;
}

const d9di_assemble_split *d9di_assemble_splits_find(const d9di_assemble_splits *cuts, uint32_t key)
{
    for (size_t i = 0; i < cuts->n; i++)
        if (key < cuts->list[i].upto)
            return &cuts->list[i];
    return NULL;
}
