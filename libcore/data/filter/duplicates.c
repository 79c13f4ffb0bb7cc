/* duplicates.c - see duplicates.h: sorting brings equal keys together, union-find joins them. */
#include "data/filter/duplicates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

d9d_status d9di_duplicates_open(d9di_duplicates *d, const char *dir, bool by_text, size_t n_bands)
{
    *d = (d9di_duplicates){.by_text = by_text};
    d->spools = calloc(n_bands + 1, sizeof(*d->spools));
    d->paths = calloc(n_bands + 1, sizeof(*d->paths));
    if (!d->spools || !d->paths)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu bands", n_bands);
    for (; d->n_bands < n_bands; d->n_bands++) {
        if (asprintf(&d->paths[d->n_bands], "%s/band-%03zu", dir, d->n_bands) < 0) {
            d->paths[d->n_bands] = NULL;
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
        }
        D9D_TRY(d9di_out_file_create(&d->spools[d->n_bands], d->paths[d->n_bands]));
    }
    return D9D_OK;
}

d9d_status d9di_duplicates_add(d9di_duplicates *d, d9d_hash text, const uint64_t *keys)
{
    if (d->n >= D9DI_MAX_DUPLICATES)
        return D9D_FAIL(D9D_ENOTSUP, "more than %zu documents; filter parts of the corpus first",
                        D9DI_MAX_DUPLICATES);
    if (d->by_text)
        D9D_TRY(D9D_VEC_PUSH(&d->hashes, text));
    for (size_t i = 0; i < d->n_bands; i++)
        D9D_TRY(d9di_out_file_write(&d->spools[i], &keys[i], sizeof(*keys)));
    d->n++;
    return D9D_OK;
}

/* --- equal texts ----------------------------------------------------------------------------- */

struct hashed {
    d9d_hash hash;
    uint32_t k;
};

static int compare_hashed(const void *a, const void *b)
{
    const struct hashed *x = a, *y = b;

    if (x->hash.hi != y->hash.hi)
        return x->hash.hi < y->hash.hi ? -1 : 1;
    if (x->hash.lo != y->hash.lo)
        return x->hash.lo < y->hash.lo ? -1 : 1;
    return (x->k > y->k) - (x->k < y->k);
}

static d9d_status find_equal(d9di_duplicates *d)
{
    struct hashed *all = calloc(d->n + 1, sizeof(*all));

    if (!all)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the hashes of %zu texts", d->n);
    for (size_t k = 0; k < d->n; k++)
        all[k] = (struct hashed){d->hashes.data[k], (uint32_t)k};
    D9D_VEC_RELEASE(&d->hashes);
    qsort(all, d->n, sizeof(*all), compare_hashed);
    for (size_t i = 1; i < d->n; i++)
        if (d9d_hash_equal(all[i].hash, all[i - 1].hash)) {
            d->first[all[i].k] = d->first[all[i - 1].k];
            d->exact[all[i].k] = true;
        }
    free(all);
    return D9D_OK;
}

/* --- shared bands ---------------------------------------------------------------------------- */

struct banded {
    uint64_t key;
    uint32_t k;
};

static int compare_banded(const void *a, const void *b)
{
    const struct banded *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->k > y->k) - (x->k < y->k);
}

/* The first document of a group, with path halving. */
static uint32_t find_first(uint32_t *first, uint32_t k)
{
    while (first[k] != k) {
        first[k] = first[first[k]];
        k = first[k];
    }
    return k;
}

static void join(uint32_t *first, uint32_t a, uint32_t b)
{
    a = find_first(first, a);
    b = find_first(first, b);
    if (a < b)
        first[b] = a;
    else
        first[a] = b;
}

/* The documents of a band that differ from all before them; *n of them. */
static d9d_status read_band(const d9di_duplicates *d, size_t band, struct banded *all, size_t *n)
{
    enum { BLOCK = 8192 };
    uint64_t keys[BLOCK];
    d9d_file f;
    d9d_status st = D9D_OK;

    *n = 0;
    D9D_TRY(d9d_file_open(d->paths[band], &f));
    for (size_t at = 0; at < d->n && st == D9D_OK; at += BLOCK) {
        const size_t some = d->n - at < BLOCK ? d->n - at : BLOCK;

        st = d9d_file_read_at(&f, keys, some * sizeof(*keys), at * sizeof(*keys));
        for (size_t i = 0; i < some && st == D9D_OK; i++)
            if (keys[i] != 0 && !d->exact[at + i])
                all[(*n)++] = (struct banded){keys[i], (uint32_t)(at + i)};
    }
    d9d_file_release(&f);
    return st;
}

static d9d_status join_bands(d9di_duplicates *d)
{
    struct banded *all = calloc(d->n + 1, sizeof(*all));
    d9d_status st = all ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for %zu documents", d->n);
    size_t n = 0;

    for (size_t band = 0; band < d->n_bands && st == D9D_OK; band++) {
        st = d9di_out_file_close(&d->spools[band]);
        if (st == D9D_OK)
            st = read_band(d, band, all, &n);
        if (st != D9D_OK)
            break;
        (void)remove(d->paths[band]);
        qsort(all, n, sizeof(*all), compare_banded);
        for (size_t i = 1; i < n; i++)
            if (all[i].key == all[i - 1].key)
                join(d->first, all[i - 1].k, all[i].k);
    }
    free(all);
    return st;
}

d9d_status d9di_duplicates_find(d9di_duplicates *d)
{
    d->first = calloc(d->n + 1, sizeof(*d->first));
    d->exact = calloc(d->n + 1, sizeof(*d->exact));
    if (!d->first || !d->exact)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu documents", d->n);
    for (size_t k = 0; k < d->n; k++)
        d->first[k] = (uint32_t)k;
    if (d->by_text)
        D9D_TRY(find_equal(d));
    if (d->n_bands > 0)
        D9D_TRY(join_bands(d));
    for (size_t k = 0; k < d->n; k++)
        d->first[k] = find_first(d->first, (uint32_t)k);
    return D9D_OK;
}

void d9di_duplicates_release(d9di_duplicates *d)
{
    for (size_t i = 0; d->spools && d->paths && i < d->n_bands + 1; i++) {
        d9di_out_file_release(&d->spools[i]);
        if (d->paths[i])
            (void)remove(d->paths[i]);
        free(d->paths[i]);
    }
    free(d->spools);
    free(d->paths);
    free(d->first);
    free(d->exact);
    D9D_VEC_RELEASE(&d->hashes);
    *d = (d9di_duplicates){0};
}
