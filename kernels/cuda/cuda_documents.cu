/* cuda_documents.cu - packed documents, square segments, as cuDNN's attention wants them. */
#include "cuda_attention.h"
#include "cuda_common.cuh"

/* How many threads of the block before this one say yes; *all of them. */
static __device__ int count_before(bool yes, int *all)
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

static __device__ void put_document(const d9di_documents &d, const d9d_attention_dims &n, int64_t i,
                                    int64_t token, int64_t length)
{
    if (i < d.room)
        d.length[i] = (int32_t)length;
    d.at_q[i] = token * n.a * n.d;
    d.at_k[i] = token * n.kv * n.d;
    d.at_lse[i] = token * n.a;
}

/* One block; documents stay in order. */
static __global__ void find_kernel(d9d_attention_dims n, d9di_documents d)
{
    const int64_t tokens = n.b * n.s;
    int64_t found = 0;

    for (int64_t i0 = 0; i0 < n.segments; i0 += THREADS) {
        const int64_t i = i0 + threadIdx.x;
        const d9d_segment x = i < n.segments ? n.segment[i] : d9d_segment{0, 0, 0, 0};
        const int64_t first = d9di_min(tokens, d9di_max(0, x.q));
        const int64_t end = d9di_min(tokens, (int64_t)x.q + x.nq);
        const bool mine = end - first >= d.shortest && end - first <= d.longest;
        int all;
        const int64_t at = found + count_before(mine, &all);

        if (mine && at < d.room)
            put_document(d, n, at, first, end - first);
        found += all;
    }
    for (int64_t i = d9di_min(found, d.room) + threadIdx.x; i <= d.room; i += THREADS)
        put_document(d, n, i, tokens, 0);
}

d9d_status d9di_documents_find(d9d_stream s, const d9di_attention *c, const d9di_documents *d)
{
    find_kernel<<<1, THREADS, 0, d9di_queue(s)>>>(c->n, *d);
    return d9di_launched(c->op);
}

/* In the order of the packed one. */
static __global__ void turn_kernel(float *lse, float *packed, int64_t s, int64_t a, int64_t n,
                                   bool to_packed)
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

d9d_status d9di_lse_turn(d9d_stream s, const d9di_attention *c, float *packed, bool to_packed)
{
    const int64_t n = c->n.b * c->n.s * c->n.a;

    turn_kernel<<<blocks_for(s, n), THREADS, 0, d9di_queue(s)>>>(c->lse, packed, c->n.s, c->n.a, n,
                                                                 to_packed);
    return d9di_launched(c->op);
}
