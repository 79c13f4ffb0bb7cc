/* duplicates.h - groups documents by equal texts, then by shared bands, and keeps the first of
 * each.
 *
 *     d9di_duplicates_open(&d, "OUT.tmp", exact, n_bands);
 *     each document, in order:      d9di_duplicates_add(&d, hash, keys);
 *     d9di_duplicates_find(&d);
 *     d.first[k] == k: document k stays; d.exact[k]: it has the text of an earlier one
 *
 * The keys of bands go to one spool a band, and come back band by band. */
#ifndef D9DI_DATA_FILTER_DUPLICATES_H
#define D9DI_DATA_FILTER_DUPLICATES_H

#include <stdbool.h>

#include "data/io/out_file.h"

#define D9DI_MAX_DUPLICATES ((size_t)UINT32_MAX - 1) /* documents */

typedef struct d9di_duplicates {
    D9D_VEC(d9d_hash) hashes; /* of texts; empty if equal ones stay */
    d9di_out_file *spools;    /* [n_bands] */
    char **paths;             /* [n_bands] */
    size_t n_bands, n;
    bool by_text;
    uint32_t *first; /* [n] the first document of its group */
    bool *exact;     /* [n] */
} d9di_duplicates;   /* zero-initialised may be released */

/* n_bands 0: near duplicates stay. */
d9d_status d9di_duplicates_open(d9di_duplicates *d, const char *dir, bool by_text, size_t n_bands);
/* Adds the next document; a key 0 belongs to no band. */
d9d_status d9di_duplicates_add(d9di_duplicates *d, d9d_hash text, const uint64_t *keys);
/* Fills `first` and `exact`, and removes the spools. */
d9d_status d9di_duplicates_find(d9di_duplicates *d);
void d9di_duplicates_release(d9di_duplicates *d);

#endif
