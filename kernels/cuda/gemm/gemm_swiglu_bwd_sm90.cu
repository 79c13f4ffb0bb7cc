/* gemm_swiglu_bwd_sm90.cu - the product before the gradient of SwiGLU, which is in its end, on
 * Hopper: wgmma.cuh.
 *
 * A tile of dh is held; for each 64 columns gate and up are copied to where dgate and dup are then
 * put, and dh is never stored.
 */
#include "cuda/gemm/gemm_swiglu_sm90.cuh"

namespace
{

struct backward : spread<backward> {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = false;

    struct args {
        void *dgate, *dup; /* c[0] and c[1] of the maps; gate and up are c[2] and c[3] */
    };
    const args &x;
    uint32_t parity = 0;

    __device__ __forceinline__ backward(const crew &w, const args &x) : spread(w), x(x) {}

    /* Gate and up of 64 columns to the two buffers. */
    __device__ __forceinline__ void fetch(int row, int at)
    {
        const uint32_t b = this->at.brought + 8 * group;

        if (thread != 0)
            return;
        stores_read<0>();
        if (at >= p.n) { /* behind the last column */
            barrier_arrive(b);
            return;
        }
        barrier_arrive_expecting(b, 2 * CHUNK);
        box_load(buffer(0), &m.c[2], b, at, row);
        box_load(buffer(1), &m.c[3], b, at, row);
    }

    /* 32 of them in place, since a warp has the same rows of all. */
    template <int PART> __device__ __forceinline__ void turn_back(const uint32_t *dh)
    {
        const uint32_t gates = buffer(0), ups = buffer(1);

        if (PART == 0) {
            barrier_wait(this->at.brought + 8 * group, parity);
            parity ^= 1;
        }
#pragma unroll
        for (int j = 2 * PART; j < 2 * PART + 2; j++) {
            uint32_t g[4], u[4];

            shared_load_matrices(g, matrices_at(gates, j));
            shared_load_matrices(u, matrices_at(ups, j));
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t d = here(dh[4 * j + i]);
                float g0, u0, g1, u1;

                swiglu_grad_of<bf16>(g0, u0, low(d), low(g[i]), low(u[i]));
                swiglu_grad_of<bf16>(g1, u1, high(d), high(g[i]), high(u[i]));
                g[i] = pack_bf16(g0, g1);
                u[i] = pack_bf16(u0, u1);
            }
            shared_store_matrices(matrices_at(gates, j), g);
            shared_store_matrices(matrices_at(ups, j), u);
        }
    }

    /* Of the quarter of the tile's columns; registers have no numbers at run time. */
    template <int PART>
    __device__ __forceinline__ void turn_back(int quarter, const uint32_t (&held)[64])
    {
        switch (quarter) {
        case 0: turn_back<PART>(held); break;
        case 1: turn_back<PART>(held + 16); break;
        case 2: turn_back<PART>(held + 32); break;
        case 3: turn_back<PART>(held + 48); break;
        }
    }

    /* dgate and dup of the 64. */
    __device__ __forceinline__ void send(int row, int at, int live)
    {
        const uint32_t gates = buffer(0), ups = buffer(1);

        shared_stores_done();
        sync_threads(1 + group, GROUP);
        if (live < HALF) {
            store_rows(gates, x.dgate, row, at, live);
            store_rows(ups, x.dup, row, at, live);
            sync_threads(1 + group, GROUP); /* before more is fetched */
        } else if (thread == 0 && at < p.n) {
            box_store(&m.c[0], gates, at, row);
            box_store(&m.c[1], ups, at, row);
        }
        if (thread == 0)
            stores_commit();
    }

    __device__ __forceinline__ void part(int i, const uint32_t (&held)[64], int row, int column,
                                         int live)
    {
        constexpr int EACH = TICKS / 4;
        const int at = column + i / EACH * 64;

        switch (i % EACH) {
        case 0: fetch(row, at); break;
        case 4: turn_back<0>(i / EACH, held); break;
        case 5:
            turn_back<1>(i / EACH, held);
            send(row, at, live);
            break;
        }
    }
};

} // namespace

d9d_status d9di_gated_din_wgmma(d9d_stream s, const d9d_gated_dims *n, void *dgate, void *dup,
                                const void *dy, const void *w, const void *gate, const void *up)
{
    const bool dense = n->offset == NULL;
    const job p = {n->offset, NULL, n->rows, (int)n->e, (int)n->i, (int)n->h, 1};
    const int64_t rows = dense ? n->h : n->e * n->i, columns = dense ? n->i : n->h;
    mapper map = {"gated_gemm_din", (encode *)s->encode_map, D9D_OK};
    maps m = {};

    map.operand(&m.a, dy, n->rows, n->h, false, BM / 2);
    map.operand(&m.b, w, rows, columns, dense, BN / 2);
    map.result(&m.c[0], D9D_BF16, dgate, n->rows, n->i);
    map.result(&m.c[1], D9D_BF16, dup, n->rows, n->i);
    map.result(&m.c[2], D9D_BF16, gate, n->rows, n->i);
    map.result(&m.c[3], D9D_BF16, up, n->rows, n->i);
    D9D_TRY(map.st);
    return dense ? wgmma<D9DI_Y, backward>(s, map.op, m, p, {dgate, dup})
                 : wgmma<D9DI_DX, backward>(s, map.op, m, p, {dgate, dup});
}
