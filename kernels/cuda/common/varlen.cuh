/* varlen.cuh - documents packed in rows of tokens (varlen), for kernels that restart at each
 * document. A malformed list never leads outside the rows. */
#ifndef D9DI_CUDA_COMMON_VARLEN_CUH
#define D9DI_CUDA_COMMON_VARLEN_CUH

#include "cuda/common/common.cuh"

/* Tokens [first, first + n), counted over B and S. */
struct document {
    int64_t first, n;
};

static __host__ __device__ __forceinline__ int64_t documents_in(const d9d_varlen &x)
{
    return x.segment != NULL ? x.segments : x.b;
}

static __device__ __forceinline__ document document_of(const d9d_varlen &x, int64_t i)
{
    if (x.segment == NULL)
        return {i * x.s, x.s};

    const int64_t tokens = x.b * x.s, first = d9di_i64_max(0, d9di_i64_min(tokens, x.segment[i].q));

    return {first, d9di_i64_max(0, d9di_i64_min(tokens - first, x.segment[i].nq))};
}

/* Binary search: the last document for which `before` is true; it is true for a prefix of them. */
template <class F>
static __device__ __forceinline__ int64_t last_document(const d9d_varlen &x, F before)
{
    int64_t low = 0, high = documents_in(x) - 1;

    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;

        if (before(mid, document_of(x, mid)))
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

#endif /* D9DI_CUDA_COMMON_VARLEN_CUH */
