/* attention_varlen.cu - packed documents, and pieces of rows, as cuDNN's attention wants them. */
#include "cuda/attention/attention_simt.h"
#include "cuda/common/common.cuh"

static __global__ void list_kernel(d9d_attention_dims n, int64_t pieces, d9d_segment *list)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / pieces;
    const int64_t nq = n.s / pieces, q = i * nq;

    if (i >= n.b * pieces)
        return;
    list[i] = {(int32_t)q, (int32_t)nq, (int32_t)(row * n.z),
               (int32_t)(n.pieces > 0 ? n.end[i % pieces] : n.z)};
}

d9d_status d9di_documents_list(d9d_stream s, const d9di_attention *c, d9d_segment *list)
{
    const int64_t pieces = d9di_max(1, c->n.pieces), n = c->n.b * pieces;

    list_kernel<<<(unsigned)d9di_ceil_div(n, THREADS), THREADS, 0, d9di_queue(s)>>>(c->n, pieces,
                                                                                    list);
    return d9di_launched(c->op);
}

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

/* A document's cells: first ones, and how many. */
struct place {
    int64_t q, nq, k, nk;
};

static __device__ int64_t between(int64_t x, int64_t most)
{
    return d9di_max(0, d9di_min(x, most));
}

/* Of a list that is not well-formed, what lies in the arrays. */
static __device__ place place_of(const d9d_attention_dims &n, const d9d_segment &x)
{
    const int64_t q = between(x.q, n.b * n.s), k = between(x.k, n.b * n.z);

    return {q, between((int64_t)x.q + x.nq, n.b * n.s) - q, k,
            between((int64_t)x.k + x.nk, n.b * n.z) - k};
}

static __device__ bool wanted(const d9di_documents &d, const d9d_attention_dims &n, const place &x)
{
    const int64_t row = x.q / n.s - d.row, position = x.q % n.s - d.from;

    return x.nq >= d.shortest && x.nq <= d.longest && (d.longer ? x.nk > x.nq : x.nk == x.nq) &&
           row >= 0 && row < d.rows && position >= 0 && position < d.positions;
}

static __device__ void put_document(const d9di_documents &d, const d9d_attention_dims &n, int64_t i,
                                    const place &x)
{
    if (i < d.room) {
        d.at.length[i] = (int32_t)x.nq;
        d.at.length_k[i] = (int32_t)x.nk;
    }
    d.at.at_q[i] = x.q * n.a * n.d;
    d.at.at_k[i] = x.k * n.kv * n.d;
    d.at.at_lse[i] = x.q * n.a;
}

/* One block; documents stay in order. */
static __global__ void find_kernel(d9d_attention_dims n, d9di_documents d)
{
    const place end = {n.b * n.s, 0, n.b * n.z, 0};
    int64_t found = 0;

    for (int64_t i0 = 0; i0 < n.segments; i0 += THREADS) {
        const int64_t i = i0 + threadIdx.x;
        const place x = i < n.segments ? place_of(n, n.segment[i]) : end;
        const bool mine = wanted(d, n, x);
        int all;
        const int64_t at = found + count_before(mine, &all);

        if (mine && at < d.room)
            put_document(d, n, at, x);
        found += all;
    }
    for (int64_t i = d9di_min(found, d.room) + threadIdx.x; i <= d.room; i += THREADS)
        put_document(d, n, i, end);
}

d9d_status d9di_documents_find(d9d_stream s, const d9di_attention *c, const d9di_documents *d)
{
    find_kernel<<<1, THREADS, 0, d9di_queue(s)>>>(c->n, *d);
    return d9di_launched(c->op);
}

/* Of each document as many eights as a row of keys has at most, 8 `row`. */
static __global__ void add_kernel(d9d_attention_dims n, d9di_documents d, bf16 *to,
                                  const bf16 *from, int64_t row)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < d.room * row;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t document = i / row, in = i % row * 8;
        const int64_t left = d.at.length_k[document] * n.kv * n.d - in;
        const int64_t at = d.at.at_k[document] + in;
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

d9d_status d9di_documents_add(d9d_stream s, const d9di_attention *c, const d9di_documents *d,
                              const void *dk, const void *dv)
{
    const struct {
        void *to;
        const void *from;
    } grads[] = {{c->dk, dk}, {c->dv, dv}};
    const int64_t row = d9di_ceil_div(c->n.z * c->n.kv * c->n.d, 8);

    for (int i = 0; i < 2; i++) {
        add_kernel<<<blocks_for(s, d->room * row), THREADS, 0, d9di_queue(s)>>>(
            c->n, *d, (bf16 *)grads[i].to, (const bf16 *)grads[i].from, row);
        D9D_TRY(d9di_launched(c->op));
    }
    return D9D_OK;
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
