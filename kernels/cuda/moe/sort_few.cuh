/* sort_few.cuh - expert order of a few choices, by one block, in which each counts those before it.
 */
#ifndef D9DI_CUDA_MOE_SORT_FEW_CUH
#define D9DI_CUDA_MOE_SORT_FEW_CUH

#include "cuda/common/common.cuh"

enum { SORT_FEW = THREADS }; /* choices, and threads of the block */

static __device__ void sort_few(const d9d_expert_order &order, const int32_t *expert, int n, int e)
{
    __shared__ int32_t key[SORT_FEW];
    const int i = threadIdx.x;
    int before = 0;

    if (i < n)
        key[i] = expert[i] < 0 ? e : min(expert[i], e - 1);
    __syncthreads();
    if (i < n) {
        for (int j = 0; j < n; j++)
            before += key[j] < key[i] || (key[j] == key[i] && j < i);
        order.row[i] = key[i] < e ? before : -1;
        order.source[before] = key[i] < e ? i : -1;
    }
    for (int x = i; x <= e; x += SORT_FEW) {
        int less = 0;

        for (int j = 0; j < n; j++)
            less += key[j] < x;
        order.offset[x] = less;
    }
}

#endif /* D9DI_CUDA_MOE_SORT_FEW_CUH */
