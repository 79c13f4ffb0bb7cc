/* fuzz_npy.c - any bytes as a NumPy array file: what is accepted has its shape's bytes. */
#include <stdint.h>
#include <stdlib.h>

#include "data/io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t bytes;
    d9di_npy a;

    if (d9di_npy_parse("a.npy", data, size, &a) != D9D_OK)
        return 0;
    bytes = d9d_dtype_size(a.dtype);
    for (int i = 0; i < a.rank; i++)
        bytes *= (uint64_t)a.shape[i];
    if (a.rank < 1 || bytes != (uint64_t)((const char *)data + size - (const char *)a.data))
        abort();
    return 0;
}
