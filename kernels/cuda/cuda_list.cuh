/* cuda_list.cuh - one launch over a list of arrays.
 *
 * The list goes along as an argument of the kernel.  Each array is cut into parts of `size`
 * elements, and a block has a part:
 *
 *     blocks    0 1 2 3 | 4 | 5 6 | ...        first[] = 0, 4, 5, 7, ...
 *     arrays    a       | b | c   | ...
 */
#ifndef D9D_CUDA_LIST_CUH
#define D9D_CUDA_LIST_CUH

#include "cuda_common.cuh"

/* Where parts of up to MOST arrays begin. */
template <int MOST> struct cuts {
    int64_t size;
    int count, parts;
    int first[MOST];

    /* The array of this block. */
    __device__ __forceinline__ int mine() const
    {
        int low = 0, high = count;

        while (high - low > 1) {
            const int middle = (low + high) / 2;

            if (first[middle] <= (int)blockIdx.x)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
    /* Where this block begins in it. */
    __device__ __forceinline__ int64_t begin(int i) const
    {
        return (int64_t)((int)blockIdx.x - first[i]) * size;
    }
    /* One more array, of n elements. */
    void add(int64_t n)
    {
        first[count++] = parts;
        parts += (int)d9di_ceil_div(n, size);
    }
};

#endif /* D9D_CUDA_LIST_CUH */
