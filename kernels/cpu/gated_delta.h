/* gated_delta.h - a chunk of the gated delta rule, for its forward and its backward.
 *
 * Within a chunk of C tokens let b_i be the sum of g up to token i, G_ij = e^(b_i - b_j), beta =
 * sigmoid(the given b), and X the state before the chunk. The tokens write
 *
 *     U = beta (V - e^b K X) - A U        A_ij = beta_i G_ij k_i k_j', j < i
 *
 * which is solved by forward substitution (WY representation; Yang et al., "Gated Delta Networks",
 * 2025), and then
 *
 *     O = e^b Q X + P U                   P_ij = G_ij q_i k_j', j <= i
 *     X <- e^(b_C) X + (e^(b_C - b) K)' U
 */
#ifndef D9DI_CPU_GATED_DELTA_H
#define D9DI_CPU_GATED_DELTA_H

#include "cpu/varlen.h"

enum { D9DI_GATED_DELTA_CHUNK = D9D_GATED_DELTA_CHUNK };
#define D9DI_QK_NORM_EPS 1e-6f /* under the root of the L2 norm */

/* Arrays of a call; the backward's are NULL in the forward. */
typedef struct d9di_gated_delta_args {
    const d9d_gated_delta_dims *n;
    const void *q, *k, *v, *b, *dout;
    const float *g, *states;
} d9di_gated_delta_args;

/* Tokens [first, first + n) of value head `h`, which reads key head `kh`. */
typedef struct d9di_gated_delta_chunk {
    int64_t first, n, kh, h;
    bool fresh; /* X is 0: the document's first chunk */
} d9di_gated_delta_chunk;

/* A thread's arrays. */
typedef struct d9di_gated_delta_work {
    float *q, *k;                                  /* [C, D], L2-normalised; q times `scale` */
    float *inv_q, *inv_k;                          /* [C]: their inverse lengths, without `scale` */
    float *v, *u;                                  /* [C, F] */
    float *beta, *decay_from_start, *decay_to_end; /* [C]: e^b_i, e^(b_C - b_i) */
    float *decay;                                  /* [C, C]: G, 0 for j > i */
    float *a;                                      /* [C, C] */
    float *p;                                      /* [C, C] */
    float *kd, *cf;                                /* scratch [C, D], [C, F] */
    float decay_last;                              /* e^(b_C) */
    float *gemm_scratch;                           /* of d9di_sgemm() */
} d9di_gated_delta_work;

int64_t d9di_gated_delta_work_floats(const d9d_gated_delta_dims *n);
/* Sets the pointers to consecutive parts of p. */
void d9di_gated_delta_work_init(d9di_gated_delta_work *w, const d9d_gated_delta_dims *n, float *p);

/* Loads the chunk, and computes U and P. */
void d9di_gated_delta_solve_chunk(const d9di_gated_delta_args *c, const d9di_gated_delta_chunk *x,
                                  const float *state, d9di_gated_delta_work *w);

/* y = beta y + alpha op(A) op(B), dense. */
static inline void d9di_gated_delta_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n,
                                         int64_t k, float alpha, const float *a, const float *b,
                                         float beta, float *y, float *workspace)
{
    d9di_sgemm(trans_a, trans_b, m, n, k, alpha, a, trans_a ? m : k, b, trans_b ? k : n, beta, y, n,
               workspace);
}

/* Row i of y [C, n] = row i of x times s[i]. */
static inline void d9di_gated_delta_scale_rows(float *y, const float *s, const float *x, int64_t c,
                                               int64_t n)
{
    for (int64_t i = 0; i < c; i++)
        d9di_cpu_row_scale(y + i * n, s[i], x + i * n, n);
}

/* Keeps the lower triangle of y, times by: i > j, or i >= j with `diagonal`; zeroes the rest. */
static inline void d9di_gated_delta_mask_lower(float *y, const float *by, int64_t c, bool diagonal)
{
    for (int64_t i = 0; i < c; i++)
        for (int64_t j = 0; j < c; j++)
            y[i * c + j] = j < i || (diagonal && j == i) ? y[i * c + j] * by[i * c + j] : 0.0f;
}

/* Index of the stored state of the chunk that begins with this token. */
static inline int64_t d9di_gated_delta_state_index(const d9d_gated_delta_dims *n, int64_t token,
                                                   int64_t h)
{
    return ((token / D9DI_GATED_DELTA_CHUNK - 1) * n->a + h) * n->d * n->f;
}

d9d_status d9di_gated_delta_check(const char *op, const d9d_gated_delta_dims *n);

#endif /* D9DI_CPU_GATED_DELTA_H */
