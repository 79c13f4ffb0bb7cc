/* table.c - the tables of the CPU backend. */
#include "cpu/common.h"

#define ONE(family, member, op) +1
#define FAMILY(family, list)                                                                       \
    _Static_assert(sizeof(d9d_##family##_kernels) == (0 list(ONE)) * sizeof(void (*)(void)),       \
                   "the list of " #family " has not every member");
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef ONE

#define ENTRY(family, member, op) .member = d9d_ref_##op,
#define FAMILY(family, list)      static const d9d_##family##_kernels family##_kernels = {list(ENTRY)};
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef ENTRY

const d9d_kernels *d9d_kernels_cpu(void)
{
#define FAMILY(family, list) .family = &family##_kernels,
    static const d9d_kernels table = {.name = "cpu", D9D_KERNEL_FAMILIES(FAMILY)};
#undef FAMILY

    return &table;
}
