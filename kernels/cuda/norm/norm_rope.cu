/* norm_rope.cu - QK norm and RoPE in one pass, forward and backward; and the fused forward of
 * several arrays into KV-cache slots (decode).
 *
 * G threads have a token, eight features each of one head after the other, so that the angles are
 * made once a token; where there are few tokens, the forward's have one head each.  A feature's
 * partner, R/2 away, is with another of them: it comes by a shuffle, of an odd multiple of four as
 * R/2 from two of them, ACROSS.  Backward turns dy back and is the gradient of the norm then, dw
 * summed along.
 *
 * So for halves, R and D multiples of 8 and D up to 256; else the two kernels run one after the
 * other.
 */
#include "cuda/norm/norm.cuh"

enum { MAX_PARTS = 384, MAX_HEAD_SIZE = 256, MAX_SINGLE_ROUND_TOKENS = 256, ARRAYS = 3 };

template <class T> struct norm_rope_args {
    T *y; /* or dx, which may be NULL */
    const T *dy, *x, *w;
    float *inv, *part;
    d9d_qk_norm_rope_dims n;
    int64_t rounds;    /* tokens of a thread group; in the forward, heads */
    const int32_t *to; /* forward: rows of y; NULL: in order */
    bool rotates;      /* forward */
};

/* The arrays of one forward. No kernel in flight writes its indices and frequencies: see
 * d9d_qk_norm_rope_heads. */
template <class T> struct norm_rope_list {
    norm_rope_args<T> of[ARRAYS];
    bool still;
};

/* The features of a thread: where they begin, which lanes have the partners of the first four and
 * of the others, their angles. */
struct rope_lane {
    int at, partner[2];
    float co[8], si[8];
};

template <int G>
static __device__ __forceinline__ rope_lane rope_lane_of(const d9d_qk_norm_rope_dims &n,
                                                         int64_t token, float sign)
{
    const int lane = threadIdx.x % G, half = (int)n.r / 2, base = threadIdx.x % WARP - lane;
    rope_lane t = {lane * 8, {base + lane, base + lane}, {}, {}};

    for (int j = 0; j < 8; j++)
        t.co[j] = 1.0f;
    if (t.at >= n.r) /* these do not rotate */
        return t;
    for (int j = 0; j < 2; j++) {
        const int f = t.at + 4 * j;

        t.partner[j] = base + (f < half ? f + half : f - half) / 8;
    }
    for (int j = 0; j < 8; j++) {
        const int f = t.at + j;
        const bool left = f < half;

        sincosf((float)n.positions[token] * n.inv_freq[left ? f : f - half], &t.si[j], &t.co[j]);
        t.co[j] *= n.mscale;
        t.si[j] *= n.mscale * (left ? -sign : sign);
    }
    return t;
}

template <int G, bool ACROSS>
static __device__ __forceinline__ void rotate(float (&v)[8], const rope_lane &t)
{
    const unsigned sharing = G >= WARP ? ~0u : ((1u << G % WARP) - 1) << threadIdx.x % WARP / G * G;

#pragma unroll
    for (int j = 0; j < (ACROSS ? 4 : 8); j++) { /* what is sent is not yet turned */
        const int k = ACROSS ? j + 4 : j;
        const float one = __shfl_sync(sharing, v[k], t.partner[0]);
        const float two = ACROSS ? __shfl_sync(sharing, v[j], t.partner[1]) : 0.0f;

        v[j] = v[j] * t.co[j] + one * t.si[j];
        if (ACROSS)
            v[k] = v[k] * t.co[k] + two * t.si[k];
    }
}

/* The weights of a thread's features, zeros beyond the head. */
template <class T>
static __device__ __forceinline__ void load_weights(float (&w)[8], const norm_rope_args<T> &p,
                                                    int at)
{
    load8(w, p.w + at, p.n.d - at);
    for (int j = 0; j < 8; j++)
        w[j] += p.n.zero_centred ? 1.0f : 0.0f;
}

/* Grid: blocks of rows, arrays. */
template <class T, int G, bool ACROSS>
static __global__ void __launch_bounds__(THREADS) norm_rope_kernel(norm_rope_list<T> all)
{
    const norm_rope_args<T> &p = all.of[blockIdx.y];
    const int64_t per = d9di_i64_max(1, d9di_i64_ceil_div(p.n.heads, p.rounds)), d = p.n.d;
    const int64_t i = group_row<G>() / per, first = group_row<G>() % per * p.rounds;
    const int64_t end = d9di_i64_min(p.n.heads, first + p.rounds);
    float v[8], w[8];
    constexpr int AHEAD = G == WARP / 4 ? 2 : 1; /* heads with loads under way */
    raw8<T> next[AHEAD];

    pdl_launch_dependents();
    if (!all.still || i >= p.n.m)
        pdl_wait();
    if (i >= p.n.m)
        return;
    const rope_lane t = rope_lane_of<G>(p.n, i, 1.0f);
    const int64_t here = d - t.at; /* features from this thread's first to the head's end */
    const int64_t to = p.to != NULL ? p.to[i] : i;

    pdl_wait();
    if (p.w != NULL)
        load_weights(w, p, t.at);
    for (int k = 0; k < AHEAD; k++)
        fetch8(next[k], p.x + (i * p.n.heads + first + k) * d + t.at, first + k < end ? here : 0);
    for (int64_t h0 = first; h0 < end; h0 += AHEAD)
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t h = h0 + k, row = i * p.n.heads + h;
            float sum = 0.0f, scale;

            if (h >= end)
                break;
            unpack8(v, next[k]);
            fetch8(next[k], p.x + (row + AHEAD) * d + t.at, h + AHEAD < end ? here : 0);
            if (p.w != NULL) {
                for (int j = 0; j < 8; j++)
                    sum = fmaf(v[j], v[j], sum);
                scale = 1.0f / sqrtf(group_sum<G>(sum) / (float)d + p.n.eps);
                if (t.at == 0 && p.inv != NULL)
                    p.inv[row] = scale;
                for (int j = 0; j < 8; j++)
                    v[j] = v[j] * scale * w[j];
            }
            if (p.rotates)
                rotate<G, ACROSS>(v, t);
            if (here > 0 && to >= 0)
                store8(p.y + (to * p.n.heads + h) * d + t.at, v, here);
        }
}

template <class T, int G, bool ACROSS>
static __global__ void __launch_bounds__(THREADS, 3) norm_rope_bwd_kernel(norm_rope_args<T> p)
{
    const int64_t d = p.n.d, first = (int64_t)blockIdx.x * p.rounds * (THREADS / G);
    float sum[1][8] = {}, g[8], v[8], w[8];
    raw8<T> x_next, dy_next;

    load_weights(w, p, threadIdx.x % G * 8);
    for (int64_t k = 0; k < p.rounds; k++) {
        const int64_t i = first + k * (THREADS / G) + threadIdx.x / G;

        if (i >= p.n.m)
            break;
        const rope_lane t = rope_lane_of<G>(p.n, i, -1.0f);
        const int64_t here = d - t.at;
        fetch8(x_next, p.x + i * p.n.heads * d + t.at, p.n.heads > 0 ? here : 0);
        fetch8(dy_next, p.dy + i * p.n.heads * d + t.at, p.n.heads > 0 ? here : 0);
        for (int64_t h = 0; h < p.n.heads; h++) {
            const int64_t row = i * p.n.heads + h;
            const float inv = p.inv[row];
            float dot = 0.0f, c;

            unpack8(v, x_next);
            unpack8(g, dy_next);
            fetch8(x_next, p.x + (row + 1) * d + t.at, h + 1 < p.n.heads ? here : 0);
            fetch8(dy_next, p.dy + (row + 1) * d + t.at, h + 1 < p.n.heads ? here : 0);
            rotate<G, ACROSS>(g, t);
            for (int j = 0; j < 8; j++) {
                sum[0][j] = fmaf(g[j], v[j] * inv, sum[0][j]);
                g[j] *= w[j];
                dot = fmaf(g[j], v[j], dot);
            }
            if (p.y == NULL)
                continue;
            c = inv * inv * group_sum<G>(dot) / (float)d;
            for (int j = 0; j < 8; j++)
                v[j] = inv * (g[j] - v[j] * c);
            if (here > 0)
                store8(p.y + row * d + t.at, v, here);
        }
    }
    if (p.part != NULL)
        part_store<G, 1>(p.part, sum, d);
}

/* Lanes of a head: those that have features of it, and few others. */
static int lanes_of(int64_t d)
{
    return d <= HEAD_ROW / 2 ? WARP / 4 : d <= HEAD_ROW ? WARP / 2 : WARP;
}
#define BY_LANES(d, G, ...)                                                                        \
    (lanes_of(d) == WARP / 4   ? [&] { constexpr int G = WARP / 4; return __VA_ARGS__; }()         \
     : lanes_of(d) == WARP / 2 ? [&] { constexpr int G = WARP / 2; return __VA_ARGS__; }()         \
                               : [&] { constexpr int G = WARP; return __VA_ARGS__; }())
#define BY_HEAD(n, G, ACROSS, ...)                                                                 \
    ((n)->r % 16 != 0                                                                              \
         ? [&] { constexpr bool ACROSS = true; return BY_LANES((n)->d, G, __VA_ARGS__); }()        \
         : [&] { constexpr bool ACROSS = false; return BY_LANES((n)->d, G, __VA_ARGS__); }())

static bool is_fused(const d9d_qk_norm_rope_dims *n)
{
    return !n->interleaved && n->r % 8 == 0 && n->d % 8 == 0 && n->d <= MAX_HEAD_SIZE;
}

/* --- fused and unfused -------------------------------------------------------------------- */

/* RoPE runs in place: each thread reads its pairs before it writes them. */
static d9d_status run_unfused(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                              const void *x, const void *w)
{
    D9D_TRY(d9d_k_rms_norm(s, n->t, y, inv, x, w, n->m * n->heads, n->d, n->eps, n->zero_centred));
    return d9d_k_rope(s, n->t, y, y, n->positions, n->inv_freq, n->m, n->heads, n->d, n->r,
                      n->interleaved, n->mscale, 1.0f);
}

static d9d_status run_bwd_unfused(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx,
                                  d9d_dtype gt, void *dw, float beta, const void *dy, const void *x,
                                  const void *w, const float *inv)
{
    const int64_t m = n->m * n->heads,
                  bytes = d9di_i64_max(m * n->d, 1) * (n->t == D9D_F32 ? 4 : 2);
    d9d_status st;
    void *back;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &back));
    st = d9d_k_rope(s, n->t, back, dy, n->positions, n->inv_freq, n->m, n->heads, n->d, n->r,
                    n->interleaved, n->mscale, -1.0f);
    if (st == D9D_OK)
        st = d9d_k_rms_norm_bwd(s, n->t, dx, NULL, gt, dw, beta, back, x, w, inv, m, n->d,
                                n->zero_centred);
    d9di_cuda_scratch_free(s, back, bytes);
    return st;
}

template <class T>
static d9d_status run_fused(d9d_stream s, const char *op, norm_rope_list<T> all, int arrays)
{
    const d9d_qk_norm_rope_dims *n = &all.of[0].n;
    int64_t max_rows = 0;

    for (int j = 0; j < arrays; j++) {
        norm_rope_args<T> *p = &all.of[j];

        p->rounds = p->n.m <= MAX_SINGLE_ROUND_TOKENS ? 1 : d9di_i64_max(1, p->n.heads);
        max_rows = d9di_i64_max(max_rows, p->n.m * d9di_i64_ceil_div(p->n.heads, p->rounds));
    }
    if (max_rows == 0)
        return D9D_OK;
    return BY_HEAD(n, G, ACROSS,
                   pdl_launch(s, op, norm_rope_kernel<T, G, ACROSS>,
                              dim3(grid_for_rows(max_rows, G), (unsigned)arrays), THREADS, all));
}

template <class T, class W>
static d9d_status run_bwd_fused(d9d_stream s, norm_rope_args<T> p, W *dw, float beta)
{
    const int64_t append_fused = THREADS / lanes_of(p.n.d);
    int64_t parts, bytes;
    void *part = NULL;

    p.rounds = d9di_i64_max(1, d9di_i64_ceil_div(p.n.m, MAX_PARTS * append_fused));
    parts = d9di_i64_ceil_div(p.n.m, p.rounds * append_fused);
    bytes = d9di_i64_max(parts, 1) * p.n.d * 4;
    if (dw != NULL)
        D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    p.part = (float *)part;
    if (parts > 0)
        BY_HEAD(&p.n, G, ACROSS,
                norm_rope_bwd_kernel<T, G, ACROSS>
                <<<(unsigned)parts, THREADS, 0, d9di_cuda_stream(s)>>>(p));
    if (dw == NULL)
        return d9di_cuda_check_launch("norm_rope_bwd");
    parts_sum(d9di_cuda_stream(s), dw, beta, p.part, p.n.d, parts);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("norm_rope_bwd");
}

d9d_status d9d_k_norm_rope(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *y, float *inv,
                           const void *x, const void *w)
{
    D9D_TRY(d9di_args_check_float("norm_rope", n->t));
    if (!is_fused(n))
        return run_unfused(s, n, y, inv, x, w);
    return D9DI_DISPATCH_DTYPE(n->t, T, [&] {
        const norm_rope_list<T> one = {
            {{(T *)y, NULL, (const T *)x, (const T *)w, inv, NULL, *n, 1, NULL, true}}, false};

        return run_fused<T>(s, "norm_rope", one, 1);
    }());
}

d9d_status d9d_k_norm_rope_bwd(d9d_stream s, const d9d_qk_norm_rope_dims *n, void *dx, d9d_dtype gt,
                               void *dw, float beta, const void *dy, const void *x, const void *w,
                               const float *inv)
{
    D9D_TRY(d9di_args_check_float("norm_rope_bwd", n->t));
    D9D_TRY(d9di_args_check_float("norm_rope_bwd", gt));
    if (!is_fused(n))
        return run_bwd_unfused(s, n, dx, gt, dw, beta, dy, x, w, inv);
    return D9DI_DISPATCH_DTYPE(n->t, T, D9DI_DISPATCH_DTYPE(gt, W, [&] {
                                   const norm_rope_args<T> p = {(T *)dx,
                                                                (const T *)dy,
                                                                (const T *)x,
                                                                (const T *)w,
                                                                const_cast<float *>(inv),
                                                                NULL,
                                                                *n,
                                                                1,
                                                                NULL,
                                                                true};

                                   return run_bwd_fused<T, W>(s, p, (W *)dw, beta);
                               }()));
}

/* --- several arrays ----------------------------------------------------------------------- */

/* With a norm of all heads together: a block has a token of an array, normed and rounded in shared
 * memory, whose threads then have eight features each of the heads. */

template <class T> struct all_heads_list {
    d9d_qk_norm_rope_dims n;
    d9d_qk_norm_rope_heads of[ARRAYS];
};

/* to = x inv w' of a row, in the order of the sums of rms_norm.cu. */
template <int G, int CH, class T>
static __device__ __forceinline__ void norm_row(T *to, const T *x, const T *w, int64_t n, float eps,
                                                float centre)
{
    float v[CH][8], u[CH][8], sum = 0.0f;

    if (threadIdx.x >= G)
        return;
    for (int c = 0; c < CH; c++) {
        load8(v[c], x + EIGHT(c, G), n - EIGHT(c, G));
        load8(u[c], w + EIGHT(c, G), n - EIGHT(c, G));
    }
    for (int c = 0; c < CH; c++)
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[c][j], v[c][j], sum);
    const float scale = 1.0f / sqrtf(group_sum<G>(sum) / (float)n + eps);

    for (int c = 0; c < CH; c++) {
        for (int j = 0; j < 8; j++)
            v[c][j] = v[c][j] * scale * (u[c][j] + centre);
        if (EIGHT(c, G) < n)
            store8(to + EIGHT(c, G), v[c], n - EIGHT(c, G));
    }
}

/* Angles of eight features from f on, and which way their partners are. */
struct rope_eight {
    float co[8], si[8];
    int partner[8];

    __device__ __forceinline__ rope_eight(const d9d_qk_norm_rope_dims &n, bool rotates, int f,
                                          int64_t token)
    {
        const int half = (int)n.r / 2;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const bool left = f + j < half;

            co[j] = 1.0f, si[j] = 0.0f, partner[j] = 0;
            if (!rotates || f + j >= n.r)
                continue;
            sincosf((float)n.positions[token] * n.inv_freq[left ? f + j : f + j - half], &si[j],
                    &co[j]);
            co[j] *= n.mscale;
            si[j] *= n.mscale * (left ? -1.0f : 1.0f);
            partner[j] = left ? half : -half;
        }
    }
};

/* Grid: tokens, arrays. Rows are whole vectors. */
template <class T>
static __global__ void __launch_bounds__(THREADS) all_heads_kernel(all_heads_list<T> all)
{
    extern __shared__ uint4 memory[];
    T *row = (T *)memory;
    const d9d_qk_norm_rope_heads &h = all.of[blockIdx.y];
    const int64_t i = blockIdx.x, n = h.heads * all.n.d;
    const int64_t to = h.row_index != NULL ? h.row_index[i] : i;
    const T *x = (const T *)h.x + i * n, *w = (const T *)h.w;
    const float centre = all.n.zero_centred ? 1.0f : 0.0f;
    const bool rotates = h.rotates && h.w != NULL;
    int first = threadIdx.x * 8;

    pdl_launch_dependents();
    rope_eight turn(all.n, rotates && first < n, first % (int)all.n.d, i);
    pdl_wait();
    if (h.w != NULL) {
        BY_EIGHTS(n, G, CH, norm_row<G, CH>(row, x, w, n, all.n.eps, centre));
        __syncthreads();
    }
    for (int at = first; at < n && to >= 0; at += THREADS * 8) {
        float v[8];

        if (at != first)
            turn = rope_eight(all.n, rotates, at % (int)all.n.d, i);
        load8(v, h.w != NULL ? row + at : x + at, 8);
        if (rotates)
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = v[j] * turn.co[j] + to_float(row[at + j + turn.partner[j]]) * turn.si[j];
        store8((T *)h.y + to * n + at, v, 8);
    }
}

/* Queries and keys have such a norm, and values none. */
static bool all_heads_are_fused(const d9d_qk_norm_rope_dims *d, int n,
                                const d9d_qk_norm_rope_heads *list)
{
    bool some = false;

    for (int j = 0; j < n; j++) {
        if (list[j].w != NULL ? !list[j].all_heads : list[j].rotates)
            return false;
        if (list[j].heads * d->d > MAX_FUSED)
            return false;
        some = some || list[j].all_heads;
    }
    return some && is_fused(d) && n <= ARRAYS && d->m <= MAX_SINGLE_ROUND_TOKENS;
}

template <class T>
static d9d_status append_all_heads(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                   const d9d_qk_norm_rope_heads *list)
{
    all_heads_list<T> all = {*d, {}};
    int64_t longest = 0;

    for (int j = 0; j < n; j++) {
        all.of[j] = list[j];
        longest = d9di_i64_max(longest, list[j].heads * d->d);
    }
    if (d->m * longest == 0)
        return D9D_OK;
    return pdl_launch_smem(s, "qk_norm_rope_append", (size_t)longest * sizeof(T),
                           all_heads_kernel<T>, dim3((unsigned)d->m, (unsigned)n), THREADS, all);
}

/* Norm and rotation of an array, as far as it has them: y, or for an array with neither x itself.
 */
static d9d_status heads_unfused(d9d_stream s, const d9d_qk_norm_rope_dims *n,
                                const d9d_qk_norm_rope_heads *h, void *y, float *inv)
{
    if (h->w != NULL && h->rotates)
        return d9d_k_norm_rope(s, n, y, inv, h->x, h->w);
    if (h->w != NULL)
        return d9d_k_rms_norm(s, n->t, y, inv, h->x, h->w, n->m * n->heads, n->d, n->eps,
                              n->zero_centred);
    return d9d_k_rope(s, n->t, y, h->x, n->positions, n->inv_freq, n->m, n->heads, n->d, n->r,
                      n->interleaved, n->mscale, 1.0f);
}

/* One array, in separate kernels. */
static d9d_status append_unfused(d9d_stream s, const d9d_qk_norm_rope_dims *d,
                                 const d9d_qk_norm_rope_heads *h)
{
    const int64_t row = h->heads * d->d, inv_bytes = d9di_i64_max(d->m * h->heads, 1) * 4;
    const int64_t bytes = d9di_i64_max(d->m * row, 1) * (int64_t)d9d_dtype_size(d->t);
    d9d_qk_norm_rope_dims n = *d;
    void *inv = NULL, *y = NULL;
    d9d_status st;

    n.heads = h->heads;
    if (h->w == NULL && !h->rotates)
        return d9d_k_scatter_rows(s, n.t, h->y, row, 0, h->row_index, h->x, n.m, row);
    D9D_TRY(d9di_cuda_scratch_alloc(s, inv_bytes, &inv));
    st = d9di_cuda_scratch_alloc(s, bytes, &y);
    if (st == D9D_OK)
        st = heads_unfused(s, &n, h, y, (float *)inv);
    if (st == D9D_OK)
        st = d9d_k_scatter_rows(s, n.t, h->y, row, 0, h->row_index, y, n.m, row);
    if (y != NULL)
        d9di_cuda_scratch_free(s, y, bytes);
    d9di_cuda_scratch_free(s, inv, inv_bytes);
    return st;
}

template <class T>
static d9d_status append_fused(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                               const d9d_qk_norm_rope_heads *list)
{
    norm_rope_list<T> all = {};

    all.still = true;
    for (int j = 0; j < n; j++) {
        const d9d_qk_norm_rope_heads *h = &list[j];

        all.of[j] = {(T *)h->y, NULL, (const T *)h->x, (const T *)h->w, NULL, NULL,
                     *d,        1,    h->row_index,    h->rotates};
        all.of[j].n.heads = h->heads;
    }
    return run_fused(s, "qk_norm_rope_append", all, n);
}

/* An array normed over all heads, then as one without a norm. */
static d9d_status append_normed(d9d_stream s, const d9d_qk_norm_rope_dims *d,
                                const d9d_qk_norm_rope_heads *h)
{
    const int64_t row = h->heads * d->d, inv_bytes = d9di_i64_max(d->m, 1) * 4;
    const int64_t bytes = d9di_i64_max(d->m * row, 1) * (int64_t)d9d_dtype_size(d->t);
    d9d_qk_norm_rope_heads normed = *h;
    void *inv = NULL, *y = NULL;
    d9d_status st;

    D9D_TRY(d9di_cuda_scratch_alloc(s, inv_bytes, &inv));
    st = d9di_cuda_scratch_alloc(s, bytes, &y);
    if (st == D9D_OK)
        st = d9d_k_rms_norm(s, d->t, y, (float *)inv, h->x, h->w, d->m, row, d->eps,
                            d->zero_centred);
    normed.x = y;
    normed.w = NULL;
    normed.all_heads = false;
    if (st == D9D_OK)
        st = d9d_k_qk_norm_rope_append(s, d, 1, &normed);
    if (y != NULL)
        d9di_cuda_scratch_free(s, y, bytes);
    d9di_cuda_scratch_free(s, inv, inv_bytes);
    return st;
}

d9d_status d9d_k_qk_norm_rope_append(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                     const d9d_qk_norm_rope_heads *list)
{
    bool all_heads = false;

    D9D_TRY(d9di_args_check_float("qk_norm_rope_append", d->t));
    for (int j = 0; j < n; j++)
        all_heads = all_heads || (list[j].w != NULL && list[j].all_heads);
    if (all_heads_are_fused(d, n, list))
        return D9DI_DISPATCH_DTYPE(d->t, T, append_all_heads<T>(s, d, n, list));
    if (is_fused(d) && n <= ARRAYS && !all_heads)
        return n == 0 ? D9D_OK : D9DI_DISPATCH_DTYPE(d->t, T, append_fused<T>(s, d, n, list));
    for (int j = 0; j < n; j++)
        D9D_TRY(list[j].w != NULL && list[j].all_heads ? append_normed(s, d, &list[j])
                                                       : append_unfused(s, d, &list[j]));
    return D9D_OK;
}
