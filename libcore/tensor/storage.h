/* storage.h - what a storage is, for the files that allocate and move one. */
#ifndef D9DI_TENSOR_STORAGE_H
#define D9DI_TENSOR_STORAGE_H

#include "d9d/tensor/tensor.h"

struct d9d_storage {
    d9d_device *dev;
    void *data;     /* NULL: offloaded, or away (d9d/tensor/offload.h) */
    void *host;     /* pinned copy while offloaded */
    bool is_pinned; /* data is pinned host memory */
    uint64_t bytes;
    size_t refs;
    size_t counted;                  /* scratch of who counts references */
    struct d9d_storage *prev, *next; /* in the device's list */
};

#endif /* D9DI_TENSOR_STORAGE_H */
