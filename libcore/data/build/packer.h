/* packer.h - sample packing: makes one sample of each document, or packs several into one.
 *
 * Best fit (decreasing): documents are collected in a window.  When it is full, they are placed,
 * longest first, each into the sample that it fills most or into a new one.  Samples are then
 * written in the order of their first documents, and documents in input order within each.
 *
 *     window    | aaaa | bb | ccc | d | eeeee |          samples of 5 positions
 *     samples   | aaaa d | bb ccc | eeeee |
 *
 * Concat: documents are concatenated and split where a sample is full.  The remainder begins the
 * next sample as a segment of its own.
 *
 * The result depends only on the documents and their order. */
#ifndef D9DI_DATA_BUILD_PACKER_H
#define D9DI_DATA_BUILD_PACKER_H

#include "data/build/shard_unit.h"

typedef struct d9di_packer_opts {
    int64_t size; /* maximal positions of a sample; 0: one document per sample */
    d9d_shard_pack_mode mode;
    size_t window;        /* documents and */
    size_t window_tokens; /* tokens at which the window is full */
    bool wide;            /* ids may be above 65535 */
    d9d_field_list fields;
} d9di_packer_opts;

typedef struct d9di_packer d9di_packer;

/* Creates a packer that adds samples of split `split` to the unit.  With unit NULL samples are only
 * counted, and documents are given without tokens. */
d9d_status d9di_packer_create(d9di_shard_unit *unit, size_t split, const d9di_packer_opts *opts,
                              d9di_packer **out);
/* Adds a document of `length` positions (best fit: at most `size`).  A sample gets the key of its
 * first document, so keys are useful only if each document is one sample. */
d9d_status d9di_packer_add(d9di_packer *p, uint32_t key, const d9di_shard_document *d,
                           int64_t length);
/* Adds n tokens from token `at` on of a document, whose fields are of `whole` tokens. */
d9d_status d9di_packer_add_part(d9di_packer *p, uint32_t key, const d9di_shard_document *d,
                                size_t whole, size_t at, size_t n, int64_t length);
/* Writes the remaining samples. */
d9d_status d9di_packer_flush(d9di_packer *p);
/* Samples made so far; complete after d9di_packer_flush(). */
int64_t d9di_packer_samples(const d9di_packer *p);
void d9di_packer_free(d9di_packer *p);

#endif
