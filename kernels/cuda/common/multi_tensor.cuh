/* multi_tensor.cuh - one launch over a list of arrays.
 *
 * The list goes along as an argument of the kernel.  Each array is cut into parts of a size
 * of its own, and a block has a part:
 *
 *     blocks    0 1 2 3 | 4 | 5 6 | ...        first[] = 0, 4, 5, 7, ...
 *     arrays    a       | b | c   | ...
 */
#ifndef D9DI_CUDA_COMMON_MULTI_TENSOR_CUH
#define D9DI_CUDA_COMMON_MULTI_TENSOR_CUH

#include "cuda/common/common.cuh"

/* Where parts of up to MOST arrays begin. */
template <int MAX_TENSORS> struct chunk_map {
    int count, parts;
    int first[MAX_TENSORS];

    /* The array of this block. */
    __device__ __forceinline__ int tensor_of_block() const
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
    /* Where this block begins in it, of parts of that size. */
    __device__ __forceinline__ int64_t chunk_begin(int i, int64_t size) const
    {
        return (int64_t)((int)blockIdx.x - first[i]) * size;
    }
    /* The parts of array i end here. */
    __device__ __forceinline__ int chunk_end(int i) const
    {
        return i + 1 < count ? first[i + 1] : parts;
    }
    /* One more array, of n elements in parts of `size`. */
    void append_tensor(int64_t n, int64_t size)
    {
        first[count++] = parts;
        parts += (int)d9di_i64_ceil_div(n, size);
    }
};

#endif /* D9DI_CUDA_COMMON_MULTI_TENSOR_CUH */
