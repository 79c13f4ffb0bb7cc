/* packer.h - documents to samples: as they are, or several to one.
 *
 * Best fit over a bounded number of open packs: a document goes into the open pack that it
 * fills most; where it fits none, a new one is opened, and when too many are open the
 * fullest is closed.  The result depends on the order of the documents alone. */
#ifndef D9DI_DATA_PACKER_H
#define D9DI_DATA_PACKER_H

#include "data/sink.h"

typedef struct d9di_packer d9di_packer;

/* Samples of split `split` go to `store`; pack 0: each document is one. */
d9d_status d9di_packer_create(d9di_sink *store, size_t split, int64_t pack, d9di_packer **out);
/* A document of `length` positions, at most `pack`, in n tokens; labels NULL or as many. */
d9d_status d9di_packer_add(d9di_packer *p, const uint32_t *tokens, const int32_t *labels, size_t n,
                           int64_t length);
/* Close every open pack. */
d9d_status d9di_packer_flush(d9di_packer *p);
void d9di_packer_free(d9di_packer *p);

#endif
