/* mem_tensors.h - a tensor source and a tensor sink in memory. */
#ifndef D9D_MEM_TENSORS_H
#define D9D_MEM_TENSORS_H

#include "d9d/ckpt/mapper/mapper.h"
#include "unit.h"

enum { MEM_TENSORS = 256 };

typedef struct mem_tensor {
    char name[64];
    d9d_safetensors_tensor t;
    unsigned char *data;
} mem_tensor;

typedef struct mem_tensors {
    mem_tensor a[MEM_TENSORS];
    size_t n;
    uint64_t slice; /* sink: elements that are read at once; 0: all */
} mem_tensors;

/* One more, filled with zeros; a name that is too long is cut. */
mem_tensor *mem_tensors_add(mem_tensors *m, const char *name, d9d_dtype t, int ndim,
                            const int64_t *shape);
/* Fails the test when there is none. */
mem_tensor *mem_tensors_find(mem_tensors *m, const char *name);
void mem_tensors_free(mem_tensors *m);

d9d_tensor_source mem_tensors_source(mem_tensors *m);
d9d_tensor_sink mem_tensors_sink(mem_tensors *m);
/* Plan and run: neither fails. */
void mem_tensors_run(const d9d_mapper *m, mem_tensors *from, mem_tensors *to, int jobs);

#endif /* D9D_MEM_TENSORS_H */
