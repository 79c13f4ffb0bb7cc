/* checkpointer_copy.h - copies of a set's tensors in host memory, made while training goes on, each
 * proven to have the bits that the device held when the save began: a bit that flips between, on
 * the device, on the way or in the host's memory, is never saved.
 *
 *     main thread:   D9D_TRY(d9di_checkpointer_copy_begin(&c));        // checksums on the device
 *     worker:        D9D_TRY(d9di_checkpointer_copy_tensor(&c, i, to)); // each of them, once
 */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_COPY_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_COPY_H

#include "d9d/checkpointer/checkpointer.h"

typedef struct d9di_checkpointer_copy {
    const d9d_checkpointer_set *set; /* borrowed */
    d9d_device *dev;
    d9d_checksum_array *list; /* [tensors that are not empty] */
    size_t *at;               /* [tensors]: their place in the lists */
    uint64_t *sums;           /* as of begin() */
    d9d_tensor device;        /* the same on the device */
} d9di_checkpointer_copy;

/* The lists are in the arena. */
d9d_status d9di_checkpointer_copy_open(d9di_checkpointer_copy *c, const d9d_checkpointer_set *set,
                                       d9d_device *dev, d9d_arena *a);
void d9di_checkpointer_copy_release(d9di_checkpointer_copy *c);
/* All writes to the tensors must have completed.  Waits for the device, which reads them once. */
d9d_status d9di_checkpointer_copy_begin(d9di_checkpointer_copy *c);
/* Copies the bytes of tensor i, which is not empty.  ECORRUPT if they are not those of begin(). */
d9d_status d9di_checkpointer_copy_tensor(const d9di_checkpointer_copy *c, size_t i, void *to);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_COPY_H */
