/* radix_sort.cu - stable radix sort of int32 keys, which returns positions and the start of each
 * key. Deterministic.
 *
 * Algorithm: least significant digit first, BITS = 8 per pass, as many passes as the largest key
 * needs; MoE with up to 255 experts needs one. A pass has three launches:
 *
 *     count_kernel   digits of every tile                 total[digit][tile]
 *     scan_kernel    exclusive prefix sum, digit-major    where each tile's items of a digit go
 *     move_kernel    item -> its tile's place for its digit + its rank within the tile
 *
 *     cub                                      here
 *     DeviceRadixSort::SortPairs               d9di_radix_sort()
 *     upsweep: BlockRadixRank, histogram       count_kernel, count_digits()
 *     DeviceScan::ExclusiveSum                 scan_kernel
 *     downsweep (scatter)                      move_kernel
 *     BlockRadixRankMatch (MatchAny)           __match_any_sync() in count_digits(), move_kernel
 *     RADIX_BITS, ITEMS_PER_THREAD             BITS, ITEMS_PER_THREAD
 *     onesweep, decoupled look-back            none: three launches per pass
 *
 *     tile       | warp 0: 4 x 32 items | warp 1 | ...        THREADS x ITEMS_PER_THREAD items
 *     a round    lanes  0  1  2  3 ...                         items in order, one per lane
 *                digit  5  2  5  5
 *                rank   0  0  1  2                             equal digits ranked by lane
 *
 * Items are taken 32 at a time in order and equal digits ranked by lane, so nothing depends on
 * timing.
 *
 * Measured: no separate benchmark. docs/benchmarks/several-gpus.md has the effect of fewer passes
 * on a training step of Qwen3-30B-A3B.
 */
#include "cuda/common/common.cuh"

enum {
    BITS = 8,
    BINS = 1 << BITS,
    ITEMS_PER_THREAD = 4,
    TILE = THREADS * ITEMS_PER_THREAD,
    SCAN = 1024
};

/* The key that is sorted: negative ones become `keys`, too large ones keys - 1. */
static __device__ __forceinline__ int32_t clamp_key(const int32_t *key, int64_t i, int64_t keys)
{
    return (int32_t)(key[i] < 0 ? keys : d9di_i64_min(key[i], keys - 1));
}

/* A pass. Item i has a position in the input and a digit. */
struct radix_pass {
    const int32_t *key, *in; /* in NULL: item i is position i */
    int64_t n, keys;
    int shift;
};
static __device__ __forceinline__ int32_t pass_item(const radix_pass &p, int64_t i)
{
    return p.in == NULL ? (int32_t)i : p.in[i];
}
static __device__ __forceinline__ int item_digit(const radix_pass &p, int64_t i)
{
    return clamp_key(p.key, pass_item(p, i), p.keys) >> p.shift & (BINS - 1);
}

/* The first item of this thread; its next ones are WARP apart. */
static __device__ __forceinline__ int64_t thread_first_item(void)
{
    return (int64_t)blockIdx.x * TILE + threadIdx.x / WARP * (WARP * ITEMS_PER_THREAD) +
           threadIdx.x % WARP;
}

/* Counts the digits of each warp's items. */
static __device__ void count_digits(const radix_pass &p, int (*count)[BINS])
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;

    for (int b = lane; b < BINS; b += WARP)
        count[warp][b] = 0;
    __syncwarp();
    for (int r = 0; r < ITEMS_PER_THREAD; r++) {
        const int64_t i = thread_first_item() + r * WARP;
        const int d = i < p.n ? item_digit(p, i) : -1;
        const unsigned same = __match_any_sync(~0u, d);

        if (d >= 0 && lane == __ffs(same) - 1)
            count[warp][d] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) count_kernel(radix_pass p, int *total)
{
    __shared__ int count[WARPS][BINS];

    count_digits(p, count);
    for (int b = threadIdx.x; b < BINS; b += THREADS) {
        int sum = 0;

        for (int w = 0; w < WARPS; w++)
            sum += count[w][b];
        total[(int64_t)b * gridDim.x + blockIdx.x] = sum;
    }
}

/* Exclusive prefix sum in place, by one block; a thread has a contiguous range. */
static __global__ void __launch_bounds__(SCAN) scan_kernel(int *x, int64_t n)
{
    __shared__ int sums[SCAN];
    const int64_t per_thread = d9di_i64_ceil_div(n, SCAN);
    const int64_t first = d9di_i64_min(n, threadIdx.x * per_thread),
                  end = d9di_i64_min(n, first + per_thread);
    int sum = 0, before;

    for (int64_t i = first; i < end; i++)
        sum += x[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int o = 1; o < SCAN; o *= 2) {
        before = threadIdx.x >= o ? sums[threadIdx.x - o] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    before = sums[threadIdx.x] - sum;
    for (int64_t i = first; i < end; i++) {
        const int v = x[i];

        x[i] = before;
        before += v;
    }
}

/* start, if not NULL, receives where each key begins; only if one pass sees whole keys. */
static __global__ void __launch_bounds__(THREADS)
    move_kernel(radix_pass p, const int *before, int32_t *out, int32_t *start)
{
    __shared__ int offset[WARPS][BINS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;

    count_digits(p, offset);
    for (int64_t x = threadIdx.x; start != NULL && blockIdx.x == 0 && x <= p.keys; x += THREADS)
        start[x] = before[x * gridDim.x];
    for (int b = threadIdx.x; b < BINS && b <= p.keys; b += THREADS) {
        int at = before[(int64_t)b * gridDim.x + blockIdx.x];

        for (int w = 0; w < WARPS; w++) {
            const int v = offset[w][b];

            offset[w][b] = at;
            at += v;
        }
    }
    __syncthreads();
    for (int r = 0; r < ITEMS_PER_THREAD; r++) {
        const int64_t i = thread_first_item() + r * WARP;
        const int d = i < p.n ? item_digit(p, i) : -1;
        const unsigned same = __match_any_sync(~0u, d);

        if (d >= 0)
            out[offset[warp][d] + __popc(same & ((1u << lane) - 1))] = pass_item(p, i);
        __syncwarp();
        if (d >= 0 && lane == __ffs(same) - 1)
            offset[warp][d] += __popc(same);
        __syncwarp();
    }
}

/* Binary search: the first position in the order whose key is not below x. */
static __global__ void start_kernel(int32_t *start, const int32_t *key, const int32_t *order,
                                    int64_t n, int64_t keys)
{
    const int64_t x = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t low = 0, high = n;

    if (x > keys)
        return;
    while (low < high) {
        const int64_t mid = (low + high) / 2;

        if (clamp_key(key, order[mid], keys) < x)
            low = mid + 1;
        else
            high = mid;
    }
    start[x] = (int32_t)low;
}

static int passes_for(int64_t keys)
{
    int n = 1;

    while (keys >> (n * BITS) > 0)
        n++;
    return n;
}

d9d_status d9di_radix_sort(d9d_stream s, const char *op, const int32_t *key, int64_t n,
                           int64_t keys, int32_t *order, int32_t *start)
{
    const int64_t tiles = d9di_i64_ceil_div(n, TILE), counts = BINS * tiles;
    const int64_t bytes = (n + counts) * (int64_t)sizeof(int32_t);
    const int passes = passes_for(keys);
    cudaStream_t stream = d9di_cuda_stream(s);
    radix_pass p = {key, NULL, n, keys, 0};
    int32_t *other, *total;
    void *scratch;

    if (n > 0) {
        D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &scratch));
        other = (int32_t *)scratch;
        total = other + n;
        for (int i = 0; i < passes; i++, p.shift += BITS) {
            int32_t *out = (passes - i) % 2 ? order : other; /* the last pass writes to `order` */

            count_kernel<<<(unsigned)tiles, THREADS, 0, stream>>>(p, total);
            scan_kernel<<<1, SCAN, 0, stream>>>(total, passes == 1 ? (keys + 1) * tiles : counts);
            move_kernel<<<(unsigned)tiles, THREADS, 0, stream>>>(p, total, out,
                                                                 passes == 1 ? start : NULL);
            p.in = out;
        }
        d9di_cuda_scratch_free(s, scratch, bytes);
    }
    if (n == 0 || passes > 1)
        start_kernel<<<(unsigned)d9di_i64_ceil_div(keys + 1, THREADS), THREADS, 0, stream>>>(
            start, key, order, n, keys);
    return d9di_cuda_check_launch(op);
}
