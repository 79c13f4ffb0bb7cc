/* cuda_xent_once.cu - loss of a linear head and both gradients, the logits made once.
 *
 * For as many tokens as fit, p = exp(logits - m) is kept for the whole vocabulary:
 *
 *     logits, some columns at a time -> p, l = sum of p     a product, and a kernel on float32
 *     p[target] -= l
 *     unit = (p W) / l        dW += p' (h / l)              a product each
 *
 * m is near the largest logit, not equal to it: it moves, and what was kept of the token is
 * rescaled, only when a logit is SLACK above it, which costs no second look at the others.  float32
 * and bfloat16 have room for exp(SLACK) and more, and their precision is the same there.
 * For bfloat16 p and h / l are rounded to bfloat16 before they are multiplied.
 *
 * 16384 tokens of 2048 features by 151936, bfloat16: 45 ms of products and 4 of the kernel between.
 */
#include <math_constants.h>

#include "cuda_xent.cuh"

static const char op[] = "cross-entropy";

enum { WIDTH = 8192, EIGHTS = WIDTH / 8 / THREADS, MOST_PIECES = 32, STEP = 128 };
static const float SLACK = 30.0f;
static const int64_t ROOM = (int64_t)768 << 20;

/* p is kept by pieces [tokens, n] of the vocabulary, so that what is read by products begins at
 * multiples of 64 columns: of each split all but its last columns, and those. */
template <class T> struct pieces {
    int n;
    struct {
        int64_t id, n; /* the first column's */
        T *p;
    } of[MOST_PIECES];
};

/* exp of what is at most SLACK and is rounded to T.  The fast one errs by 2^-21 and 2^-24 |x|. */
template <class T> static __device__ __forceinline__ float power(float x)
{
    return sizeof(T) == 2 ? __expf(x) : expf(x);
}

/* A token; l is the sum of what is kept, `by` in the end its inverse. */
struct once_state {
    float m, l, target, by;
};

static __global__ void once_start(once_state *state, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        state[i] = {-CUDART_INF_F, 0.0f, 0.0f, 0.0f};
}

/* All that is kept of a token, before column `end` of piece `last`, times `by`. */
template <class T>
static __device__ void rescale(const pieces<T> &all, int last, int64_t end, int64_t row, float by)
{
    for (int k = 0; k <= last; k++) {
        T *p = all.of[k].p + row * all.of[k].n;

        for (int64_t i = threadIdx.x; i < (k == last ? end : all.of[k].n); i += THREADS)
            put(p + i, to_float(p[i]) * by);
    }
}

/* Logits of columns [first, first + n) of a piece; a block has a token.  n is at most WIDTH. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    once_fold(once_state *state, const float *logits, pieces<T> all, int piece, int64_t first,
              int64_t n, const int32_t *targets, int32_t ignore)
{
    const int64_t row = blockIdx.x, target = targets[row] - all.of[piece].id - first;
    const float *z = logits + row * n;
    T *p = all.of[piece].p + row * all.of[piece].n + first;
    once_state o = state[row];
    float v[EIGHTS][8], most = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
    for (int c = 0; c < EIGHTS; c++) {
        const int64_t i = ((int64_t)c * THREADS + threadIdx.x) * 8;

        load8(v[c], z + i, n - i);
        for (int j = 0; j < 8; j++) {
            v[c][j] = i + j < n ? v[c][j] : -CUDART_INF_F;
            most = fmaxf(most, v[c][j]);
        }
    }
    most = group_fold<THREADS>(most, largest());
    if (most > o.m + SLACK || o.m == -CUDART_INF_F) {
        const float by = o.l == 0.0f ? 0.0f : expf(o.m - most);

        if (o.l != 0.0f)
            rescale(all, piece, first, row, by);
        o.l *= by;
        o.m = most;
    }
#pragma unroll
    for (int c = 0; c < EIGHTS; c++) {
        const int64_t i = ((int64_t)c * THREADS + threadIdx.x) * 8;

        for (int j = 0; j < 8; j++) {
            v[c][j] = power<T>(v[c][j] - o.m);
            sum += v[c][j];
            v[c][j] = targets[row] == ignore ? 0.0f : v[c][j];
        }
        if (i < n)
            store8(p + i, v[c], n - i);
    }
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x != 0)
        return;
    o.l += sum;
    if (target >= 0 && target < n)
        o.target = z[target];
    state[row] = o;
}

/* Loss, p[target] -= l, and scaled = h / l; a block has a token. */
template <class T>
static __global__ void once_finish(float *loss, T *scaled, const T *hidden, once_state *state,
                                   pieces<T> all, int64_t vocabulary, const int32_t *targets,
                                   int32_t ignore, int64_t h)
{
    const int64_t r = blockIdx.x, id = targets[r];
    const bool ignored = id == ignore, bad = !ignored && (id < 0 || id >= vocabulary);
    const float m = state[r].m, l = state[r].l, target = state[r].target;
    const float by = ignored ? 0.0f : bad ? CUDART_NAN_F : 1.0f / l;

    for (int64_t i = (int64_t)threadIdx.x * 8; i < h; i += THREADS * 8) {
        float v[8];

        load8(v, hidden + r * h + i, h - i);
        for (int j = 0; j < 8; j++)
            v[j] = ignored ? 0.0f : v[j] * by;
        store8(scaled + r * h + i, v, h - i);
    }
    if (threadIdx.x != 0)
        return;
    loss[r] = ignored ? 0.0f : bad ? CUDART_NAN_F : m + logf(l) - target;
    state[r].by = by;
    for (int k = 0; k < all.n && !ignored; k++)
        if (id >= all.of[k].id && id < all.of[k].id + all.of[k].n)
            put(all.of[k].p + r * all.of[k].n + (id - all.of[k].id), expf(target - m) - l);
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
    int64_t all_v, most, width;
    float *logits, *sum;
    once_state *state;
    T *scaled, *p;
};

static int64_t padded(int64_t bytes)
{
    return d9di_ceil_div(bytes, 256) * 256;
}

/* Step to the next piece; start from all zeros. */
static bool piece_next(const d9d_xent_dims *d, columns *c)
{
    if (!columns_next(d, INT64_MAX, c))
        return false;
    c->n = c->n >= 64 ? c->n / 64 * 64 : c->n;
    return true;
}

/* Columns of one piece: a product and a fold for every WIDTH of them. */
template <class T>
static d9d_status fold_piece(const once<T> &o, const pieces<T> &all, int piece, const columns &c,
                             const T *x, const int32_t *targets, int64_t tokens)
{
    for (int64_t i = 0; i < c.n; i += o.width) {
        const columns some = {c.split, c.base, c.first + i, d9di_min(c.n - i, o.width)};

        D9D_TRY(logits_make(o.s, op, o.n, some, x, tokens, o.w, o.logits));
        once_fold<T><<<(unsigned)tokens, THREADS, 0, d9di_queue(o.s)>>>(
            o.state, o.logits, all, piece, i, some.n, targets, o.n->ignore);
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

/* Tokens [first, first + tokens). */
template <class T>
static d9d_status some_tokens(const once<T> &o, int64_t first, int64_t tokens, float *loss,
                              void *unit, const void *hidden, const int32_t *targets)
{
    cudaStream_t queue = d9di_queue(o.s);
    const T *x = (const T *)hidden + first * o.n->h;
    pieces<T> all = {};
    columns c = {};
    T *p = o.p;

    once_start<<<(unsigned)d9di_ceil_div(tokens, THREADS), THREADS, 0, queue>>>(o.state, tokens);
    for (; piece_next(o.n, &c); all.n++) {
        all.of[all.n] = {c.base + c.first, c.n, p};
        p += d9di_ceil_div(tokens * c.n, 128) * 128;
        D9D_TRY(fold_piece(o, all, all.n, c, x, targets + first, tokens));
    }
    once_finish<T><<<(unsigned)tokens, THREADS, 0, queue>>>(
        loss + first, o.scaled, x, o.state, all, o.all_v, targets + first, o.n->ignore, o.n->h);
    D9D_TRY(d9di_launched(op));
    c = {};
    for (int k = 0; piece_next(o.n, &c); k++)
        D9D_TRY(products(o, all.of[k].p, c, unit != NULL, k == 0 ? 0.0f : 1.0f,
                         first == 0 ? o.beta[c.split] : 1.0f, tokens));
    if (unit != NULL)
        once_unit<T><<<(unsigned)tokens, THREADS, 0, queue>>>((T *)unit + first * o.n->h, o.sum,
                                                              o.state, o.n->h);
    return d9di_launched(op);
}

/* Bytes of scratch for so many tokens; with `at` they are dealt out. */
template <class T> static int64_t lay_out(once<T> *o, int64_t tokens, char *at)
{
    const int64_t h = o->n->h, count = tokens * o->all_v + MOST_PIECES * (int64_t)128;
    const int64_t sizes[] = {padded(tokens * o->width * 4), padded(tokens * h * 4),
                             padded(tokens * (int64_t)sizeof(once_state)),
                             padded(tokens * h * (int64_t)sizeof(T)),
                             padded(count * (int64_t)sizeof(T))};
    void *parts[5] = {};
    int64_t bytes = 0;

    for (int i = 0; i < 5; i++) {
        parts[i] = at == NULL ? NULL : at + bytes;
        bytes += sizes[i];
    }
    o->logits = (float *)parts[0];
    o->sum = (float *)parts[1];
    o->state = (once_state *)parts[2];
    o->scaled = (T *)parts[3];
    o->p = (T *)parts[4];
    return bytes;
}

/* Tokens at a time: as many as have room, and evenly many. */
template <class T> static int64_t tokens_at_once(once<T> *o, int64_t room)
{
    const int64_t empty = lay_out(o, 0, NULL), each = lay_out(o, STEP, NULL) - empty;
    const int64_t most = d9di_max(1, (room - empty) / d9di_max(each, 1)) * STEP;
    const int64_t rounds = d9di_ceil_div(o->n->rows, most);

    return d9di_min(o->n->rows, d9di_ceil_div(d9di_ceil_div(o->n->rows, rounds), STEP) * STEP);
}

template <class T>
static d9d_status xent_once(once<T> &o, float *loss, void *unit, const void *hidden,
                            const int32_t *targets)
{
    d9d_status st = D9D_OK;
    int64_t bytes;
    void *scratch;

    o.all_v = vocabulary(o.n);
    o.width = d9di_min(o.all_v, WIDTH);
    o.most = tokens_at_once(&o, o.n->room > 0 ? o.n->room : ROOM);
    bytes = lay_out(&o, o.most, NULL);
    D9D_TRY(d9di_take(o.s, bytes, &scratch));
    (void)lay_out(&o, o.most, (char *)scratch);
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
    if (2 * n->n_split > MOST_PIECES)
        return D9D_FAIL(D9D_EINVAL, "%s: a vocabulary in %d parts, at most %d are supported", op,
                        n->n_split, MOST_PIECES / 2);
    if (n->rows == 0)
        return xent_clear(s, n, gt, dw, beta);
    return D9DI_TYPED(n->t, T, [&] {
        once<T> o = {s, n, gt, w, dw, beta};

        return xent_once<T>(o, loss, unit, hidden, targets);
    }());
}
