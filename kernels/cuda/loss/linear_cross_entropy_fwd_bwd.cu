/* linear_cross_entropy_fwd_bwd.cu - loss of a linear head and both gradients, the logits made once.
 *
 * For as many tokens as fit, p = 2^(log2(e) logits - n) is kept for the whole vocabulary
 * (softmax_exp.h):
 *
 *     reference = that of the target's logit      a kernel
 *     p and sums of p, by tiles                   a product, or some columns of it at a time, and a
 *                                                 kernel on float32
 *     l = sum of p, p[target] -= l                two kernels
 *     unit = (p W) / l        dW += p' (h / l)    a product each
 *
 * A model that has learned anything has no logit much larger than its target's: then n is that of
 * the reference everywhere.  What was kept of a token where it is not is brought to the largest n.
 * For bfloat16 p and h / l are rounded to bfloat16 before they are multiplied.
 *
 * Ranks with parts of the vocabulary tell each other the logits of targets, once for all tokens,
 * and each time n and the sum of p.
 */
#include <math_constants.h>

#include "cuda/loss/linear_cross_entropy.cuh"
#include "cuda/loss/softmax_exp.h"

static const char op[] = "cross-entropy";

enum { WIDTH = 8192, EIGHTS = WIDTH / 8 / THREADS, MOST_PIECES = 2 * MOST_SPLITS, STEP = 128 };

/* p is kept by pieces [tokens, n] of the vocabulary, so that what is read by products begins at
 * multiples of 64 columns: of each split all but its last columns, and those.  A piece's parts are
 * `first` and so on of a token, each for `tile` columns. */
template <class T> struct pieces {
    int n;
    struct {
        int64_t id, n, first, tile;
        T *p;
    } of[MOST_PIECES];
};

/* 2^(log2(e) x - n).  The fast one, for what is rounded, errs by 2^-22 and 2^-24 |x|. */
template <class T> static __device__ __forceinline__ float power(float x, float n)
{
    constexpr double log2e = 1.4426950408889634;
    constexpr float high = (float)log2e, low = (float)(log2e - (double)high);
    float y;

    if (sizeof(T) == 4)
        return exp2f(fmaf(x, low, fmaf(x, high, -n)));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(x, high, -n)));
    return y;
}

/* A token: the logit of its target, and in the end the inverse of its sum. */
struct once_state {
    float target, by;
};

/* The logit of its target, 0 where that is not here; a warp has a token. */
template <class T>
static __global__ void once_target(float *logit, const T *hidden, splits w, const int32_t *targets,
                                   int32_t ignore, int64_t n, int64_t h)
{
    const int64_t r = row_mine<WARP>();
    const T *x, *y;
    float sum = 0.0f;

    if (r >= n)
        return;
    x = hidden + r * h;
    y = targets[r] == ignore ? NULL : row_of<T>(w, targets[r], h);
    D9DI_ROW8 (i, y == NULL ? 0 : h, WARP) {
        float a[8], b[8];

        load8(a, x + i, h - i);
        load8(b, y + i, h - i);
        for (int j = 0; j < 8; j++)
            sum = fmaf(a[j], b[j], sum);
    }
    sum = group_sum<WARP>(sum);
    if (threadIdx.x % WARP == 0)
        logit[r] = sum;
}

/* logit [ranks, stride], of which one is not 0 */
static __global__ void once_begin(once_state *state, float *reference, const float *logit,
                                  int64_t ranks, int64_t stride, const int32_t *targets,
                                  int32_t ignore, int64_t n)
{
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;

    if (r >= n)
        return;
    for (int64_t i = 0; i < ranks; i++)
        sum += logit[i * stride + r];
    state[r].target = sum;
    reference[r] = targets[r] == ignore ? CUDART_INF_F
                   : isfinite(sum)      ? rintf(sum * 1.4426950408889634f)
                                        : CUDART_NAN_F;
}

/* Logits [tokens, n] of some columns of a piece, at most WIDTH, to their p; a block has a token. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    once_fold(d9di_xent_part *part, int64_t stride, const float *reference, const float *logits,
              T *p, int64_t all_n, int64_t n)
{
    const int64_t row = blockIdx.x;
    const float *z = logits + row * n;
    float v[EIGHTS][8], to = reference[row], most = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
    for (int c = 0; c < EIGHTS; c++) {
        const int64_t i = ((int64_t)c * THREADS + threadIdx.x) * 8;

        load8(v[c], z + i, n - i);
        for (int j = 0; j < 8; j++) {
            v[c][j] = i + j < n ? v[c][j] : -CUDART_INF_F;
            most = fmaxf(most, v[c][j]);
        }
    }
    most = group_fold<THREADS>(most, largest()) * 1.4426950408889634f;
    if (most > to + D9DI_XENT_SLACK)
        to = rintf(most);
#pragma unroll
    for (int c = 0; c < EIGHTS; c++) {
        const int64_t i = ((int64_t)c * THREADS + threadIdx.x) * 8;

        for (int j = 0; j < 8; j++) {
            v[c][j] = power<T>(v[c][j], to);
            sum += v[c][j];
            v[c][j] = to == CUDART_INF_F ? 0.0f : v[c][j];
        }
        if (i < n)
            store8(p + row * all_n + i, v[c], n - i);
    }
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        part[row * stride] = {to, sum};
}

/* The tiles of a token whose n is not the largest, `to`. */
template <class T>
static __device__ void rescale(const pieces<T> &all, const d9di_xent_part *part, int64_t row,
                               float to)
{
    for (int k = 0; k < all.n; k++) {
        T *p = all.of[k].p + row * all.of[k].n;

        for (int64_t i = threadIdx.x; i < all.of[k].n; i += THREADS) {
            const float n = part[all.of[k].first + i / all.of[k].tile].n;

            if (n != to)
                put(p + i, to_float(p[i]) * exp2f(n - to));
        }
    }
}

/* sums [2, tokens]: the largest n of what is here of a token, and l of that; a block has a token.
 */
static __global__ void __launch_bounds__(THREADS)
    once_sum(float *sums, const d9di_xent_part *part, int64_t stride)
{
    const int64_t r = blockIdx.x;
    float n = -CUDART_INF_F, l = 0.0f;

    part += r * stride;
    for (int64_t i = threadIdx.x; i < stride; i += THREADS)
        n = fmaxf(n, part[i].n);
    n = group_fold<THREADS>(n, largest());
    for (int64_t i = threadIdx.x; i < stride; i += THREADS)
        l += part[i].sum * exp2f(part[i].n - n);
    l = group_sum<THREADS>(l);
    if (threadIdx.x != 0)
        return;
    sums[r] = n;
    sums[gridDim.x + r] = l;
}

/* Sums [ranks, 2, tokens] of a token: n and l of all. */
static __device__ void once_join(const float *sums, int64_t ranks, int64_t tokens, float *n,
                                 float *l)
{
    *n = -CUDART_INF_F;
    *l = 0.0f;
    for (int64_t i = 0; i < ranks; i++)
        *n = fmaxf(*n, sums[2 * i * tokens]);
    for (int64_t i = 0; i < ranks; i++)
        if (sums[2 * i * tokens] != -CUDART_INF_F)
            *l += sums[(2 * i + 1) * tokens] * exp2f(sums[2 * i * tokens] - *n);
}

/* Loss, p[target] -= l, and scaled = h / l; a block has a token. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    once_finish(float *loss, T *scaled, const T *hidden, once_state *state,
                const d9di_xent_part *part, int64_t stride, const float *sums, int64_t ranks,
                pieces<T> all, int64_t vocabulary, const int32_t *targets, int32_t ignore,
                int64_t h)
{
    const int64_t r = blockIdx.x, id = targets[r];
    const bool ignored = id == ignore, bad = !ignored && (id < 0 || id >= vocabulary);
    const float target = state[r].target;
    float n, least = CUDART_INF_F, l, by;

    part += r * stride;
    for (int64_t i = threadIdx.x; i < stride; i += THREADS)
        least = fminf(least, part[i].n);
    least = -group_fold<THREADS>(-least, largest());
    once_join(sums + r, ranks, gridDim.x, &n, &l);
    by = ignored ? 0.0f : bad ? CUDART_NAN_F : 1.0f / l;
    for (int64_t i = (int64_t)threadIdx.x * 8; i < h; i += THREADS * 8) {
        float v[8];

        load8(v, hidden + r * h + i, h - i);
        for (int j = 0; j < 8; j++)
            v[j] = ignored ? 0.0f : v[j] * by;
        store8(scaled + r * h + i, v, h - i);
    }
    if (least < n && !ignored) {
        rescale(all, part, r, n);
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    loss[r] = ignored ? 0.0f : bad ? CUDART_NAN_F : fmaf(n, CUDART_LN2_F, -target) + logf(l);
    state[r].by = by;
    for (int k = 0; k < all.n && !ignored; k++)
        if (id >= all.of[k].id && id < all.of[k].id + all.of[k].n)
            put(all.of[k].p + r * all.of[k].n + (id - all.of[k].id), power<float>(target, n) - l);
}

/* unit = sum / l, a block a token. */
template <class T>
static __global__ void once_unit(T *unit, const float *sum, const once_state *state, int64_t h)
{
    const int64_t r = blockIdx.x;
    const float by = state[r].by;

    for (int64_t i = (int64_t)threadIdx.x * 8; i < h; i += THREADS * 8) {
        float v[8];

        load8(v, sum + r * h + i, h - i);
        for (int j = 0; j < 8; j++)
            v[j] = by == 0.0f ? 0.0f : v[j] * by;
        store8(unit + r * h + i, v, h - i);
    }
}

/* A call, and its scratch for `most` tokens. */
template <class T> struct once {
    d9d_stream s;
    const d9d_xent_dims *n;
    d9d_dtype gt;
    const void *const *w;
    void *const *dw;
    const float *beta;
    int64_t ranks, mine, here;  /* here: rows of this part */
    int64_t most, width, parts; /* of logits that a kernel folds; of a token */
    splits where;
    float *target, *sums; /* [ranks, T], [ranks, 2, tokens] */
    float *logits, *sum, *reference;
    d9di_xent_part *part;
    once_state *state;
    T *scaled, *p;
};

static int64_t padded(int64_t bytes)
{
    return d9di_round_up(bytes, 256);
}

/* Step to the next piece; start from all zeros. */
static bool piece_next(const d9d_xent_dims *d, columns *c)
{
    if (!columns_next(d, INT64_MAX, c))
        return false;
    c->n = c->n >= 64 ? c->n / 64 * 64 : c->n;
    return true;
}

template <class T> static bool in_one(const once<T> &o, int64_t tokens, const columns &c)
{
    return d9di_xent_wgmma_takes(o.s, o.n->t, tokens, o.n->h, c.n);
}

template <class T> static int64_t tile_of(const once<T> &o, const columns &c)
{
    return in_one(o, o.n->rows, c) ? (int64_t)D9DI_XENT_TILE : WIDTH;
}

/* Columns of one piece: one product, or a product and a fold for every WIDTH of them. */
template <class T>
static d9d_status fold_piece(const once<T> &o, const pieces<T> &all, int piece, const columns &c,
                             const T *x, int64_t tokens)
{
    const d9di_xent_powers call = {tokens, o.n->h, c.n, o.reference, o.part + all.of[piece].first,
                                   o.parts};
    T *p = all.of[piece].p;

    if (in_one(o, tokens, c))
        return d9di_xent_wgmma(o.s, op, &call, p, x,
                               d9di_cat(o.n->t, o.w[c.split], c.first * o.n->h));
    for (int64_t i = 0; i < c.n; i += WIDTH) {
        const columns some = {c.split, c.base, c.first + i, d9di_min(c.n - i, WIDTH)};

        D9D_TRY(logits_make(o.s, op, o.n, some, x, tokens, o.w, o.logits));
        once_fold<T><<<(unsigned)tokens, THREADS, 0, d9di_queue(o.s)>>>(
            call.part + i / WIDTH, o.parts, o.reference, o.logits, p + i, c.n, some.n);
        D9D_TRY(d9di_launched(op));
    }
    return D9D_OK;
}

/* sum += p W and dW += p' scaled of a piece. */
template <class T>
static d9d_status products(const once<T> &o, const T *p, const columns &c, bool unit,
                           float beta_sum, float beta_dw, int64_t tokens)
{
    const int64_t h = o.n->h;
    d9d_gemm g = {};

    g.t = o.n->t;
    if (unit) {
        g.ct = D9D_F32;
        g.m = tokens;
        g.n = h;
        g.k = c.n;
        g.beta = beta_sum;
        D9D_TRY(d9di_gemm(o.s, op, &g, p, d9di_cat(g.t, o.w[c.split], c.first * h), o.sum));
    }
    if (o.dw[c.split] == NULL)
        return D9D_OK;
    g.ct = o.gt;
    g.trans_a = true;
    g.m = c.n;
    g.n = h;
    g.k = tokens;
    g.beta = beta_dw;
    return d9di_gemm(o.s, op, &g, p, o.scaled, d9di_at(o.gt, o.dw[c.split], c.first * h));
}

template <class T> static d9d_status gather(const once<T> &o, float *all, int64_t count)
{
    return o.n->ranks == NULL ? D9D_OK : o.n->ranks->gather(o.n->ranks->arg, all, count);
}

/* What is known of all tokens before any logit. */
template <class T>
static d9d_status find_targets(const once<T> &o, const void *hidden, const int32_t *targets)
{
    once_target<T><<<blocks_of_rows(o.n->rows, WARP), THREADS, 0, d9di_queue(o.s)>>>(
        o.target + o.mine * o.n->rows, (const T *)hidden, o.where, targets, o.n->ignore, o.n->rows,
        o.n->h);
    D9D_TRY(d9di_launched(op));
    return gather(o, o.target, o.n->rows);
}

/* p of the whole part, and their sums of all ranks. */
template <class T>
static d9d_status make_powers(const once<T> &o, int64_t first, int64_t tokens, const T *x,
                              const int32_t *targets, pieces<T> *all)
{
    cudaStream_t queue = d9di_queue(o.s);
    columns c = {};
    T *p = o.p;

    once_begin<<<(unsigned)d9di_ceil_div(tokens, THREADS), THREADS, 0, queue>>>(
        o.state, o.reference, o.target + first, o.ranks, o.n->rows, targets, o.n->ignore, tokens);
    D9D_TRY(d9di_launched(op));
    for (int64_t parts = 0; piece_next(o.n, &c); all->n++) {
        all->of[all->n] = {c.base + c.first, c.n, parts, tile_of(o, c), p};
        parts += d9di_ceil_div(c.n, all->of[all->n].tile);
        p += d9di_round_up(tokens * c.n, 128);
        D9D_TRY(fold_piece(o, *all, all->n, c, x, tokens));
    }
    once_sum<<<(unsigned)tokens, THREADS, 0, queue>>>(o.sums + 2 * o.mine * tokens, o.part,
                                                      o.parts);
    D9D_TRY(d9di_launched(op));
    return gather(o, o.sums, 2 * tokens);
}

/* Tokens [first, first + tokens). */
template <class T>
static d9d_status some_tokens(const once<T> &o, int64_t first, int64_t tokens, float *loss,
                              void *unit, const void *hidden, const int32_t *targets)
{
    cudaStream_t queue = d9di_queue(o.s);
    const T *x = (const T *)hidden + first * o.n->h;
    pieces<T> all = {};
    columns c = {};

    D9D_TRY(make_powers(o, first, tokens, x, targets + first, &all));
    once_finish<T><<<(unsigned)tokens, THREADS, 0, queue>>>(
        loss + first, o.scaled, x, o.state, o.part, o.parts, o.sums, o.ranks, all, vocabulary(o.n),
        targets + first, o.n->ignore, o.n->h);
    D9D_TRY(d9di_launched(op));
    for (int k = 0; piece_next(o.n, &c); k++)
        D9D_TRY(products(o, all.of[k].p, c, unit != NULL, k == 0 ? 0.0f : 1.0f,
                         first == 0 ? o.beta[c.split] : 1.0f, tokens));
    if (unit != NULL && all.n == 0)
        return d9d_k_fill(o.s, o.n->t, (T *)unit + first * o.n->h, tokens * o.n->h, 0.0f);
    if (unit != NULL)
        once_unit<T><<<(unsigned)tokens, THREADS, 0, queue>>>((T *)unit + first * o.n->h, o.sum,
                                                              o.state, o.n->h);
    return d9di_launched(op);
}

/* Bytes of scratch for so many tokens; with `at` they are dealt out. */
template <class T> static int64_t lay_out(once<T> *o, int64_t tokens, char *at)
{
    const int64_t h = o->n->h, count = tokens * o->here + MOST_PIECES * (int64_t)128;
    const struct {
        void **array;
        int64_t bytes;
    } room[] = {
        {(void **)&o->logits, tokens * o->width * 4},
        {(void **)&o->sum, tokens * h * 4},
        {(void **)&o->reference, tokens * 4},
        {(void **)&o->part, tokens * o->parts * (int64_t)sizeof(d9di_xent_part)},
        {(void **)&o->state, tokens * (int64_t)sizeof(once_state)},
        {(void **)&o->sums, tokens * o->ranks * 8},
        {(void **)&o->target, o->n->rows * o->ranks * 4},
        {(void **)&o->scaled, tokens * h * (int64_t)sizeof(T)},
        {(void **)&o->p, count * (int64_t)sizeof(T)},
    };
    int64_t bytes = 0;

    for (size_t i = 0; i < sizeof(room) / sizeof(*room); i++) {
        *room[i].array = at == NULL ? NULL : at + bytes;
        bytes += padded(room[i].bytes);
    }
    return bytes;
}

/* What the pieces take of a token. */
template <class T> static void measure(once<T> *o)
{
    columns c = {};

    while (piece_next(o->n, &c)) {
        o->here += c.n;
        o->parts += d9di_ceil_div(c.n, tile_of(*o, c));
        if (!in_one(*o, o->n->rows, c))
            o->width = d9di_max(o->width, d9di_min(c.n, WIDTH));
    }
}

template <class T>
static d9d_status xent_once(once<T> &o, float *loss, void *unit, const void *hidden,
                            const int32_t *targets)
{
    d9d_status st;
    int64_t empty, bytes;
    void *scratch;

    o.ranks = o.n->ranks != NULL ? o.n->ranks->n : 1;
    o.mine = o.n->ranks != NULL ? o.n->ranks->mine : 0;
    D9D_TRY(splits_of(op, o.n, o.w, &o.where));
    measure(&o);
    empty = lay_out(&o, 0, NULL);
    o.most = d9di_xent_tokens(o.n, empty, (double)(lay_out(&o, STEP, NULL) - empty) / STEP);
    bytes = lay_out(&o, o.most, NULL);
    D9D_TRY(d9di_take(o.s, bytes, &scratch));
    (void)lay_out(&o, o.most, (char *)scratch);
    st = find_targets(o, hidden, targets);
    for (int64_t i = 0; i < o.n->rows && st == D9D_OK; i += o.most)
        st = some_tokens(o, i, d9di_min(o.n->rows - i, o.most), loss, unit, hidden, targets);
    d9di_give(o.s, scratch, bytes);
    return st;
}

d9d_status d9d_k_xent_once(d9d_stream s, const d9d_xent_dims *n, d9d_dtype gt, float *loss,
                           void *unit, void *const *dw, const float *beta, const void *hidden,
                           const void *const *w, const int32_t *targets)
{
    D9D_TRY(d9di_check_float(op, n->t));
    D9D_TRY(d9di_check_float(op, gt));
    if (n->rows == 0)
        return xent_clear(s, n, gt, dw, beta);
    return D9DI_TYPED(n->t, T, [&] {
        once<T> o = {s, n, gt, w, dw, beta};

        return xent_once<T>(o, loss, unit, hidden, targets);
    }());
}
