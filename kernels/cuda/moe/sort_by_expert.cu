/* sort_by_expert.cu - expert order for MoE dispatch: choices sorted by expert, tokens ascending
 * within one; and the ranks that own the chosen experts. The sort is cuda/common/radix_sort.cu.
 *
 *     Megatron, vLLM, SGLang                   here
 *     permute: sorted_indices, argsort(stable) sort_by_expert: source, row
 *     moe_align_block_size, expert_offsets     offset [E + 1]; tiles need no padding (grouped GEMM)
 *     tokens_per_expert                        offset[e + 1] - offset[e]
 *     routing map of an EP rank                expert_ranks, expert_local_ids
 *     rows that dropout draws masks for        expert_numbers
 *
 *     choices  expert [T, k]    2 0 | 1 2 | 0 -1           T = 3, k = 2
 *     sorted   source           1 4 | 2 | 0 3 | -1         offset 0 2 3 5
 *     inverse  row [T, k]       3 0 | 2 4 | 1 -1
 */
#include "cuda/moe/sort_few.cuh"

/* Numbers from *used on belong to choices of -1. */
static __global__ void rows_kernel(int32_t *row, int32_t *source, int64_t n, const int32_t *used)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    row[source[i]] = i < *used ? (int32_t)i : -1;
    if (i >= *used)
        source[i] = -1;
}

static __global__ void __launch_bounds__(SORT_FEW)
    sort_few_kernel(d9d_expert_order order, const int32_t *expert, int n, int e)
{
    pdl_launch_dependents();
    pdl_wait();
    sort_few(order, expert, n, e);
}

d9d_status d9d_k_sort_by_expert(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                const int32_t *expert, int64_t rows, int64_t e, int64_t k)
{
    const int64_t n = rows * k;

    if (n > INT32_MAX)
        return D9D_FAIL(D9D_EINVAL, "sort_by_expert: %lld tokens of %lld experts are over %d rows",
                        (long long)rows, (long long)k, INT32_MAX);
    if (n > 0 && n <= SORT_FEW && e <= INT32_MAX)
        return pdl_launch(s, "sort_by_expert", sort_few_kernel, 1, SORT_FEW,
                          d9d_expert_order{offset, row, source}, expert, (int)n, (int)e);
    D9D_TRY(d9di_radix_sort(s, "sort_by_expert", expert, n, e, source, offset));
    if (n == 0)
        return D9D_OK;
    rows_kernel<<<(unsigned)d9di_i64_ceil_div(n, THREADS), THREADS, 0, d9di_cuda_stream(s)>>>(
        row, source, n, offset + e);
    return d9di_cuda_check_launch("sort_by_expert");
}

/* --- expert parallelism ------------------------------------------------------------------- */

static __global__ void expert_ranks_kernel(int32_t *rank, const int32_t *expert, int64_t n,
                                           int64_t k, int64_t ranks, int64_t per)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t d = i % ranks, first = i / ranks * k;
        bool has = false;

        for (int64_t j = first; j < first + k; j++)
            has = has || (expert[j] >= 0 && expert[j] / per == d);
        rank[i] = has ? (int32_t)d : -1;
    }
}

static __global__ void local_ids_kernel(int32_t *local, const int32_t *source,
                                        const int32_t *expert, int64_t n, int64_t k, int64_t ranks,
                                        int64_t per)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n * k;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t from = source[i / k];
        const int64_t e = from < 0 ? -1 : expert[from / ranks * k + i % k] - from % ranks * per;

        local[i] = e >= 0 && e < per ? (int32_t)e : -1;
    }
}

d9d_status d9d_k_expert_ranks(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                              int64_t k, int64_t ranks, int64_t per)
{
    const int64_t n = rows * ranks;

    if (n == 0)
        return D9D_OK;
    expert_ranks_kernel<<<grid_for(s, n), THREADS, 0, d9di_cuda_stream(s)>>>(rank, expert, n, k,
                                                                             ranks, per);
    return d9di_cuda_check_launch("expert_ranks");
}

d9d_status d9d_k_expert_local_ids(d9d_stream s, int32_t *local, const int32_t *source,
                                  const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                  int64_t ranks, int64_t per)
{
    (void)rows;
    if (n * k == 0)
        return D9D_OK;
    local_ids_kernel<<<grid_for(s, n * k), THREADS, 0, d9di_cuda_stream(s)>>>(local, source, expert,
                                                                              n, k, ranks, per);
    return d9di_cuda_check_launch("expert_local_ids");
}

static __global__ void expert_numbers_kernel(int64_t *number, const int64_t *token,
                                             const int32_t *source, const int32_t *expert,
                                             int64_t n, int64_t k, int64_t first, int64_t all)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t from = source[i];

        number[i] = from < 0 ? 0
                             : (int64_t)((uint64_t)token[from / k] * (uint64_t)all +
                                         (uint64_t)(first + expert[from]));
    }
}

d9d_status d9d_k_expert_numbers(d9d_stream s, int64_t *number, const int64_t *token,
                                const int32_t *source, const int32_t *expert, int64_t n,
                                int64_t rows, int64_t k, int64_t first, int64_t all)
{
    (void)rows;
    if (n == 0)
        return D9D_OK;
    expert_numbers_kernel<<<grid_for(s, n), THREADS, 0, d9di_cuda_stream(s)>>>(
        number, token, source, expert, n, k, first, all);
    return d9di_cuda_check_launch("expert_numbers");
}
