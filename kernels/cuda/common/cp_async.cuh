/* cp_async.cuh - copies of weights to shared memory that a thread requests and waits for
 * (cp.async).
 */
#ifndef D9DI_CUDA_COMMON_CP_ASYNC_CUH
#define D9DI_CUDA_COMMON_CP_ASYNC_CUH

#include "cuda/common/common.cuh"

/* For what is read once. */
static __device__ __forceinline__ uint64_t evict_first_policy(void)
{
    uint64_t policy;

    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Copies 16 bytes, or writes zeros; `to` is an address of shared memory. */
static __device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool there,
                                                   uint64_t policy)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
        "l"(from), "r"(there ? 16 : 0), "l"(policy)
        : "memory");
}
static __device__ __forceinline__ void cp_async_16(uint4 *to, const void *from, bool there,
                                                   uint64_t policy)
{
    cp_async_16((uint32_t)__cvta_generic_to_shared(to), from, there, policy);
}
/* Copies BYTES bytes, 4 or 8, or writes zeros. */
template <int BYTES>
static __device__ __forceinline__ void cp_async_few(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(there ? BYTES : 0)
                 : "memory");
}
static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for all but the last N groups of copies. */
template <int N> static __device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif /* D9DI_CUDA_COMMON_CP_ASYNC_CUH */
