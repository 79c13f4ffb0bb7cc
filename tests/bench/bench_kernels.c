/* bench_kernels.c - benchmark of each kernel, relative to the machine's rates.
 *
 * Matrix products are given in GFLOP/s, relative to one large product of the same type.  The others
 * are given in GB/s of necessary reads and writes, relative to a copy of the same size.  Best of a
 * few runs on random data.
 *
 *     OMP_NUM_THREADS=2 build/tests/bench/bench_kernels [part of a name | =name ...]
 *
 * Uses the device that D9D_TEST_DEVICE names.  LARGE selects sizes for devices that a small model's
 * step would not keep busy (tests/gpu/bench_large.c).
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "support/unit_device.h"

/* Sizes of a small model's step, or of four sequences through a large one's. */
enum {
#ifdef LARGE
    T = 16384,
    H = 2048,
    I = 6144,
    S = 4096,
    A = 16,
    KV = 8,
    D = 128,
    V = 151936,
    E = 128,
    K = 8,
    EI = 768,
#else
    T = 2048,
    H = 512,
    I = 1536,
    S = 512,
    A = 8,
    KV = 4,
    D = 64,
    V = 8192,
    E = 16,
    K = 4,
    EI = 256,
#endif
    B = T / S,
    W = 128, /* of a window */
    N = T * I,
    ROWS = T * K,
    DOCUMENTS = 4 * B,
    GOING = 64, /* rows that go on by a token */
    RANKS = 4,  /* that rows are cut over */
    SHARE = 2   /* segments of a row on one of them */
};

enum { X, Y, Z, G, U, OUT, OUT2, OUT3, STATE, STATE2, BUFFERS };

typedef struct bench {
    d9d_device *dev;
    const d9d_kernels *k;
    d9d_stream s;
    d9d_dtype t;
    void *p[BUFFERS];
    int32_t *ids, *offset, *row, *source, *expert;
    d9d_segment *segment, *going, *share;
    int32_t *going_at;
    float *stats, *prob, *dprob, *freq, *one, *decay;
    double *sum;
    int64_t *found;
    float *logits, *largest; /* of GOING sequences */
    double *token_stats;
    int64_t *draws;
    int32_t *tokens;
} bench;

/* --- one line a kernel: the call, and its work ------------------------------------------- */

static d9d_status gemm(bench *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k, d9d_dtype ct)
{
    const d9d_gemm g = {.t = b->t, .ct = ct, .trans_a = ta, .trans_b = tb, .m = m, .n = n, .k = k};

    return b->k->gemm->dense(b->s, &g, b->p[X], b->p[Y], b->p[OUT]);
}
static d9d_status gemm_y(bench *b)
{
    return gemm(b, false, true, T, I, H, b->t);
}
static d9d_status gemm_dx(bench *b)
{
    return gemm(b, false, false, T, H, I, b->t);
}
static d9d_status gemm_wgrad(bench *b)
{
    return gemm(b, true, false, I, H, T, D9D_F32);
}
/* Gate, up and SwiGLU; the gradients of the first two from that of the layer. */
static d9d_gemm_glu_dims dense_dims(const bench *b)
{
    return (d9d_gemm_glu_dims){.t = b->t, .rows = T, .h = H, .i = I, .e = 1};
}
static d9d_gemm_glu_dims experts_dims(const bench *b)
{
    return (d9d_gemm_glu_dims){
        .t = b->t, .rows = ROWS, .h = H, .i = EI, .e = E, .offset = b->offset};
}
static d9d_status gated_of(bench *b, d9d_gemm_glu_dims n)
{
    return b->k->gemm->glu(b->s, &n, b->p[OUT], b->p[OUT2], b->p[OUT3], b->p[X], b->p[Y], b->p[Z]);
}
static d9d_status swiglu_bwd_of(bench *b, d9d_gemm_glu_dims n)
{
    return b->k->gemm->glu_bwd(b->s, &n, b->p[OUT], b->p[OUT2], b->p[X], b->p[Y], b->p[G], b->p[U]);
}
static d9d_status gemm_swiglu(bench *b)
{
    return gated_of(b, dense_dims(b));
}
static d9d_status gemm_swiglu_bwd(bench *b)
{
    return swiglu_bwd_of(b, dense_dims(b));
}
static d9d_status grouped_swiglu(bench *b)
{
    return gated_of(b, experts_dims(b));
}
static d9d_status grouped_swiglu_bwd(bench *b)
{
    return swiglu_bwd_of(b, experts_dims(b));
}
static d9d_status gemm_narrow(bench *b)
{
    return gemm(b, false, true, T, E, H, b->t);
}
/* What generation does: all of a matrix is read for a token, or for some. */
static d9d_status gemm_one(bench *b)
{
    return gemm(b, false, true, 1, 4 * (int64_t)I, T, b->t);
}
static d9d_status gemm_eight(bench *b)
{
    return gemm(b, false, true, 8, 4 * (int64_t)I, T, b->t);
}
static d9d_status gemm_one_straight(bench *b)
{
    return gemm(b, false, false, 1, 4 * (int64_t)I, T, b->t);
}

static d9d_status grouped(bench *b)
{
    return b->k->gemm->grouped(b->s, b->t, b->p[OUT], b->p[X], b->p[Y], b->offset, ROWS, E, H, EI);
}
static d9d_status grouped_dgrad(bench *b)
{
    const void *dy[] = {b->p[X]}, *w[] = {b->p[Y]};

    return b->k->gemm->grouped_dgrad(b->s, b->t, b->p[OUT], 0.0f, 1, dy, w, b->offset, ROWS, E, H,
                                     EI);
}
static d9d_status grouped_dgrad2(bench *b)
{
    const void *dy[] = {b->p[X], b->p[U]}, *w[] = {b->p[Y], b->p[Y]};

    return b->k->gemm->grouped_dgrad(b->s, b->t, b->p[OUT], 0.0f, 2, dy, w, b->offset, ROWS, E, H,
                                     EI);
}
static d9d_status grouped_wgrad(bench *b)
{
    return b->k->gemm->grouped_wgrad(b->s, b->t, D9D_F32, b->p[OUT], 0.0f, b->p[X], b->p[Y],
                                     b->offset, ROWS, E, H, EI);
}

static d9d_status grouped_wgrad_add(bench *b)
{
    return b->k->gemm->grouped_wgrad(b->s, b->t, D9D_F32, b->p[OUT], 1.0f, b->p[X], b->p[Y],
                                     b->offset, ROWS, E, H, EI);
}

static d9d_attention_dims dims(const bench *b, bool packed, int64_t window)
{
    return (d9d_attention_dims){.t = b->t,
                                .b = B,
                                .s = S,
                                .z = S,
                                .a = A,
                                .kv = KV,
                                .d = D,
                                .scale = 0.125f,
                                .causal = true,
                                .segments = packed ? DOCUMENTS : 0,
                                .segment = packed ? b->segment : NULL,
                                .window = window};
}
static d9d_status attend_as(bench *b, const d9d_attention_dims *n)
{
    return b->k->attention->fwd(b->s, n, b->p[OUT], b->stats, b->p[X], b->p[Y], b->p[Z]);
}
static d9d_status attend_bwd_as(bench *b, const d9d_attention_dims *n)
{
    return b->k->attention->bwd(b->s, n, b->p[OUT2], b->p[OUT3], b->p[STATE], b->p[G], b->p[X],
                                b->p[Y], b->p[Z], b->p[OUT], b->stats);
}
/* What a rank of context parallelism has of a row of T, and the keys of all of it. */
static d9d_attention_dims share_dims(const bench *b)
{
    d9d_attention_dims n = dims(b, true, 0);

    n.b = 1;
    n.s = T / RANKS;
    n.z = T;
    n.segments = SHARE;
    n.segment = b->share;
    n.chunks = SHARE;
    return n;
}
static d9d_status attend(bench *b, bool packed, int64_t window)
{
    const d9d_attention_dims n = dims(b, packed, window);

    return attend_as(b, &n);
}
static d9d_status attend_bwd(bench *b, bool packed, int64_t window)
{
    const d9d_attention_dims n = dims(b, packed, window);

    return attend_bwd_as(b, &n);
}
static d9d_status attention(bench *b)
{
    return attend(b, false, 0);
}
static d9d_status attention_bwd(bench *b)
{
    return attend_bwd(b, false, 0);
}
static d9d_status attention_packed(bench *b)
{
    return attend(b, true, 0);
}
static d9d_status attention_packed_bwd(bench *b)
{
    return attend_bwd(b, true, 0);
}
static d9d_status attention_share(bench *b)
{
    const d9d_attention_dims n = share_dims(b);

    return attend_as(b, &n);
}
static d9d_status attention_share_bwd(bench *b)
{
    const d9d_attention_dims n = share_dims(b);

    return attend_bwd_as(b, &n);
}
static d9d_status attention_window(bench *b)
{
    return attend(b, false, W);
}
static d9d_status attention_window_bwd(bench *b)
{
    return attend_bwd(b, false, W);
}
static d9d_status attention_packed_window(bench *b)
{
    return attend(b, true, W);
}
static d9d_status attention_packed_window_bwd(bench *b)
{
    return attend_bwd(b, true, W);
}
static d9d_status attention_sink(bench *b)
{
    const d9d_attention_dims n = dims(b, false, 0);

    return b->k->attention->sink(b->s, &n, b->p[OUT], b->stats, b->p[X]);
}
static d9d_status attention_sink_wgrad(bench *b)
{
    const d9d_attention_dims n = dims(b, false, 0);

    return b->k->attention->sink_wgrad(b->s, &n, D9D_F32, b->p[OUT2], 0.0f, b->p[G], b->p[OUT],
                                       b->stats, b->p[X]);
}

static const int64_t vocabulary[] = {V};
static d9d_linear_cross_entropy_dims lce_dims(const bench *b)
{
    return (d9d_linear_cross_entropy_dims){
        .t = b->t, .rows = T, .h = H, .n_split = 1, .v = vocabulary, .ignore = -1};
}
static d9d_status lce(bench *b)
{
    const d9d_linear_cross_entropy_dims n = lce_dims(b);
    const void *w[] = {b->p[Y]};

    return b->k->loss->linear_cross_entropy(b->s, &n, b->prob, b->stats, NULL, b->p[X], w, b->ids);
}
static d9d_status lce_unit(bench *b)
{
    const d9d_linear_cross_entropy_dims n = lce_dims(b);
    const void *w[] = {b->p[Y]};

    return b->k->loss->linear_cross_entropy(b->s, &n, b->prob, b->stats, b->p[OUT], b->p[X], w,
                                            b->ids);
}
static d9d_status lce_dgrad(bench *b)
{
    return b->k->loss->linear_cross_entropy_dgrad(b->s, b->t, b->p[OUT], b->prob, b->p[X], T, H);
}
static d9d_status lce_fwd_bwd_in(bench *b, int64_t scratch)
{
    d9d_linear_cross_entropy_dims n = lce_dims(b);
    const void *w[] = {b->p[Y]};
    void *dw[] = {b->p[STATE]};
    const float beta = 0.0f;

    n.scratch = scratch;
    return b->k->loss->linear_cross_entropy_fwd_bwd(b->s, &n, b->t, b->prob, b->p[OUT], dw, &beta,
                                                    b->p[X], w, b->ids);
}
static d9d_status lce_fwd_bwd(bench *b)
{
    return lce_fwd_bwd_in(b, 0);
}
static d9d_status lce_fwd_bwd_narrow(bench *b)
{
    return lce_fwd_bwd_in(b, (int64_t)256 << 20);
}
static d9d_status lce_wgrad(bench *b)
{
    const d9d_linear_cross_entropy_dims n = lce_dims(b);
    const void *w[] = {b->p[Y]};
    void *dw[] = {b->p[OUT]};
    const float beta = 1.0f;

    return b->k->loss->linear_cross_entropy_wgrad(b->s, &n, D9D_F32, dw, &beta, b->prob, b->stats,
                                                  b->p[X], w, b->ids);
}

static d9d_status add(bench *b)
{
    return b->k->elementwise->add(b->s, b->t, b->p[OUT], (const void *[]){b->p[X], b->p[Y]}, 2, N);
}
static d9d_status add_three(bench *b)
{
    return b->k->elementwise->add(b->s, b->t, b->p[OUT],
                                  (const void *[]){b->p[X], b->p[Y], b->p[Z]}, 3, N);
}
static d9d_status accumulate(bench *b)
{
    return b->k->elementwise->accumulate(b->s, D9D_F32, b->p[OUT], 1.0f, b->t, b->p[X], N);
}
static d9d_status swiglu(bench *b)
{
    return b->k->elementwise->glu(b->s, &(d9d_glu){0}, b->t, b->p[OUT], b->p[X], b->p[Y], N);
}
static d9d_status swiglu_bwd(bench *b)
{
    return b->k->elementwise->glu_bwd(b->s, &(d9d_glu){0}, b->t, b->p[OUT], b->p[OUT2], b->p[X],
                                      b->p[Y], b->p[Z], N);
}
static d9d_status norm(bench *b)
{
    return b->k->norm->rms_norm(b->s, b->t, b->p[OUT], b->stats, b->p[X], b->p[Y], T, I, 1e-6f,
                                false);
}
static d9d_status norm_grad(bench *b)
{
    return b->k->norm->rms_norm_bwd(b->s, b->t, b->p[OUT], b->p[G], D9D_F32, b->p[OUT2], 0.0f,
                                    b->p[X], b->p[Z], b->p[Y], b->stats, T, I, false);
}
static d9d_status norm_heads(bench *b)
{
    return b->k->norm->rms_norm(b->s, b->t, b->p[OUT], b->stats, b->p[X], b->p[Y], N / D, D, 1e-6f,
                                false);
}
static d9d_qk_norm_rope_dims norm_rope_dims(const bench *b, int64_t r)
{
    return (d9d_qk_norm_rope_dims){.t = b->t,
                                   .m = T,
                                   .heads = N / T / D,
                                   .d = D,
                                   .r = r,
                                   .eps = 1e-6f,
                                   .mscale = 1.0f,
                                   .positions = b->ids,
                                   .inv_freq = b->freq};
}
static d9d_status norm_rope(bench *b)
{
    const d9d_qk_norm_rope_dims n = norm_rope_dims(b, D);

    return b->k->norm->norm_rope(b->s, &n, b->p[OUT], b->stats, b->p[X], b->p[Y]);
}
static d9d_status norm_rope_partial(bench *b)
{
    const d9d_qk_norm_rope_dims n = norm_rope_dims(b, D / 4);

    return b->k->norm->norm_rope(b->s, &n, b->p[OUT], b->stats, b->p[X], b->p[Y]);
}
static d9d_status norm_rope_grad(bench *b)
{
    const d9d_qk_norm_rope_dims n = norm_rope_dims(b, D);

    return b->k->norm->norm_rope_bwd(b->s, &n, b->p[OUT], D9D_F32, b->p[OUT2], 0.0f, b->p[Z],
                                     b->p[X], b->p[Y], b->stats);
}
static d9d_status rope(bench *b)
{
    return b->k->norm->rope(b->s, b->t, b->p[OUT], b->p[X], b->ids, b->freq, T, N / T / D, D, D,
                            false, 1.0f, 1.0f);
}
/* A layer of Qwen3-Next: twice as many heads of values as of keys. */
static d9d_gated_delta_dims delta_dims(const bench *b)
{
    return (d9d_gated_delta_dims){b->t, {B, S, 0, NULL}, A, 2 * (int64_t)A, D, D, 0.1f};
}
static d9d_status delta(bench *b)
{
    const d9d_gated_delta_dims n = delta_dims(b);

    return b->k->gdn->gated_delta(b->s, &n, b->p[OUT], b->p[OUT2], b->p[X], b->p[Y], b->p[Z],
                                  b->decay, b->p[U]);
}
static d9d_status delta_bwd(bench *b)
{
    const d9d_gated_delta_dims n = delta_dims(b);
    float *dq = b->p[OUT], *dk = dq + (int64_t)T * A * D, *dg = dk + (int64_t)T * A * D;

    return b->k->gdn->gated_delta_bwd(b->s, &n, dq, dk, b->p[OUT3], dg, dg + 2 * (int64_t)T * A,
                                      b->p[G], b->p[X], b->p[Y], b->p[Z], b->decay, b->p[U],
                                      b->p[OUT2]);
}
static d9d_status delta_on(bench *b)
{
    const d9d_gated_delta_dims n = {b->t, {1, GOING, GOING, b->going}, A, 2 * (int64_t)A, D, D,
                                    0.1f};
    const d9d_state_slots past = {b->p[OUT2], b->going_at};

    return b->k->gdn->gated_delta_step(b->s, &n, &past, b->p[OUT], b->p[X], b->p[Y], b->p[Z],
                                       b->decay, b->p[U]);
}
static d9d_causal_conv1d_dims conv_dims(const bench *b)
{
    return (d9d_causal_conv1d_dims){b->t, {B, S, 0, NULL}, I, 4};
}
static d9d_status conv(bench *b)
{
    const d9d_causal_conv1d_dims n = conv_dims(b);

    return b->k->gdn->causal_conv1d(b->s, &n, b->p[OUT], b->p[X], b->p[Y]);
}
static d9d_status conv_grad(bench *b)
{
    const d9d_causal_conv1d_dims n = conv_dims(b);

    return b->k->gdn->causal_conv1d_bwd(b->s, &n, b->p[OUT], D9D_F32, b->p[OUT2], 0.0f, b->p[G],
                                        b->p[X], b->p[Y]);
}
static d9d_status gated_norm(bench *b)
{
    return b->k->norm->rms_norm_gated(b->s, b->t, b->p[OUT], b->stats, b->p[X], b->p[Z], b->p[Y],
                                      N / D, D, 1e-6f);
}
static d9d_status gated_norm_grad(bench *b)
{
    return b->k->norm->rms_norm_gated_bwd(b->s, b->t, b->p[OUT], b->p[OUT3], D9D_F32, b->p[OUT2],
                                          0.0f, b->p[G], b->p[X], b->p[Z], b->p[Y], b->stats, N / D,
                                          D);
}

static d9d_status embedding(bench *b)
{
    return b->k->elementwise->embedding(b->s, b->t, b->p[OUT], b->ids, b->p[X], T, 0, V, H, true);
}
static d9d_status embedding_wgrad(bench *b)
{
    return b->k->elementwise->embedding_wgrad(b->s, b->t, D9D_F32, b->p[OUT], 1.0f, b->ids, b->p[X],
                                              T, 0, V, H);
}
static d9d_status router(bench *b)
{
    const d9d_router_dims n = {
        .t = b->t, .rows = T, .e = E, .k = K, .renormalise = true, .scale = 1};

    return b->k->moe->router(b->s, &n, b->p[OUT], b->prob, b->expert, b->p[X], NULL);
}
static d9d_status route(bench *b)
{
    return b->k->moe->sort_by_expert(b->s, b->offset, b->row, b->source, b->expert, T, E, K);
}
static d9d_moe_permute_dims permute_dims(const bench *b)
{
    return (d9d_moe_permute_dims){b->t, T, K, ROWS, H};
}
static d9d_status permute(bench *b)
{
    const d9d_moe_permute_dims n = permute_dims(b);

    return b->k->moe->permute(b->s, &n, b->p[OUT], b->p[X], b->row);
}
static d9d_status unpermute(bench *b)
{
    const d9d_moe_permute_dims n = permute_dims(b);

    return b->k->moe->unpermute(b->s, &n, b->p[OUT], b->p[X], b->prob, b->row, NULL);
}
static d9d_status unpermute_bwd(bench *b)
{
    const d9d_moe_permute_dims n = permute_dims(b);

    return b->k->moe->unpermute_bwd(b->s, &n, b->p[OUT], b->dprob, b->p[Y], b->p[X], b->prob,
                                    b->row);
}
static d9d_status sum_squares(bench *b)
{
    return b->k->reduce->sum_squares(b->s, b->sum, b->t, &(d9d_sum_squares_array){b->p[X], N}, 1);
}
static d9d_status find_nonfinite(bench *b)
{
    return b->k->reduce->find_nonfinite(b->s, b->found, b->t, b->p[X], N);
}
static const d9d_adam_step step = {.lr = 1e-3,
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .bias_correction1 = 0.5,
                                   .bias_correction2 = 0.5,
                                   .decoupled = true};
static d9d_optim_arrays updated(const bench *b)
{
    return (d9d_optim_arrays){
        .p = b->p[U], .g = b->p[OUT], .m = b->p[STATE], .v = b->p[STATE2], .n = N};
}
static d9d_status adam(bench *b)
{
    const d9d_optim_arrays a = updated(b);

    return b->k->optim->adam(b->s, &step, b->one, b->t, D9D_F32, D9D_F32, &a, 1);
}
static d9d_status adam_master(bench *b)
{
    d9d_optim_arrays a = updated(b);

    a.residual = b->p[Y];
    return b->k->optim->adam(b->s, &step, b->one, D9D_BF16, D9D_F32, D9D_F32, &a, 1);
}
static d9d_status adam_stochastic(bench *b)
{
    const d9d_optim_arrays a = updated(b);
    const int64_t n = N, zero = 0;

    return b->k->optim->adam_stochastic(b->s, &step, b->one, D9D_BF16, D9D_F32, D9D_F32, &a,
                                        (d9d_rng){1, 2}, 1, &n, &zero, &n);
}
static d9d_status lion(bench *b)
{
    static const d9d_lion_step lion_step = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99};
    const d9d_optim_arrays a = updated(b);

    return b->k->optim->lion(b->s, &lion_step, b->one, b->t, D9D_F32, D9D_F32, &a, 1);
}
static d9d_status normal(bench *b)
{
    const int64_t n = N, zero = 0;

    return b->k->elementwise->random(b->s, b->t, b->p[OUT], D9D_INIT_NORMAL, 1.0f, (d9d_rng){1, 2},
                                     1, &n, &zero, &n);
}
/* The next tokens of m sequences. */
static d9d_status choose(bench *b, int64_t m, int64_t top_k, double top_p)
{
    const d9d_sample_tokens_args a = {.temperature = 1,
                                      .top_k = top_k,
                                      .top_p = top_p,
                                      .draw = b->draws,
                                      .x = b->logits,
                                      .token = b->tokens,
                                      .largest = b->largest,
                                      .stats = b->token_stats,
                                      .m = m,
                                      .n = V};

    return b->k->elementwise->sample_tokens(b->s, &a);
}
static d9d_status choose_one(bench *b)
{
    return choose(b, 1, 0, 1);
}
static d9d_status choose_one_top(bench *b)
{
    return choose(b, 1, 20, 0.95);
}
static d9d_status choose_all(bench *b)
{
    return choose(b, GOING, 0, 1);
}
static d9d_status choose_all_top(bench *b)
{
    return choose(b, GOING, 20, 0.95);
}
static d9d_status largest(bench *b)
{
    return b->k->elementwise->argmax(b->s, b->tokens, b->largest, b->logits, GOING, V);
}
static d9d_status copy(bench *b)
{
    if (!unit_device_is_cpu())
        return d9d_device_copy(b->dev, b->p[OUT], b->p[X], (uint64_t)N * 4);
        /* As many threads as the kernels. */
#pragma omp parallel for
    for (int64_t i = 0; i < N; i += 4096)
        memcpy((char *)b->p[OUT] + i * 4, (char *)b->p[X] + i * 4, 16384);
    return D9D_OK;
}

static const struct line {
    const char *name;
    d9d_status (*run)(bench *b);
    double flop;             /* of a product, else */
    double elements, floats; /* of type t and of float32, read and written */
} lines[] = {
    {"copy", copy, 0, 0, 2.0 * N},
    {"gemm y = x W'", gemm_y, 2.0 * T *I *H, 0, 0},
    {"gemm dx = dy W", gemm_dx, 2.0 * T *I *H, 0, 0},
    {"gemm dW = dy' x", gemm_wgrad, 2.0 * T *I *H, 0, 0},
    {"gemm_swiglu", gemm_swiglu, 4.0 * T *I *H, 0, 0},
    {"gemm_swiglu_bwd", gemm_swiglu_bwd, 2.0 * T *I *H, 0, 0},
    {"gemm narrow", gemm_narrow, 2.0 * T *E *H, 0, 0},
    {"gemm of one row", gemm_one, 0, 4.0 * N, 0},
    {"gemm of one row, W", gemm_one_straight, 0, 4.0 * N, 0},
    {"gemm of eight rows", gemm_eight, 0, 4.0 * N, 0},
    {"grouped_gemm", grouped, 2.0 * ROWS *H *EI, 0, 0},
    {"grouped_gemm_dgrad", grouped_dgrad, 2.0 * ROWS *H *EI, 0, 0},
    {"grouped_gemm_dgrad of 2", grouped_dgrad2, 4.0 * ROWS *H *EI, 0, 0},
    {"grouped gemm_swiglu", grouped_swiglu, 4.0 * ROWS *H *EI, 0, 0},
    {"grouped gemm_swiglu_bwd", grouped_swiglu_bwd, 2.0 * ROWS *H *EI, 0, 0},
    {"grouped_gemm_wgrad", grouped_wgrad, 2.0 * ROWS *H *EI, 0, 0},
    {"grouped_gemm_wgrad added", grouped_wgrad_add, 2.0 * ROWS *H *EI, 0, 0},
    {"attention", attention, 2.0 * B *A *S *S *D, 0, 0},
    {"attention_bwd", attention_bwd, 5.0 * B *A *S *S *D, 0, 0},
    {"attention packed", attention_packed, 0.5 * B *A *S *S *D, 0, 0},
    {"attention_bwd packed", attention_packed_bwd, 1.25 * B *A *S *S *D, 0, 0},
    {"attention share", attention_share, 2.0 * A *T *T *D / RANKS, 0, 0},
    {"attention_bwd share", attention_share_bwd, 5.0 * A *T *T *D / RANKS, 0, 0},
    {"attention window", attention_window, 4.0 * B *A *S *W *D, 0, 0},
    {"attention_bwd window", attention_window_bwd, 10.0 * B *A *S *W *D, 0, 0},
    {"attention packed window", attention_packed_window, 4.0 * B *A *S *W *D, 0, 0},
    {"attention_bwd packed window", attention_packed_window_bwd, 10.0 * B *A *S *W *D, 0, 0},
    {"attention_sink", attention_sink, 0, 2.0 * T *A *D, 0},
    {"attention_sink_wgrad", attention_sink_wgrad, 0, 2.0 * T *A *D, 0},
    {"linear_cross_entropy", lce, 2.0 * T *V *H, 0, 0},
    {"linear_cross_entropy with unit", lce_unit, 4.0 * T *V *H, 0, 0},
    {"linear_cross_entropy_fwd_bwd", lce_fwd_bwd, 6.0 * T *V *H, 0, 0},
    {"linear_cross_entropy_fwd_bwd in 256 MiB", lce_fwd_bwd_narrow, 6.0 * T *V *H, 0, 0},
    {"linear_cross_entropy_dgrad", lce_dgrad, 0, 2.0 * T *H, 0},
    {"linear_cross_entropy_wgrad", lce_wgrad, 4.0 * T *V *H, 0, 0},
    {"add", add, 0, 3.0 * N, 0},
    {"add of three", add_three, 0, 4.0 * N, 0},
    {"accumulate", accumulate, 0, N, 2.0 * N},
    {"swiglu", swiglu, 0, 3.0 * N, 0},
    {"swiglu_bwd", swiglu_bwd, 0, 5.0 * N, 0},
    {"rms_norm", norm, 0, 2.0 * N, 0},
    {"rms_norm_bwd", norm_grad, 0, 4.0 * N, 0},
    {"rms_norm of heads", norm_heads, 0, 2.0 * N, 0},
    {"norm_rope", norm_rope, 0, 2.0 * N, 0},
    {"norm_rope of a quarter", norm_rope_partial, 0, 2.0 * N, 0},
    {"norm_rope_bwd", norm_rope_grad, 0, 3.0 * N, 0},
    {"rope", rope, 0, 2.0 * N, 0},
    {"gated_delta", delta, 4.0 * T *A *D *(5.0 * D9D_GATED_DELTA_CHUNK + 3 * D), 0, 0},
    {"gated_delta_bwd", delta_bwd, 4.0 * T *A *D *(12.0 * D9D_GATED_DELTA_CHUNK + 7 * D), 0, 0},
    {"gated_delta_step", delta_on, 0, 0, 4.0 * GOING *A *D *D},
    {"causal_conv1d", conv, 0, 2.0 * N, 0},
    {"causal_conv1d_bwd", conv_grad, 0, 3.0 * N, 0},
    {"rms_norm_gated", gated_norm, 0, 3.0 * N, 0},
    {"rms_norm_gated_bwd", gated_norm_grad, 0, 5.0 * N, 0},
    {"embedding", embedding, 0, 2.0 * T *H, 0},
    {"embedding_wgrad", embedding_wgrad, 0, 1.0 * T *H, 2.0 * T *H},
    {"router", router, 0, 1.0 * T *E, 1.0 * T *E},
    {"sort_by_expert", route, 0, 0, 3.0 * T *K},
    {"permute", permute, 0, 2.0 * ROWS *H, 0},
    {"unpermute", unpermute, 0, 1.0 * (ROWS + T) * H, 0},
    {"unpermute_bwd", unpermute_bwd, 0, 2.0 * ROWS *H + T *H, 0},
    {"sum_squares", sum_squares, 0, N, 0},
    {"find_nonfinite", find_nonfinite, 0, N, 0},
    {"adam", adam, 0, 2.0 * N, 5.0 * N},
    {"adam_master", adam_master, 0, 2.0 * N, 5.0 * N},
    {"adam_stochastic", adam_stochastic, 0, 1.0 * N, 5.0 * N},
    {"lion", lion, 0, 2.0 * N, 3.0 * N},
    {"random normal", normal, 0, N, 0},
    {"argmax", largest, 0, 0, 1.0 * GOING *V},
    {"sample_tokens", choose_all, 0, 0, 2.0 * GOING *V},
    {"sample_tokens of top_k and top_p", choose_all_top, 0, 0, 8.0 * GOING *V},
    {"sample_tokens of one row", choose_one, 0, 0, 2.0 * V},
    {"sample_tokens of one row, top_k and top_p", choose_one_top, 0, 0, 8.0 * V},
};

static void must(d9d_status st)
{
    if (st == D9D_OK)
        return;
    fprintf(stderr, "bench_kernels: %s\n", d9d_err_message());
    exit(1);
}

static double seconds(bench *b, const struct line *l, int times)
{
    const int64_t start = d9d_clock_ns();

    for (int i = 0; i < times; i++)
        must(l->run(b));
    must(d9d_device_sync(b->dev));
    return (double)(d9d_clock_ns() - start) * 1e-9 / times;
}

/* Seconds of one run; a GPU is given some short ones at a time, so that what it takes to start one
 * does not count. */
static double best_seconds(bench *b, const struct line *l)
{
    double best = INFINITY, all = 0.0, first;
    int times;

    (void)seconds(b, l, 1); /* libraries choose and compile */
    first = seconds(b, l, 1);
    times = unit_device_is_cpu() || first > 0.01 ? 1 : 10;
    for (int i = 0; i < 5 || all < 0.2; i++) {
        double s = seconds(b, l, times);

        best = s < best ? s : best;
        all += s * times;
    }
    return best;
}

/* --- what the kernels work on ------------------------------------------------------------- */

/* n elements of `size` bytes on the device, copied from `host` or zeros. */
static void *array(bench *b, const void *host, size_t n, size_t size)
{
    void *p;

    must(d9d_device_alloc(b->dev, n * size, &p));
    must(host != NULL ? d9d_device_upload(b->dev, p, host, n * size)
                      : unit_device_set(b->dev, p, 0, n * size));
    return p;
}

static void setup(bench *b)
{
    const int64_t n = 4 * (int64_t)N, zero = 0;
    const float one = 1.0f;
    float freq[D];
    int32_t ids[T];
    d9d_segment segment[DOCUMENTS], going[GOING];
    const int32_t p = T / (2 * RANKS); /* the second rank's chunks */
    const d9d_segment share[SHARE] = {{0, p, 0, 2 * p}, {p, p, 0, 7 * p}};

    for (int i = 0; i < BUFFERS; i++) {
        bool state = i >= STATE;

        must(d9d_device_alloc(b->dev, (uint64_t)n * 4, &b->p[i]));
        must(b->k->elementwise->random(b->s, state || i == OUT ? D9D_F32 : b->t, b->p[i],
                                       state ? D9D_INIT_ONES : D9D_INIT_UNIFORM, 0.1f,
                                       (d9d_rng){1, (uint64_t)i}, 1, &n, &zero, &n));
    }
    for (int i = 0; i < D; i++)
        freq[i] = 1.0f / (float)(1 + i);
    for (int i = 0; i < DOCUMENTS; i++)
        segment[i] = (d9d_segment){i * (S / 4), S / 4, i * (S / 4), S / 4};
    for (int i = 0; i < GOING; i++)
        going[i] = (d9d_segment){i, 1, 0, 2};
    b->segment = array(b, segment, DOCUMENTS, sizeof(*segment));
    b->going = array(b, going, GOING, sizeof(*going));
    for (int i = 0; i < GOING; i++)
        ids[i] = i;
    b->going_at = array(b, ids, GOING, sizeof(*ids));
    for (int i = 0; i < T; i++)
        ids[i] = i * 7919 % V;
    b->share = array(b, share, SHARE, sizeof(*share));
    b->ids = array(b, ids, T, sizeof(*ids));
    b->freq = array(b, freq, D, sizeof(*freq));
    b->one = array(b, &one, 1, sizeof(one));
    b->decay = array(b, NULL, 2 * T * A, sizeof(*b->decay));
    b->offset = array(b, NULL, E + 1, sizeof(*b->offset));
    b->row = array(b, NULL, ROWS, sizeof(*b->row));
    b->source = array(b, NULL, ROWS, sizeof(*b->source));
    b->expert = array(b, NULL, ROWS, sizeof(*b->expert));
    b->prob = array(b, NULL, ROWS, sizeof(*b->prob));
    b->dprob = array(b, NULL, ROWS, sizeof(*b->dprob));
    b->stats = array(b, NULL, N, sizeof(*b->stats));
    b->sum = array(b, NULL, 1, sizeof(*b->sum));
    b->found = array(b, NULL, 1, sizeof(*b->found));
    b->logits = array(b, NULL, (size_t)GOING * V, sizeof(*b->logits));
    b->largest = array(b, NULL, GOING, sizeof(*b->largest));
    b->token_stats = array(b, NULL, 2 * GOING, sizeof(*b->token_stats));
    b->draws = array(b, NULL, 2 * GOING, sizeof(*b->draws));
    b->tokens = array(b, NULL, GOING, sizeof(*b->tokens));
    must(b->k->elementwise->random(b->s, D9D_F32, b->logits, D9D_INIT_NORMAL, 3.0f,
                                   (d9d_rng){1, BUFFERS}, 1, &(int64_t){(int64_t)GOING * V}, &zero,
                                   &(int64_t){(int64_t)GOING * V}));
    must(b->k->elementwise->fill(b->s, D9D_F32, b->stats, N, 8.0f));
    must(router(b));
    must(route(b));
}

static void release(bench *b)
{
    const struct {
        void *p;
        uint64_t bytes;
    } parts[] = {
        {b->ids, T * 4},
        {b->freq, D * 4},
        {b->one, 4},
        {b->decay, 2 * T * A * 4},
        {b->offset, E * 4 + 4},
        {b->row, ROWS * 4},
        {b->source, ROWS * 4},
        {b->expert, ROWS * 4},
        {b->prob, ROWS * 4},
        {b->dprob, ROWS * 4},
        {b->stats, (uint64_t)N * 4},
        {b->sum, 8},
        {b->found, 8},
        {b->segment, DOCUMENTS * sizeof(*b->segment)},
        {b->going, GOING * sizeof(*b->going)},
        {b->going_at, GOING * sizeof(*b->going_at)},
        {b->share, SHARE * sizeof(*b->share)},
        {b->logits, (uint64_t)GOING * V * 4},
        {b->largest, GOING * 4},
        {b->token_stats, GOING * 16},
        {b->draws, GOING * 16},
        {b->tokens, GOING * 4},
    };

    for (int i = 0; i < BUFFERS; i++)
        d9d_device_free(b->dev, b->p[i], (uint64_t)N * 16);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        d9d_device_free(b->dev, parts[i].p, parts[i].bytes);
}

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '=' ? strcmp(name, argv[i] + 1) == 0 : strstr(name, argv[i]) != NULL)
            return true;
    return argc == 1;
}

int main(int argc, char **argv)
{
    static const struct line ceiling = {"gemm", gemm_y, 2.0 * T * I * H, 0, 0};
    bench b[2] = {{.t = D9D_F32}, {.t = D9D_BF16}};
    double gflops[2], bandwidth;
    d9d_device *dev;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    must(d9d_device_open(unit_device_name(), &dev));
    for (int i = 0; i < 2; i++) {
        b[i].dev = dev;
        b[i].k = dev->kernels;
        b[i].s = dev->stream;
        setup(&b[i]);
    }
    for (int i = 0; i < 2; i++)
        gflops[i] = ceiling.flop / best_seconds(&b[i], &ceiling) * 1e-9;
    if (unit_device_is_cpu()) /* whose bfloat16 is float32 inside */
        gflops[1] = gflops[0];
    bandwidth = 8.0 * N / best_seconds(&b[0], &lines[0]) * 1e-9;
    printf("%s, %d threads, gemm %.1f and %.1f GFLOP/s, copy %.1f GB/s\n", dev->name,
           omp_get_max_threads(), gflops[0], gflops[1], bandwidth);
    printf("%-40s%12s%22s%12s%22s\n", "", "float32 us", "of the ceiling", "bfloat16 us",
           "of the ceiling");
    for (size_t l = 0; l < sizeof(lines) / sizeof(*lines); l++) {
        if (!wanted(lines[l].name, argc, argv))
            continue;
        printf("%-40s", lines[l].name);
        for (int i = 0; i < 2; i++) {
            double s = best_seconds(&b[i], &lines[l]);
            double bytes = lines[l].elements * (double)d9d_dtype_size(b[i].t) + 4 * lines[l].floats;
            double rate = (lines[l].flop > 0 ? lines[l].flop : bytes) / s * 1e-9;

            printf("%12.0f%10.1f %s%5.0f %%", s * 1e6, rate, lines[l].flop > 0 ? "GF/s" : "GB/s",
                   100.0 * rate / (lines[l].flop > 0 ? gflops[i] : bandwidth));
        }
        printf("\n");
    }
    release(&b[0]);
    release(&b[1]);
    d9d_device_close(dev);
    return 0;
}
