/* multi_tensor.cuh - one launch over a list of arrays (multi-tensor apply).
 *
 * The list is passed as a kernel argument. Each array is divided into chunks of a size of its own,
 * and a block has a chunk:
 *
 *     blocks    0 1 2 3 | 4 | 5 6 | ...        first[] = 0, 4, 5, 7, ...
 *     arrays    a       | b | c   | ...
 */
#ifndef D9DI_CUDA_COMMON_MULTI_TENSOR_CUH
#define D9DI_CUDA_COMMON_MULTI_TENSOR_CUH

#include "cuda/common/common.cuh"

/* First block of each of up to MAX_TENSORS arrays. */
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
    /* First element of this block's chunk in array i, for chunks of `size`. */
    __device__ __forceinline__ int64_t chunk_begin(int i, int64_t size) const
    {
        return (int64_t)((int)blockIdx.x - first[i]) * size;
    }
    /* The block after the last chunk of array i. */
    __device__ __forceinline__ int chunk_end(int i) const
    {
        return i + 1 < count ? first[i + 1] : parts;
    }
    /* Appends an array of n elements, in chunks of `size`. */
    void append_tensor(int64_t n, int64_t size)
    {
        first[count++] = parts;
        parts += (int)d9di_i64_ceil_div(n, size);
    }
};

#endif /* D9DI_CUDA_COMMON_MULTI_TENSOR_CUH */
