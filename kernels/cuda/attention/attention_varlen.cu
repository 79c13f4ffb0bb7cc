/* attention_varlen.cu - packed documents and context-parallel chunks, in the varlen form that
 * cuDNN's attention expects. */
#include "cuda/attention/attention_call.h"
#include "cuda/common/common.cuh"

static __global__ void list_segments_kernel(d9d_attention_dims n, int64_t chunks, d9d_segment *list)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / chunks;
    const int64_t nq = n.s / chunks, q = i * nq;

    if (i >= n.b * chunks)
        return;
    list[i] = {(int32_t)q, (int32_t)nq, (int32_t)(row * n.z),
               (int32_t)(n.chunks > 0 ? n.chunk_end[i % chunks] : n.z)};
}

d9d_status d9di_attention_varlen_list(d9d_stream s, const d9di_attention_call *c, d9d_segment *list)
{
    const int64_t chunks = d9di_i64_max(1, c->n.chunks), n = c->n.b * chunks;

    list_segments_kernel<<<(unsigned)d9di_i64_ceil_div(n, THREADS), THREADS, 0,
                           d9di_cuda_stream(s)>>>(c->n, chunks, list);
    return d9di_cuda_check_launch(c->op);
}

/* Number of threads before this one in the block that say yes; *all is the block's total. */
static __device__ int block_exclusive_count(bool yes, int *all)
{
    __shared__ int count[WARPS];
    const unsigned votes = __ballot_sync(~0u, yes);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int before = __popc(votes & ((1u << lane) - 1));

    __syncthreads(); /* the last counts have been read */
    if (lane == 0)
        count[warp] = __popc(votes);
    __syncthreads();
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? count[w] : 0;
        *all += count[w];
    }
    return before;
}

/* A document's tokens: the first query and key, and how many of each. */
struct document_extent {
    int64_t q, nq, k, nk;
};

static __device__ int64_t clamp_to(int64_t x, int64_t limit)
{
    return d9di_i64_max(0, d9di_i64_min(x, limit));
}

/* Clamped to the arrays, in case the list is not well-formed. */
static __device__ document_extent document_extent_of(const d9d_attention_dims &n,
                                                     const d9d_segment &x)
{
    const int64_t q = clamp_to(x.q, n.b * n.s), k = clamp_to(x.k, n.b * n.z);

    return {q, clamp_to((int64_t)x.q + x.nq, n.b * n.s) - q, k,
            clamp_to((int64_t)x.k + x.nk, n.b * n.z) - k};
}

static __device__ bool document_selected(const d9di_attention_varlen &d,
                                         const d9d_attention_dims &n, const document_extent &x)
{
    const int64_t row = x.q / n.s - d.row, position = x.q % n.s - d.from;

    return x.nq >= d.min_len && x.nq <= d.max_len && (d.longer ? x.nk > x.nq : x.nk == x.nq) &&
           row >= 0 && row < d.rows && position >= 0 && position < d.positions;
}

static __device__ void document_store(const d9di_attention_varlen &d, const d9d_attention_dims &n,
                                      int64_t i, const document_extent &x)
{
    if (i < d.capacity) {
        d.at.len_q[i] = (int32_t)x.nq;
        d.at.len_k[i] = (int32_t)x.nk;
    }
    d.at.offset_q[i] = x.q * n.a * n.d;
    d.at.offset_k[i] = x.k * n.kv * n.d;
    d.at.offset_v[i] = x.k * n.kv * n.dv;
    d.at.offset_o[i] = x.q * n.a * n.dv;
    d.at.offset_lse[i] = x.q * n.a;
}

/* One block selects documents; they stay in order. */
static __global__ void varlen_find_kernel(d9d_attention_dims n, d9di_attention_varlen d)
{
    const document_extent end = {n.b * n.s, 0, n.b * n.z, 0};
    int64_t found = 0;

    for (int64_t i0 = 0; i0 < n.segments; i0 += THREADS) {
        const int64_t i = i0 + threadIdx.x;
        const document_extent x = i < n.segments ? document_extent_of(n, n.segment[i]) : end;
        const bool selected = document_selected(d, n, x);
        int all;
        const int64_t at = found + block_exclusive_count(selected, &all);

        if (selected && at < d.capacity)
            document_store(d, n, at, x);
        found += all;
    }
    for (int64_t i = d9di_i64_min(found, d.capacity) + threadIdx.x; i <= d.capacity; i += THREADS)
        document_store(d, n, i, end);
}

d9d_status d9di_attention_varlen_find(d9d_stream s, const d9di_attention_call *c,
                                      const d9di_attention_varlen *d)
{
    varlen_find_kernel<<<1, THREADS, 0, d9di_cuda_stream(s)>>>(c->n, *d);
    return d9di_cuda_check_launch(c->op);
}

/* A document has at most as many vectors of eight elements as a row of keys, of `row` elements 8.
 */
static __global__ void add_dkv_kernel(d9d_attention_dims n, d9di_attention_varlen d, bf16 *to,
                                      const bf16 *from, int64_t row)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < d.capacity * row;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t document = i / row, in = i % row * 8;
        const int64_t left = d.at.len_k[document] * n.kv * n.d - in;
        const int64_t at = d.at.offset_k[document] + in;
        float a[8], b[8];

        if (left <= 0)
            continue;
        load8(a, to + at, left);
        load8(b, from + at, left);
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] += b[j];
        store8(to + at, a, left);
    }
}

d9d_status d9di_attention_varlen_add_dkv(d9d_stream s, const d9di_attention_call *c,
                                         const d9di_attention_varlen *d, const void *dk,
                                         const void *dv)
{
    const struct {
        void *to;
        const void *from;
    } grads[] = {{c->dk, dk}, {c->dv, dv}};
    const int64_t row = d9di_i64_ceil_div(c->n.z * c->n.kv * c->n.d, 8);

    for (int i = 0; i < 2; i++) {
        add_dkv_kernel<<<grid_for(s, d->capacity * row), THREADS, 0, d9di_cuda_stream(s)>>>(
            c->n, *d, (bf16 *)grads[i].to, (const bf16 *)grads[i].from, row);
        D9D_TRY(d9di_cuda_check_launch(c->op));
    }
    return D9D_OK;
}

/* Enumerates elements in the order of the packed array. */
static __global__ void lse_transpose_kernel(float *lse, float *packed, int64_t s, int64_t a,
                                            int64_t n, bool to_packed)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t token = i / a, h = i % a, at = (token / s * a + h) * s + token % s;

        if (to_packed)
            packed[i] = lse[at];
        else
            lse[at] = packed[i];
    }
}

d9d_status d9di_attention_lse_transpose(d9d_stream s, const d9di_attention_call *c, float *packed,
                                        bool to_packed)
{
    const int64_t n = c->n.b * c->n.s * c->n.a;

    lse_transpose_kernel<<<grid_for(s, n), THREADS, 0, d9di_cuda_stream(s)>>>(
        c->lse, packed, c->n.s, c->n.a, n, to_packed);
    return d9di_cuda_check_launch(c->op);
}
