/* gemm_swiglu_sm90.cu - products with SwiGLU in their end on Hopper: wgmma.cuh.
 *
 * A tile has the same 128 columns of the gate and of the up product; both are stored, and y of what
 * was rounded.
 */
#include "cuda/gemm/gemm_swiglu_sm90.cuh"

namespace
{

struct forward : spread<forward> {
    static constexpr int COLUMNS = BN / 2;
    static constexpr bool ADDS = false;

    struct args {
        void *gate, *up, *y; /* c[0], c[1] and c[2] of the maps */
    };
    const args &x;

    __device__ __forceinline__ forward(const crew &w, const args &x) : spread(w), x(x) {}

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
