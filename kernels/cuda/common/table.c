/* table.c - the tables of the CUDA backend. */
#include "cuda/common/common.h"

#define ENTRY(family, member, op) .member = d9d_k_##op,
#define FAMILY(family, list)      static const d9d_##family##_kernels family##_kernels = {list(ENTRY)};
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef ENTRY

const d9d_kernels *d9d_kernels_cuda(void)
{
#define FAMILY(family, list) .family = &family##_kernels,
    static const d9d_kernels table = {.name = "cuda", D9D_KERNEL_FAMILIES(FAMILY)};
#undef FAMILY

    return &table;
}
