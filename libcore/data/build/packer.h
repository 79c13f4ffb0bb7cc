/* packer.h - documents to samples: as they are, or several to one.
 *
 * Best fit: documents gather in a window.  When it is full, they go, longest first, each
 * into the sample that it fills most, or into a new one; then the samples are written in
 * the order of their first documents, the documents of each in theirs.
 *
 *     window    | aaaa | bb | ccc | d | eeeee |          samples of 5 positions
 *     samples   | aaaa d | bb ccc | eeeee |
 *
 * Concatenated: documents follow each other and are cut where a sample is full; what is left
 * of one begins the next sample as a segment of its own.
 *
 * The result depends on the documents and their order alone. */
#ifndef D9DI_DATA_BUILD_PACKER_H
#define D9DI_DATA_BUILD_PACKER_H

#include "data/build/shard_unit.h"

typedef struct d9di_packer_opts {
    int64_t size; /* most positions of a sample; 0: each document is one */
    d9d_shard_pack_mode mode;
    size_t window;        /* documents, */
    size_t window_tokens; /* and tokens, after which it is full */
    bool wide;            /* ids may be above 65535 */
} d9di_packer_opts;

typedef struct d9di_packer d9di_packer;

/* Samples of split `split` go to the unit; without one (NULL) they are counted only, and documents
 * are given without tokens. */
d9d_status d9di_packer_create(d9di_shard_unit *unit, size_t split, const d9di_packer_opts *how,
                              d9di_packer **out);
/* A document of `length` positions, at most `size` for best fit, in n tokens; labels NULL or as
 * many.  A sample has the key of its first document, which says nothing of the others: keys are of
 * use where a document is a sample. */
d9d_status d9di_packer_add(d9di_packer *p, uint32_t key, const uint32_t *tokens,
                           const int32_t *labels, size_t n, int64_t length);
/* Write what is left. */
d9d_status d9di_packer_flush(d9di_packer *p);
/* Samples since it was created; all of them behind d9di_packer_flush(). */
int64_t d9di_packer_samples(const d9di_packer *p);
void d9di_packer_free(d9di_packer *p);

#endif
