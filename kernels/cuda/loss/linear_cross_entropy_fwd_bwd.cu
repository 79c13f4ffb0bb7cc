/* linear_cross_entropy_fwd_bwd.cu - fused linear cross entropy: loss and both gradients, with the
 * logits computed once and never stored whole.
 *
 * Algorithm: tokens are processed in blocks, as many as the scratch allows. Within a block p =
 * 2^(log2(e) logit - n) is kept for the whole vocabulary, with a whole number n per token and tile
 * of columns (softmax_exp.h). n is known before the maximum: a trained model has no logit much
 * larger than its target's, so n comes from the target's logit. Tiles with a larger logit choose
 * their own n and are rescaled later, exactly, by a power of two.
 *
 *     target_logit_kernel       reference n = that of the target's logit
 *     softmax_exp GEMM          p, and sums of p per tile (sm90); or cuBLASLt and a kernel
 *     rescale, sum, loss        l = sum of p, p[target] -= l; h / l
 *     GEMM                      unit = (p W) / l            (dgrad: dloss/dhidden)
 *     GEMM                      dW += p' (h / l)            (wgrad)
 *
 *     Liger LigerFusedLinearCrossEntropy           here
 *     chunks of tokens (chunk_size, num_chunks)    d9di_linear_cross_entropy_tokens(): n->scratch
 *     liger_cross_entropy_kernel (online softmax)  softmax_exp.h, token_state
 *     logits chunk in float32/bfloat16             p in bfloat16, for a block of tokens
 *     grad_input, grad_weight                      unit, dw[i]
 *     CCE (Cut Cross-Entropy)                      here
 *     recomputes logits in backward                linear_cross_entropy_bwd.cu does; here p is kept
 *     indexed_neg_dot                              target_logit_kernel
 *
 *                vocabulary V, parts of a multiple of 64 columns, tiles of 256
 *              .-----------------------------.
 *     tokens   | p; n and sum of each tile    |  -- p W -->   unit [tokens, H]
 *     that fit |                              |  -- p' h -->  dW [V, H]
 *              '-----------------------------'
 *     hidden W' is computed once: 3 GEMMs in place of the 4 that recomputation needs
 *
 * With a softcap, what is kept is p derivative (softcap_grad()), its sums are those of p, and
 * cuBLASLt and a kernel do it on any GPU.
 *
 * For bfloat16, p and h / l are rounded to bfloat16 before the GEMMs. Vocabulary parallelism: ranks
 * exchange the targets' logits once for all tokens, and n and the sum of p per block.
 *
 * Measured (docs/benchmarks/kernels.md), one H200, held: 680 TFLOP/s (86 % of a dense GEMM) with
 * 768 MiB of scratch, 620 with 256 MiB; not fused 565 to 592. 1.56 and 1.38 times as fast as Liger,
 * 1.17 and 1.06 as torch.compile, which takes 4.6 GiB.
 */
#include <math_constants.h>

#include "cuda/loss/linear_cross_entropy.cuh"
#include "cuda/loss/softmax_exp.h"

static const char op[] = "cross-entropy";

enum {
    WIDTH = 8192,
    VECTORS_PER_THREAD = WIDTH / 8 / THREADS,
    MAX_PARTS = 2 * MAX_SPLITS,
    STEP = 128
};

/* p is kept by slices [tokens, n] of the vocabulary, so that rows of what is read by products begin
 * at multiples of 16 bytes: of each split all but its last columns, fewer than 8, and those.  A
 * slice's parts are `first` and so on of a token, each for `tile` columns. */
template <class T> struct vocab_parts {
    int n;
    struct {
        int64_t id, n, first, tile;
        T *p;
    } of[MAX_PARTS];
};

/* 2^(log2(e) x - n). The bfloat16 variant, which is rounded afterwards, errs by 2^-22 and 2^-24
 * |x|. */
template <class T> static __device__ __forceinline__ float exp2_diff(float x, float n)
{
    constexpr double log2e = 1.4426950408889634;
    constexpr float high = (float)log2e, low = (float)(log2e - (double)high);
    float y;

    if (sizeof(T) == 4)
        return exp2f(fmaf(x, low, fmaf(x, high, -n)));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(x, high, -n)));
    return y;
}

/* Per token: the logit of its target, and finally the inverse of its sum. */
struct token_state {
    float target, by;
};

/* The logit of a token's target, 0 if this rank lacks it. A warp has a token. */
template <class T>
static __global__ void target_logit_kernel(float *logit, const T *hidden, vocab_splits w,
                                           const int32_t *targets, int32_t ignore, int64_t n,
                                           int64_t h, float cap)
{
    const int64_t r = group_row<WARP>();
    const T *x, *y;
    float sum = 0.0f;

    if (r >= n)
        return;
    x = hidden + r * h;
    y = targets[r] == ignore ? NULL : target_row<T>(w, targets[r], h);
    D9DI_ROW8 (i, y == NULL ? 0 : h, WARP) {
        float a[8], b[8];

        load8(a, x + i, h - i);
        load8(b, y + i, h - i);
        for (int j = 0; j < 8; j++)
            sum = fmaf(a[j], b[j], sum);
    }
    sum = group_sum<WARP>(sum);
    if (threadIdx.x % WARP == 0)
        logit[r] = softcap(sum, cap);
}

/* logit [ranks, stride], of which at most one is not 0. */
static __global__ void token_init_kernel(token_state *state, float *reference, const float *logit,
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

/* Logits [tokens, n] of at most WIDTH columns of a part become p. A block has a token. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    softmax_exp_kernel(d9di_softmax_exp_part *part, int64_t stride, const float *reference,
                       const float *logits, T *p, int64_t all_n, int64_t n, float cap)
{
    const int64_t row = blockIdx.x;
    const float *z = logits + row * n;
    float v[VECTORS_PER_THREAD][8], to = reference[row], max_logit = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
    for (int c = 0; c < VECTORS_PER_THREAD; c++) {
        const int64_t i = ((int64_t)c * THREADS + threadIdx.x) * 8;

        load8(v[c], z + i, n - i);
        for (int j = 0; j < 8; j++) {
            v[c][j] = i + j < n ? softcap(v[c][j], cap) : -CUDART_INF_F;
            max_logit = fmaxf(max_logit, v[c][j]);
        }
    }
    max_logit = group_reduce<THREADS>(max_logit, max_op()) * 1.4426950408889634f;
    if (max_logit > to + D9DI_SOFTMAX_EXP_SLACK)
        to = rintf(max_logit);
#pragma unroll
    for (int c = 0; c < VECTORS_PER_THREAD; c++) {
        const int64_t i = ((int64_t)c * THREADS + threadIdx.x) * 8;

        for (int j = 0; j < 8; j++) {
            const float derivative = i + j < n ? softcap_grad(v[c][j], cap) : 0.0f;

            v[c][j] = exp2_diff<T>(v[c][j], to);
            sum += v[c][j];
            v[c][j] = to == CUDART_INF_F ? 0.0f : v[c][j] * derivative;
        }
        if (i < n)
            store8(p + row * all_n + i, v[c], n - i);
    }
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        part[row * stride] = {to, sum};
}

/* Rescales a token's tiles to n = `to`, the largest. */
template <class T>
static __device__ void rescale_tiles(const vocab_parts<T> &all, const d9di_softmax_exp_part *part,
                                     int64_t row, float to)
{
    for (int k = 0; k < all.n; k++) {
        T *p = all.of[k].p + row * all.of[k].n;

        for (int64_t i = threadIdx.x; i < all.of[k].n; i += THREADS) {
            const float n = part[all.of[k].first + i / all.of[k].tile].n;

            if (n != to)
                store_float(p + i, to_float(p[i]) * exp2f(n - to));
        }
    }
}

/* sums [2, tokens]: per token the largest n of this rank, and its l. A block has a token. */
static __global__ void __launch_bounds__(THREADS)
    token_sum_kernel(float *sums, const d9di_softmax_exp_part *part, int64_t stride)
{
    const int64_t r = blockIdx.x;
    float n = -CUDART_INF_F, l = 0.0f;

    part += r * stride;
    for (int64_t i = threadIdx.x; i < stride; i += THREADS)
        n = fmaxf(n, part[i].n);
    n = group_reduce<THREADS>(n, max_op());
    for (int64_t i = threadIdx.x; i < stride; i += THREADS)
        l += part[i].sum * exp2f(part[i].n - n);
    l = group_sum<THREADS>(l);
    if (threadIdx.x != 0)
        return;
    sums[r] = n;
    sums[gridDim.x + r] = l;
}

/* n and l of a token over all ranks, from sums [ranks, 2, tokens]. */
static __device__ void combine_ranks(const float *sums, int64_t ranks, int64_t tokens, float *n,
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

/* Loss, p[target] -= l derivative, and scaled = h / l. A block has a token. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    loss_kernel(float *loss, T *scaled, const T *hidden, token_state *state,
                const d9di_softmax_exp_part *part, int64_t stride, const float *sums, int64_t ranks,
                vocab_parts<T> all, int64_t vocab_size, const int32_t *targets, int32_t ignore,
                int64_t h, float cap)
{
    const int64_t r = blockIdx.x, id = targets[r];
    const bool ignored = id == ignore, bad = !ignored && (id < 0 || id >= vocab_size);
    const float target = state[r].target;
    float n, least = CUDART_INF_F, l, by;

    part += r * stride;
    for (int64_t i = threadIdx.x; i < stride; i += THREADS)
        least = fminf(least, part[i].n);
    least = -group_reduce<THREADS>(-least, max_op());
    combine_ranks(sums + r, ranks, gridDim.x, &n, &l);
    by = ignored ? 0.0f : bad ? CUDART_NAN_F : 1.0f / l;
    for (int64_t i = (int64_t)threadIdx.x * 8; i < h; i += THREADS * 8) {
        float v[8];

        load8(v, hidden + r * h + i, h - i);
        for (int j = 0; j < 8; j++)
            v[j] = ignored ? 0.0f : v[j] * by;
        store8(scaled + r * h + i, v, h - i);
    }
    if (least < n && !ignored) {
        rescale_tiles(all, part, r, n);
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    loss[r] = ignored ? 0.0f : bad ? CUDART_NAN_F : fmaf(n, CUDART_LN2_F, -target) + logf(l);
    state[r].by = by;
    for (int k = 0; k < all.n && !ignored; k++)
        if (id >= all.of[k].id && id < all.of[k].id + all.of[k].n)
            store_float(all.of[k].p + r * all.of[k].n + (id - all.of[k].id),
                        (exp2_diff<float>(target, n) - l) * softcap_grad(target, cap));
}

/* unit = sum / l. A block has a token. */
template <class T>
static __global__ void dgrad_kernel(T *token_grad, const float *sum, const token_state *state,
                                    int64_t h)
{
    const int64_t r = blockIdx.x;
    const float by = state[r].by;

    for (int64_t i = (int64_t)threadIdx.x * 8; i < h; i += THREADS * 8) {
        float v[8];

        load8(v, sum + r * h + i, h - i);
        for (int j = 0; j < 8; j++)
            v[j] = by == 0.0f ? 0.0f : v[j] * by;
        store8(token_grad + r * h + i, v, h - i);
    }
}

/* A call's arguments, and its scratch for `max_tokens` tokens. */
template <class T> struct fwd_bwd_call {
    d9d_stream s;
    const d9d_linear_cross_entropy_dims *n;
    d9d_dtype gt;
    const void *const *w;
    void *const *dw;
    const float *beta;
    int64_t ranks, rank, here;        /* here: rows of this rank's part of the vocabulary */
    int64_t max_tokens, width, parts; /* tokens; columns per logits GEMM; sums per token */
    vocab_splits where;
    float *target, *sums; /* [ranks, T], [ranks, 2, tokens] */
    float *logits, *sum, *reference;
    d9di_softmax_exp_part *part;
    token_state *state;
    T *scaled, *p;
};

static int64_t align_bytes(int64_t bytes)
{
    return d9di_i64_round_up(bytes, 256);
}

/* Advances to the next part of the vocabulary; start from all zeros. */
static bool vocab_part_next(const d9d_linear_cross_entropy_dims *d, vocab_block *c)
{
    if (!vocab_block_next(d, INT64_MAX, c))
        return false;
    c->n = c->n >= 8 ? c->n / 8 * 8 : c->n;
    return true;
}

template <class T>
static bool is_sm90_part(const fwd_bwd_call<T> &o, int64_t tokens, const vocab_block &c)
{
    return o.n->softcap == 0.0f &&
           d9di_softmax_exp_sm90_supported(o.s, o.n->t, tokens, o.n->h, c.n);
}

template <class T> static int64_t tile_columns(const fwd_bwd_call<T> &o, const vocab_block &c)
{
    return is_sm90_part(o, o.n->rows, c) ? (int64_t)D9DI_SOFTMAX_EXP_TILE : WIDTH;
}

/* p of one part: one GEMM, or a GEMM and a kernel for every WIDTH columns. */
template <class T>
static d9d_status vocab_part_softmax_exp(const fwd_bwd_call<T> &o, const vocab_parts<T> &all,
                                         int slice, const vocab_block &c, const T *x,
                                         int64_t tokens)
{
    const d9di_softmax_exp_args call = {
        tokens, o.n->h, c.n, o.reference, o.part + all.of[slice].first, o.parts};
    T *p = all.of[slice].p;

    if (is_sm90_part(o, tokens, c))
        return d9di_softmax_exp_sm90(o.s, op, &call, p, x,
                                     d9di_elem_cat(o.n->t, o.w[c.split], c.first * o.n->h));
    for (int64_t i = 0; i < c.n; i += WIDTH) {
        const vocab_block some = {c.split, c.base, c.first + i, d9di_i64_min(c.n - i, WIDTH)};

        D9D_TRY(logits_compute(o.s, op, o.n, some, x, tokens, o.w, o.logits));
        softmax_exp_kernel<T><<<(unsigned)tokens, THREADS, 0, d9di_cuda_stream(o.s)>>>(
            call.part + i / WIDTH, o.parts, o.reference, o.logits, p + i, c.n, some.n,
            o.n->softcap);
        D9D_TRY(d9di_cuda_check_launch(op));
    }
    return D9D_OK;
}

/* sum += p W and dW += p' scaled, for one part. */
template <class T>
static d9d_status vocab_part_gemms(const fwd_bwd_call<T> &o, const T *p, const vocab_block &c,
                                   bool token_grad, float beta_sum, float beta_dw, int64_t tokens)
{
    const int64_t h = o.n->h;
    d9d_gemm g = {};

    g.t = o.n->t;
    if (token_grad) {
        g.ct = D9D_F32;
        g.m = tokens;
        g.n = h;
        g.k = c.n;
        g.beta = beta_sum;
        D9D_TRY(d9di_gemm(o.s, op, &g, p, d9di_elem_cat(g.t, o.w[c.split], c.first * h), o.sum));
    }
    if (o.dw[c.split] == NULL)
        return D9D_OK;
    g.ct = o.gt;
    g.trans_a = true;
    g.m = c.n;
    g.n = h;
    g.k = tokens;
    g.beta = beta_dw;
    return d9di_gemm(o.s, op, &g, p, o.scaled, d9di_elem_at(o.gt, o.dw[c.split], c.first * h));
}

template <class T>
static d9d_status gather_ranks(const fwd_bwd_call<T> &o, float *all, int64_t count)
{
    return o.n->ranks == NULL ? D9D_OK : o.n->ranks->all_gather(o.n->ranks->arg, all, count);
}

/* The targets' logits of all tokens, before any other logit. */
template <class T>
static d9d_status compute_target_logits(const fwd_bwd_call<T> &o, const void *hidden,
                                        const int32_t *targets)
{
    target_logit_kernel<T><<<grid_for_rows(o.n->rows, WARP), THREADS, 0, d9di_cuda_stream(o.s)>>>(
        o.target + o.rank * o.n->rows, (const T *)hidden, o.where, targets, o.n->ignore, o.n->rows,
        o.n->h, o.n->softcap);
    D9D_TRY(d9di_cuda_check_launch(op));
    return gather_ranks(o, o.target, o.n->rows);
}

/* p of this rank's vocabulary, and the sums of all ranks. */
template <class T>
static d9d_status compute_softmax_exp(const fwd_bwd_call<T> &o, int64_t first, int64_t tokens,
                                      const T *x, const int32_t *targets, vocab_parts<T> *all)
{
    cudaStream_t queue = d9di_cuda_stream(o.s);
    vocab_block c = {};
    T *p = o.p;

    token_init_kernel<<<(unsigned)d9di_i64_ceil_div(tokens, THREADS), THREADS, 0, queue>>>(
        o.state, o.reference, o.target + first, o.ranks, o.n->rows, targets, o.n->ignore, tokens);
    D9D_TRY(d9di_cuda_check_launch(op));
    for (int64_t parts = 0; vocab_part_next(o.n, &c); all->n++) {
        all->of[all->n] = {c.base + c.first, c.n, parts, tile_columns(o, c), p};
        parts += d9di_i64_ceil_div(c.n, all->of[all->n].tile);
        p += d9di_i64_round_up(tokens * c.n, 128);
        D9D_TRY(vocab_part_softmax_exp(o, *all, all->n, c, x, tokens));
    }
    token_sum_kernel<<<(unsigned)tokens, THREADS, 0, queue>>>(o.sums + 2 * o.rank * tokens, o.part,
                                                              o.parts);
    D9D_TRY(d9di_cuda_check_launch(op));
    return gather_ranks(o, o.sums, 2 * tokens);
}

/* Processes tokens [first, first + tokens). */
template <class T>
static d9d_status token_block_run(const fwd_bwd_call<T> &o, int64_t first, int64_t tokens,
                                  float *loss, void *token_grad, const void *hidden,
                                  const int32_t *targets)
{
    cudaStream_t queue = d9di_cuda_stream(o.s);
    const T *x = (const T *)hidden + first * o.n->h;
    vocab_parts<T> all = {};
    vocab_block c = {};

    D9D_TRY(compute_softmax_exp(o, first, tokens, x, targets + first, &all));
    loss_kernel<T><<<(unsigned)tokens, THREADS, 0, queue>>>(
        loss + first, o.scaled, x, o.state, o.part, o.parts, o.sums, o.ranks, all, vocab_size(o.n),
        targets + first, o.n->ignore, o.n->h, o.n->softcap);
    D9D_TRY(d9di_cuda_check_launch(op));
    for (int k = 0; vocab_part_next(o.n, &c); k++)
        D9D_TRY(vocab_part_gemms(o, all.of[k].p, c, token_grad != NULL, k == 0 ? 0.0f : 1.0f,
                                 first == 0 ? o.beta[c.split] : 1.0f, tokens));
    if (token_grad != NULL && all.n == 0)
        return d9d_k_fill(o.s, o.n->t, (T *)token_grad + first * o.n->h, tokens * o.n->h, 0.0f);
    if (token_grad != NULL)
        dgrad_kernel<T><<<(unsigned)tokens, THREADS, 0, queue>>>((T *)token_grad + first * o.n->h,
                                                                 o.sum, o.state, o.n->h);
    return d9di_cuda_check_launch(op);
}

/* Bytes of scratch for that many tokens; with `at`, also sets the pointers. */
template <class T> static int64_t scratch_layout(fwd_bwd_call<T> *o, int64_t tokens, char *at)
{
    const int64_t h = o->n->h, count = tokens * o->here + MAX_PARTS * (int64_t)128;
    const struct {
        void **array;
        int64_t bytes;
    } workspace[] = {
        {(void **)&o->logits, tokens * o->width * 4},
        {(void **)&o->sum, tokens * h * 4},
        {(void **)&o->reference, tokens * 4},
        {(void **)&o->part, tokens * o->parts * (int64_t)sizeof(d9di_softmax_exp_part)},
        {(void **)&o->state, tokens * (int64_t)sizeof(token_state)},
        {(void **)&o->sums, tokens * o->ranks * 8},
        {(void **)&o->target, o->n->rows * o->ranks * 4},
        {(void **)&o->scaled, tokens * h * (int64_t)sizeof(T)},
        {(void **)&o->p, count * (int64_t)sizeof(T)},
    };
    int64_t bytes = 0;

    for (size_t i = 0; i < sizeof(workspace) / sizeof(*workspace); i++) {
        *workspace[i].array = at == NULL ? NULL : at + bytes;
        bytes += align_bytes(workspace[i].bytes);
    }
    return bytes;
}

/* The parts' columns and sums per token. */
template <class T> static void measure_parts(fwd_bwd_call<T> *o)
{
    vocab_block c = {};

    while (vocab_part_next(o->n, &c)) {
        o->here += c.n;
        o->parts += d9di_i64_ceil_div(c.n, tile_columns(*o, c));
        if (!is_sm90_part(*o, o->n->rows, c))
            o->width = d9di_i64_max(o->width, d9di_i64_min(c.n, WIDTH));
    }
}

template <class T>
static d9d_status run_fwd_bwd(fwd_bwd_call<T> &o, float *loss, void *token_grad, const void *hidden,
                              const int32_t *targets)
{
    d9d_status st;
    int64_t empty, bytes;
    void *scratch;

    o.ranks = o.n->ranks != NULL ? o.n->ranks->n : 1;
    o.rank = o.n->ranks != NULL ? o.n->ranks->rank : 0;
    D9D_TRY(vocab_splits_make(op, o.n, o.w, &o.where));
    measure_parts(&o);
    empty = scratch_layout(&o, 0, NULL);
    o.max_tokens = d9di_linear_cross_entropy_tokens(
        o.n, empty, (double)(scratch_layout(&o, STEP, NULL) - empty) / STEP);
    bytes = scratch_layout(&o, o.max_tokens, NULL);
    D9D_TRY(d9di_cuda_scratch_alloc(o.s, bytes, &scratch));
    (void)scratch_layout(&o, o.max_tokens, (char *)scratch);
    st = compute_target_logits(o, hidden, targets);
    for (int64_t i = 0; i < o.n->rows && st == D9D_OK; i += o.max_tokens)
        st = token_block_run(o, i, d9di_i64_min(o.n->rows - i, o.max_tokens), loss, token_grad,
                             hidden, targets);
    d9di_cuda_scratch_free(o.s, scratch, bytes);
    return st;
}

d9d_status d9d_k_linear_cross_entropy_fwd_bwd(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                              d9d_dtype gt, float *loss, void *token_grad,
                                              void *const *dw, const float *beta,
                                              const void *hidden, const void *const *w,
                                              const int32_t *targets)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    D9D_TRY(d9di_args_check_float(op, gt));
    if (n->rows == 0)
        return wgrad_clear(s, n, gt, dw, beta);
    return D9DI_DISPATCH_DTYPE(n->t, T, [&] {
        fwd_bwd_call<T> o = {s, n, gt, w, dw, beta};

        return run_fwd_bwd<T>(o, loss, token_grad, hidden, targets);
    }());
}
