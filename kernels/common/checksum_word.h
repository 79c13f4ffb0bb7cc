/* checksum_word.h - the checksum of arrays, for CPU and CUDA.  See d9d/kernels/reduce.h. */
#ifndef D9DI_COMMON_CHECKSUM_WORD_H
#define D9DI_COMMON_CHECKSUM_WORD_H

#include <stdint.h>

#ifdef __CUDACC__
#define D9DI_CHECKSUM_FN static __host__ __device__ __forceinline__
#else
#define D9DI_CHECKSUM_FN static inline
#endif

/* The contribution of word i.  For a given i it is a bijection, so another word is always another
 * contribution.  The constants are MurmurHash3's and the golden ratio's. */
D9DI_CHECKSUM_FN uint64_t d9di_checksum_word(uint64_t word, int64_t i)
{
    uint64_t x = word ^ (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 32) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 32) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 32;
}

#endif /* D9DI_COMMON_CHECKSUM_WORD_H */
