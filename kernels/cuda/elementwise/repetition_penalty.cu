/* repetition_penalty.cu - logits of tokens that a sequence has, made less likely. */
#include "cuda/common/common.cuh"

enum { BLOCKS_OF_ROW = 8 };

/* Copies x to y, and appends the call's tokens to the histories. */
static __global__ void __launch_bounds__(THREADS) append_kernel(d9d_repetition_penalty_args a)
{
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * THREADS;

    pdl_launch_dependents();
    pdl_wait();
    for (int64_t j = first; j < a.tokens; j += step)
        a.history[a.slots[j]] = a.ids[j];
    for (int64_t i = first; i < a.m * a.n; i += step)
        a.y[i] = a.x[i];
}

/* Grid: BLOCKS_OF_ROW, rows. A token that is there twice is written twice, with the same number. */
static __global__ void __launch_bounds__(THREADS) penalise_kernel(d9d_repetition_penalty_args a)
{
    const float *x = a.x + blockIdx.y * a.n;
    float *y = a.y + blockIdx.y * a.n;

    pdl_launch_dependents();
    pdl_wait();
    const d9d_segment segment = a.segment[blockIdx.y];
    for (int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x; j < segment.nk;
         j += BLOCKS_OF_ROW * THREADS) {
        const int32_t id = a.history[segment.k + j];

        if (id >= 0 && id < a.n)
            y[id] = x[id] < 0.0f ? x[id] * a.penalty : x[id] / a.penalty;
    }
}

d9d_status d9d_k_repetition_penalty(d9d_stream s, const d9d_repetition_penalty_args *a)
{
    const int64_t work = d9di_i64_max(a->tokens, a->m * a->n);

    if (work == 0)
        return D9D_OK;
    D9D_TRY(pdl_launch(s, "repetition_penalty", append_kernel, grid_for(s, work), THREADS, *a));
    return a->m == 0 || a->n == 0 ? D9D_OK
                                  : pdl_launch(s, "repetition_penalty", penalise_kernel,
                                               dim3(BLOCKS_OF_ROW, (unsigned)a->m), THREADS, *a);
}
