/* cuda_gated_wgmma.cu - products with SwiGLU in their end on Hopper: cuda_wgmma.cuh.
 *
 * Forward, a tile has the same 128 columns of the gate and of the up product; both are stored, and
 * y of what was rounded.  Backward, a tile of dh is held; for each 64 columns gate and up are
 * copied to where dgate and dup are then put, and dh is never stored.
 */
#include "cuda_gated.h"
#include "cuda_swiglu.cuh"
#include "cuda_wgmma.cuh"

namespace
{

DEVICE float low(uint32_t two)
{
    return __uint_as_float(two << 16);
}
DEVICE float high(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}

/* A value that is computed from here on: else the compiler takes what is computed of it out of the
 * loop over steps, for all parts at once, to registers that are not there. */
DEVICE uint32_t here(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* What is held is done in small parts at some of the next tile's first TICKS steps, and by the two
 * groups at different ones: while one computes, the other keeps the tensor cores busy. */
enum { TICKS = 28, APART = 3 };

struct forward : crew {
    static constexpr int COLUMNS = BN / 2;
    static constexpr bool ADDS = false;

    struct args {
        void *gate, *up, *y; /* c[0], c[1] and c[2] of the maps */
    };
    const args &x;
    int tick = TICKS, held_row, held_column;

    __device__ __forceinline__ forward(const crew &w, const args &x) : crew(w), x(x) {}

    __device__ __forceinline__ bool holds() const { return tick < TICKS; }

    /* Gate or up of 64 columns, which are half of the tile's. */
    template <int HALF_OF, int WHAT>
    __device__ __forceinline__ void copy(const uint32_t (&held)[64], int row, int column, int live)
    {
        store_narrow(held + 16 * HALF_OF + 32 * WHAT, buffer(WHAT), WHAT, WHAT == 0 ? x.gate : x.up,
                     row, column + 64 * HALF_OF, live);
    }

    /* y of 32 of them, four registers at a time, since there are few; the last sends all 64. */
    template <int HALF_OF, int PART>
    __device__ __forceinline__ void make(const uint32_t (&held)[64], int row, int column, int live)
    {
        const uint32_t to = buffer(HALF_OF);

        if (PART == 0)
            wait_buffers<BUFFERS - 1>();
#pragma unroll
        for (int j = 2 * PART; j < 2 * PART + 2; j++) {
            uint32_t v[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t g = here(held[16 * HALF_OF + 4 * j + i]);
                const uint32_t u = here(held[32 + 16 * HALF_OF + 4 * j + i]);

                v[i] =
                    pack_bf16(swiglu_of<bf16>(low(g), low(u)), swiglu_of<bf16>(high(g), high(u)));
            }
            shared_store_matrices(matrices_at(to, j), v);
        }
        if (PART == 1)
            send_narrow(to, 2, x.y, row, column + 64 * HALF_OF, live);
    }

    /* In an order that takes the buffers in turn. */
    __device__ __forceinline__ void part(int i, const uint32_t (&held)[64], int row, int column,
                                         int live)
    {
        switch (i) {
        case 0: copy<0, 0>(held, row, column, live); break;
        case 3: copy<0, 1>(held, row, column, live); break;
        case 6: make<0, 0>(held, row, column, live); break;
        case 8: make<0, 1>(held, row, column, live); break;
        case 12: copy<1, 1>(held, row, column, live); break;
        case 15: copy<1, 0>(held, row, column, live); break;
        case 18: make<1, 0>(held, row, column, live); break;
        case 20: make<1, 1>(held, row, column, live); break;
        }
    }

    __device__ __forceinline__ void step(const uint32_t (&held)[64])
    {
        part(tick++, held, held_row, held_column, HALF);
    }

    __device__ __forceinline__ void finish(float (&d)[128], uint32_t (&held)[64], int row,
                                           int column, int live, bool none)
    {
        hold(held, d, none);
        if (live < HALF) {
            for (int i = 0; i < TICKS; i++)
                part(i, held, row, column, live);
            return;
        }
        tick = -APART * group;
        held_row = row;
        held_column = column;
    }
};

struct backward : crew {
    static constexpr int COLUMNS = BN;
    static constexpr bool ADDS = false;

    struct args {
        void *dgate, *dup; /* c[0] and c[1] of the maps; gate and up are c[2] and c[3] */
    };
    const args &x;
    int tick = TICKS, held_row, held_column;
    uint32_t parity = 0;

    __device__ __forceinline__ backward(const crew &w, const args &x) : crew(w), x(x) {}

    __device__ __forceinline__ bool holds() const { return tick < TICKS; }

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
        case 4:
            switch (i / EACH) {
            case 0: turn_back<0>(held); break;
            case 1: turn_back<0>(held + 16); break;
            case 2: turn_back<0>(held + 32); break;
            case 3: turn_back<0>(held + 48); break;
            }
            break;
        case 5:
            switch (i / EACH) {
            case 0: turn_back<1>(held); break;
            case 1: turn_back<1>(held + 16); break;
            case 2: turn_back<1>(held + 32); break;
            case 3: turn_back<1>(held + 48); break;
            }
            send(row, at, live);
            break;
        }
    }

    __device__ __forceinline__ void step(const uint32_t (&held)[64])
    {
        if (tick >= 0)
            part(tick, held, held_row, held_column, HALF);
        tick++;
    }

    __device__ __forceinline__ void finish(float (&d)[128], uint32_t (&held)[64], int row,
                                           int column, int live, bool none)
    {
        hold(held, d, none);
        if (live < HALF) {
            for (int i = 0; i < TICKS; i++)
                part(i, held, row, column, live);
            return;
        }
        tick = -APART * group;
        held_row = row;
        held_column = column;
    }
};

} // namespace

/* Of few rows other ways are faster. */
enum { LEAST_ROWS = 2 * BM };

bool d9di_gated_wgmma_takes(d9d_stream s, const d9d_gated_dims *n)
{
    return n->rows >= LEAST_ROWS && wgmma_takes(s, n->t, n->rows, n->e, n->h, n->i);
}

/* A matrix is [H, I] in the sense of FORM Y, or turned. */
d9d_status d9di_gated_wgmma(d9d_stream s, const d9d_gated_dims *n, void *y, void *gate, void *up,
                            const void *x, const void *w_gate, const void *w_up)
{
    const bool dense = n->offset == NULL;
    const job p = {n->offset, NULL, n->rows, (int)n->e, (int)n->i, (int)n->h, 1};
    const int64_t rows = dense ? n->i : n->e * n->h, columns = dense ? n->h : n->i;
    mapper map = {"gated_gemm", (encode *)s->encode_map, D9D_OK};
    maps m = {};

    map.operand(&m.a, x, n->rows, n->h, false, BM / 2);
    map.operand(&m.b, w_gate, rows, columns, !dense, BN / 2);
    map.operand(&m.b2, w_up, rows, columns, !dense, BN / 2);
    map.result(&m.c[0], D9D_BF16, gate, n->rows, n->i);
    map.result(&m.c[1], D9D_BF16, up, n->rows, n->i);
    map.result(&m.c[2], D9D_BF16, y, n->rows, n->i);
    D9D_TRY(map.st);
    return dense ? wgmma<D9DI_DX, forward>(s, map.op, m, p, {gate, up, y})
                 : wgmma<D9DI_Y, forward>(s, map.op, m, p, {gate, up, y});
}

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
