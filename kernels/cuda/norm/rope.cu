/* rope.cu - rotary position embedding (RoPE): pairs of features rotate by position * inv_freq. (a,
 * b) -> (a cos - b sin, b cos + a sin); sign -1 rotates back. */
#include "cuda/common/common.cuh"

struct rope_dims {
    int64_t m, heads, d, r;
    bool interleaved;
    float mscale, sign;
};

/* A warp has a token, and its lanes pairs of features, whose angle serves all heads. */
template <class T>
static __global__ void rope_kernel(T *y, const T *x, const int32_t *positions,
                                   const float *inv_freq, rope_dims n)
{
    const int64_t i = group_row<WARP>();
    const int lane = threadIdx.x % WARP;

    if (i >= n.m)
        return;
    for (int64_t f = lane; f < n.r / 2; f += WARP) {
        const int64_t ia = n.interleaved ? 2 * f : f, ib = n.interleaved ? ia + 1 : f + n.r / 2;
        float si, co;

        sincosf((float)positions[i] * inv_freq[f], &si, &co);
        co *= n.mscale;
        si *= n.mscale * n.sign;
        for (int64_t h = 0; h < n.heads; h++) {
            const int64_t at = (i * n.heads + h) * n.d;
            const float a = to_float(x[at + ia]), b = to_float(x[at + ib]);

            store_float(y + at + ia, a * co - b * si);
            store_float(y + at + ib, b * co + a * si);
        }
    }
    for (int64_t h = 0; h < n.heads; h++)
        for (int64_t f = n.r + lane; f < n.d; f += WARP)
            y[(i * n.heads + h) * n.d + f] = x[(i * n.heads + h) * n.d + f];
}

/* The same if half-heads rotate and are multiples of eight: a lane has eight pairs of some heads.
 */
template <class T>
static __global__ void rope_halves_kernel(T *y, const T *x, const int32_t *positions,
                                          const float *inv_freq, rope_dims n)
{
    const int64_t i = group_row<WARP>();
    const int half = (int)n.r / 2, eighths = half / 8, lane = threadIdx.x % WARP;
    const int at_once = WARP / eighths, f = lane % eighths * 8; /* heads; the first pair */
    float co[8], si[8], a[8], b[8], turned[8];

    if (i >= n.m || lane >= at_once * eighths)
        return;
    for (int j = 0; j < 8; j++) {
        sincosf((float)positions[i] * inv_freq[f + j], &si[j], &co[j]);
        co[j] *= n.mscale;
        si[j] *= n.mscale * n.sign;
    }
    for (int64_t h = lane / eighths; h < n.heads; h += at_once) {
        const int64_t at = (i * n.heads + h) * n.d + f;

        load8(a, x + at, 8);
        load8(b, x + at + half, 8);
        for (int j = 0; j < 8; j++)
            turned[j] = a[j] * co[j] - b[j] * si[j];
        store8(y + at, turned, 8);
        for (int j = 0; j < 8; j++)
            turned[j] = b[j] * co[j] + a[j] * si[j];
        store8(y + at + half, turned, 8);
    }
}

template <class T>
static d9d_status launch_rope(d9d_stream s, void *y, const void *x, const int32_t *positions,
                              const float *inv_freq, const rope_dims &n)
{
    const bool halves = !n.interleaved && n.r == n.d && n.r % 16 == 0 && n.r <= 16 * WARP;
    auto kernel = halves ? rope_halves_kernel<T> : rope_kernel<T>;

    kernel<<<grid_for_rows(n.m, WARP), THREADS, 0, d9di_cuda_stream(s)>>>((T *)y, (const T *)x,
                                                                          positions, inv_freq, n);
    return d9di_cuda_check_launch("rope");
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
