/* shard_private.h - the parts of a run of d9d_shard_run(). */
#ifndef D9DI_DATA_SHARD_PRIVATE_H
#define D9DI_DATA_SHARD_PRIVATE_H

#include "data/documents.h"
#include "data/packer.h"

/* Shares of the splits, cumulated: document d goes to the first split whose `upto` is above
 * its random number in [0, 1). */
typedef struct d9di_shares {
    struct {
        char name[64];
        double upto;
    } split[D9DI_MAX_SPLITS];
    size_t n;
} d9di_shares;

/* Options that contradict each other are ECONFIG. */
d9d_status d9di_shard_check(const d9d_shard_how *how, d9di_shares *shares);
size_t d9di_shares_pick(const d9di_shares *shares, int64_t seed, int64_t document);

/* Tokenise the documents of a chunk: ids, labels and what belongs to which document.  `tok`
 * is NULL for given ids without a tokenizer.  A failure names the input, line and byte. */
typedef struct d9di_tokenise {
    const d9d_shard_how *how;
    const d9d_tokenizer *tok;
    uint32_t vocab;
    bool has_eos;
    uint32_t eos;
} d9di_tokenise;
d9d_status d9di_tokenise_chunk(const d9di_tokenise *t, d9d_tokenizer_scratch *s, d9d_buf *text,
                               d9di_chunk *c);

#endif
