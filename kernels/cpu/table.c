/* table.c - the table of the CPU backend. */
#include "cpu/common.h"

const d9d_kernels *d9d_kernels_cpu(void)
{
    static const d9d_kernels table = {.name = "cpu",
#define X(op) .op = d9d_ref_##op,
                                      D9D_KERNEL_ENTRIES(X)
#undef X
    };

    return &table;
}
