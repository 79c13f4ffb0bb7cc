/* table.c - the table of the CUDA backend. */
#include "cuda/common/common.h"

#define X(op) extern __typeof__(*((d9d_kernels *)0)->op) d9d_k_##op;
D9D_KERNEL_ENTRIES(X)
#undef X

const d9d_kernels *d9d_kernels_cuda(void)
{
    static const d9d_kernels table = {.name = "cuda",
#define X(op) .op = d9d_k_##op,
                                      D9D_KERNEL_ENTRIES(X)
#undef X
    };

    return &table;
}
