/* checksum.cu - a checksum of the bits of arrays.
 *
 * A block adds up a chunk of an array, and then adds to the array's checksum atomically.  Sums of
 * integers have no order, so the result is the same each time.
 */
#include "common/checksum_word.h"
#include "cuda/common/multi_tensor.cuh"

enum { MAX_ARRAYS = 128, STEP = 2 * THREADS, CHUNK = 16 * STEP }; /* in words */

struct checksum_list {
    chunk_map<MAX_ARRAYS> chunks;
    d9d_checksum_array arrays[MAX_ARRAYS];
};

/* Word i of an array at any address; zeros after its last byte. */
static __device__ uint64_t word_at(const uint8_t *x, int64_t i, int64_t bytes)
{
    const int64_t n = d9di_i64_min(8, bytes - i * 8);
    uint64_t word = 0;

    for (int j = 0; j < n; j++)
        word |= (uint64_t)x[i * 8 + j] << 8 * j;
    return word;
}

static __device__ __forceinline__ uint64_t two_words(const uint8_t *x, int64_t i, int64_t bytes)
{
    if (((uintptr_t)x & 15) == 0 && (i + 2) * 8 <= bytes) {
        const ulonglong2 w = *(const ulonglong2 *)(x + i * 8);

        return d9di_checksum_word(w.x, i) + d9di_checksum_word(w.y, i + 1);
    }
    uint64_t sum = d9di_checksum_word(word_at(x, i, bytes), i);

    if ((i + 1) * 8 < bytes)
        sum += d9di_checksum_word(word_at(x, i + 1, bytes), i + 1);
    return sum;
}

struct add_words {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const
    {
        return a + b;
    }
};

static __global__ void checksum_kernel(unsigned long long *out,
                                       const __grid_constant__ checksum_list list)
{
    const int tensor = list.chunks.tensor_of_block();
    const uint8_t *x = (const uint8_t *)list.arrays[tensor].x;
    const int64_t bytes = list.arrays[tensor].bytes, words = d9di_i64_ceil_div(bytes, 8);
    const int64_t size = CHUNK, first = list.chunks.chunk_begin(tensor, size);
    const int64_t end = d9di_i64_min(words, first + size);
    unsigned long long sum = 0;

#pragma unroll 4
    for (int64_t i = first + threadIdx.x * 2; i < end; i += STEP)
        sum += two_words(x, i, bytes);
    sum = group_reduce<THREADS>(sum, add_words());
    if (threadIdx.x == 0)
        atomicAdd(out + tensor, sum);
}

d9d_status d9d_k_checksum(d9d_stream s, uint64_t *out, const d9d_checksum_array *arrays,
                          int64_t count)
{
    for (int64_t i = 0; i < count; i += MAX_ARRAYS) {
        checksum_list list = {};

        for (int64_t j = i; j < d9di_i64_min(count, i + MAX_ARRAYS); j++) {
            list.arrays[j - i] = arrays[j];
            list.chunks.append_tensor(d9di_i64_ceil_div(arrays[j].bytes, 8), CHUNK);
        }
        if (list.chunks.parts > 0)
            checksum_kernel<<<(unsigned)list.chunks.parts, THREADS, 0, d9di_cuda_stream(s)>>>(
                (unsigned long long *)out + i, list);
        D9D_TRY(d9di_cuda_check_launch("checksum"));
    }
    return D9D_OK;
}
