/* rope.cu - rotary position embedding (RoPE): pairs of features rotate by position * inv_freq. (a,
 * b) -> (a cos - b sin, b cos + a sin); sign -1 rotates back. */
#include "cuda/common/common.cuh"

struct rope_dims {
    int64_t m, heads, d, r;
    bool interleaved;
    float mscale, sign;
};

/* Rotate the eight pairs (a, b), or, where PAIRS is 4, those of neighbours in a. */
template <int PAIRS>
static __device__ __forceinline__ void rotate(float (&a)[8], float (&b)[8], const float (&co)[8],
                                              const float (&si)[8])
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        float &p = PAIRS == 8 ? a[j] : a[2 * j], &q = PAIRS == 8 ? b[j] : a[2 * j + 1];
        const float turned = p * co[j] - q * si[j];

        q = q * co[j] + p * si[j];
        p = turned;
    }
}

/* A warp has a token.  A lane has eight features of the first half and eight of the second, or
 * eight in a row where pairs are neighbours; their angles serve all heads, some at a time. */
template <class T, bool INTERLEAVED>
static __global__ void rope_kernel(T *y, const T *x, const int32_t *positions,
                                   const float *inv_freq, rope_dims n)
{
    enum { PAIRS = INTERLEAVED ? 4 : 8 };
    const int64_t i = group_row<WARP>();
    const int lane = threadIdx.x % WARP, pairs = (int)n.r / 2;
    const int width = INTERLEAVED ? 2 * pairs : pairs, vectors = (width + 7) / 8;
    const int side = vectors < 1 ? 1 : vectors < WARP ? vectors : WARP, at_once = WARP / side;
    const int copied = (int)(n.d - n.r + 7) / 8; /* vectors of a head that do not rotate */
    float co[8], si[8], a[8], b[8];

    pdl_launch_dependents();
    pdl_wait();
    if (i >= n.m)
        return;
    x += i * n.heads * n.d;
    y += i * n.heads * n.d;
    for (int v = lane % side; v < vectors && lane < at_once * side; v += side) {
        const int f = 8 * v, left = width - f;

        for (int j = 0; j < PAIRS; j++) {
            const int pair = v * PAIRS + j < pairs ? v * PAIRS + j : 0;

            sincosf((float)positions[i] * inv_freq[pair], &si[j], &co[j]);
            co[j] *= n.mscale;
            si[j] *= n.mscale * n.sign;
        }
        for (int64_t h = lane / side; h < n.heads; h += at_once) {
            const int64_t at = h * n.d + f;

            load8(a, x + at, left);
            if (!INTERLEAVED)
                load8(b, x + at + pairs, left);
            rotate<PAIRS>(a, b, co, si);
            store8(y + at, a, left);
            if (!INTERLEAVED)
                store8(y + at + pairs, b, left);
        }
    }
    for (int k = lane; k < (int)n.heads * copied; k += WARP) {
        const int64_t f = n.r + k % copied * 8, at = k / copied * n.d + f;

        load8(a, x + at, n.d - f);
        store8(y + at, a, n.d - f);
    }
}

template <class T>
static d9d_status launch_rope(d9d_stream s, void *y, const void *x, const int32_t *positions,
                              const float *inv_freq, const rope_dims &n)
{
    auto kernel = n.interleaved ? rope_kernel<T, true> : rope_kernel<T, false>;

    return pdl_launch(s, "rope", kernel, grid_for_rows(n.m, WARP), THREADS, (T *)y, (const T *)x,
                      positions, inv_freq, n);
}

d9d_status d9d_k_rope(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *positions,
                      const float *inv_freq, int64_t m, int64_t heads, int64_t d, int64_t r,
                      bool interleaved, float mscale, float sign)
{
    const rope_dims n = {m, heads, d, r, interleaved, mscale, sign};

    D9D_TRY(d9di_args_check_float("rope", t));
    return m == 0 ? D9D_OK
                  : D9DI_DISPATCH_DTYPE(t, T, launch_rope<T>(s, y, x, positions, inv_freq, n));
}
