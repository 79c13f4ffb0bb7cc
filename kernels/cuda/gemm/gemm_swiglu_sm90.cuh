/* gemm_swiglu_sm90.cuh - what the SwiGLU epilogues, forward and backward, share. */
#ifndef D9DI_CUDA_GEMM_GEMM_SWIGLU_SM90_CUH
#define D9DI_CUDA_GEMM_GEMM_SWIGLU_SM90_CUH

#include "cuda/elementwise/swiglu.cuh"
#include "cuda/gemm/gemm_sm90.cuh"
#include "cuda/gemm/gemm_swiglu.h"

namespace
{

DEVICE float bf16_low(uint32_t two)
{
    return __uint_as_float(two << 16);
}
DEVICE float bf16_high(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}

/* Makes a value opaque to the compiler. Otherwise it hoists the epilogue's computation out of the
 * mainloop, for all parts at once, and spills. */
DEVICE uint32_t materialize(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* An epilogue that is spread over the next tile's first TICKS steps, with a delay between the two
 * warpgroups: while one computes, the other keeps the tensor cores busy. EPILOGUE has
 *
 *     epilogue_part(i, held, row, column, live)     i < TICKS
 *
 * A tile with missing rows runs all parts at once. */
template <class EPILOGUE> struct spread_epilogue : consumer_warpgroup {
    static constexpr int TICKS = 28, GROUP_DELAY = 3;
    int tick = TICKS, held_row, held_column;

    __device__ __forceinline__ spread_epilogue(const consumer_warpgroup &w) : consumer_warpgroup(w)
    {
    }
    __device__ __forceinline__ EPILOGUE *derived() { return static_cast<EPILOGUE *>(this); }
    __device__ __forceinline__ bool epilogue_pending() const { return tick < TICKS; }

    __device__ __forceinline__ void epilogue_step(const uint32_t (&held)[64])
    {
        if (tick >= 0)
            derived()->epilogue_part(tick, held, held_row, held_column, HALF);
        tick++;
    }

    __device__ __forceinline__ void epilogue_begin(float (&d)[128], uint32_t (&held)[64], int row,
                                                   int column, int live, bool none)
    {
        pack_accumulators(held, d, none);
        if (live < HALF) {
            for (int i = 0; i < TICKS; i++)
                derived()->epilogue_part(i, held, row, column, live);
            return;
        }
        tick = -GROUP_DELAY * group;
        held_row = row;
        held_column = column;
    }
};

} // namespace

#endif /* D9DI_CUDA_GEMM_GEMM_SWIGLU_SM90_CUH */
