/* gated_delta_bwd.c - the gated delta rule by chunks, backward: a document's last chunk first.
 *
 * With X the state before a chunk and dX' the gradient of the state after it, K* = e^(b_C - b) K:
 *
 *     dU = P' dO + K* dX'                 Y = dU - A' Y, solved from the last token on
 *     F = G (dO U'), j <= i               H = -G (Y U'), j < i
 *     N = H K - e^b Y X'                  r_i = k_i N_i
 *     dV = beta Y                         dbeta_i = y_i v_i + r_i
 *     dQ = e^b dO X' + F K
 *     dK = beta N + F' Q + (beta H)' K + e^(b_C - b) U dX''
 *     E_ij = (dO U')_ij P_ij - (Y U')_ij A_ij
 *     db_i = sum_j (E_ij - E_ji) + e^b (q_i X do_i - beta_i k_i X y_i) - w_i, w_i = (K*)_i dX' u_i,
 *            and of the last token also the sum of w and e^(b_C) <X, dX'>
 *     dX = e^(b_C) dX' + (e^b Q)' dO - (e^b K)' beta Y
 *
 * dg is the suffix sum of db within the chunk, in which most terms cancel. Sums are double, and
 * both places of each E and w add the same number, so that they cancel exactly. One thread has a
 * key head and the value heads that read it, so that their gradients are added in one order.
 */
#include "cpu/gated_delta.h"
#include "cpu/math.h"

/* Scratch of a thread, in addition to d9di_gated_delta_work. */
typedef struct gated_delta_bwd_scratch {
    void *dq, *dk, *dv, *db;
    float *dg;
    float *dstate;                    /* [A/K, D, F] */
    float *sum_q, *sum_k;             /* [C, D]: sums over the heads so far */
    float *one_q, *one_k, *n;         /* [C, D] of one value head */
    float *dout, *y;                  /* [C, F] */
    float *f, *h;                     /* [C, C] */
    float *zero;                      /* [D, F] */
    double b[D9DI_GATED_DELTA_CHUNK]; /* db */
    double last;                      /* added to db of the last token */
} gated_delta_bwd_scratch;

enum { N_ARRAYS = 11 };

static void scratch_sizes(const d9d_gated_delta_dims *n, int64_t size[N_ARRAYS])
{
    const int64_t c = D9DI_GATED_DELTA_CHUNK, cd = c * n->d, cf = c * n->f, cc = c * c,
                  df = n->d * n->f;
    const int64_t all[N_ARRAYS] = {n->a / n->k * df, cd, cd, cd, cd, cd, cf, cf, cc, cc, df};

    memcpy(size, all, sizeof(all));
}

static int64_t scratch_floats(const d9d_gated_delta_dims *n)
{
    int64_t size[N_ARRAYS], all = d9di_gated_delta_work_floats(n);

    scratch_sizes(n, size);
    for (int i = 0; i < N_ARRAYS; i++)
        all += size[i];
    return all;
}

static void scratch_init(gated_delta_bwd_scratch *g, d9di_gated_delta_work *w,
                         const d9d_gated_delta_dims *n, float *p)
{
    float **part[N_ARRAYS] = {&g->dstate, &g->sum_q, &g->sum_k, &g->one_q, &g->one_k, &g->n,
                              &g->dout,   &g->y,     &g->f,     &g->h,     &g->zero};
    int64_t size[N_ARRAYS];

    scratch_sizes(n, size);
    for (int i = 0; i < N_ARRAYS; i++) {
        *part[i] = p;
        p += size[i];
    }
    d9di_gated_delta_work_init(w, n, p);
}

/* Adds to db what pairs of tokens contribute, from dO U' and -Y U' in f and h. */
static void dgate_add_pairs(const d9di_gated_delta_chunk *x, gated_delta_bwd_scratch *g,
                            const d9di_gated_delta_work *w)
{
    memset(g->b, 0, sizeof(g->b));
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t j = 0; j < i; j++) {
            const int64_t at = i * x->n + j;
            const double e = (double)(g->f[at] * w->p[at] + g->h[at] * w->a[at]);

            g->b[i] += e;
            g->b[j] -= e;
        }
}

/* Adds to db what rows of arrays contribute: b_i += sign by_i x_i y_i. */
static double dgate_add_rows(gated_delta_bwd_scratch *g, const float *by, const float *x,
                             const float *y, double sign, int64_t n, int64_t d)
{
    double all = 0.0;

    for (int64_t i = 0; i < n; i++) {
        const double e = sign * (double)d9di_cpu_row_dot(x + i * d, y + i * d, d) *
                         (by != NULL ? (double)by[i] : 1.0);

        g->b[i] += e;
        all += e;
    }
    return all;
}

/* Computes Y [C, F], F and H [C, C], and their terms of db. */
static void solve_dvalues(const d9di_gated_delta_chunk *x, const float *dstate, int64_t d,
                          int64_t f, gated_delta_bwd_scratch *g, d9di_gated_delta_work *w)
{
    const int64_t m = x->n;

    d9di_gated_delta_scale_rows(w->kd, w->decay_to_end, w->k, m, d);
    d9di_gated_delta_gemm(true, false, m, f, m, 1.0f, w->p, g->dout, 0.0f, g->y, w->gemm_scratch);
    d9di_gated_delta_gemm(false, false, m, f, d, 1.0f, w->kd, dstate, 1.0f, g->y, w->gemm_scratch);
    for (int64_t i = m - 1; i >= 0; i--)
        for (int64_t j = i + 1; j < m; j++)
            d9di_cpu_row_axpy(g->y + i * f, -w->a[j * m + i], g->y + j * f, f);
    d9di_gated_delta_gemm(false, true, m, m, f, 1.0f, g->dout, w->u, 0.0f, g->f, w->gemm_scratch);
    d9di_gated_delta_gemm(false, true, m, m, f, -1.0f, g->y, w->u, 0.0f, g->h, w->gemm_scratch);
    dgate_add_pairs(x, g, w);
    d9di_gated_delta_mask_lower(g->f, w->decay, m, true);
    d9di_gated_delta_mask_lower(g->h, w->decay, m, false);
}

/* Computes dQ, N and dK [C, D] of one value head, and their terms of db. */
static void dqk_head(const d9di_gated_delta_chunk *x, const float *state, const float *dstate,
                     int64_t d, int64_t f, gated_delta_bwd_scratch *g, d9di_gated_delta_work *w)
{
    const int64_t m = x->n;

    d9di_gated_delta_scale_rows(w->cf, w->decay_from_start, g->dout, m, f);
    d9di_gated_delta_gemm(false, true, m, d, f, 1.0f, w->cf, state, 0.0f, g->one_q,
                          w->gemm_scratch);
    (void)dgate_add_rows(g, NULL, w->q, g->one_q, 1.0, m, d);
    d9di_gated_delta_gemm(false, false, m, d, m, 1.0f, g->f, w->k, 1.0f, g->one_q, w->gemm_scratch);
    d9di_gated_delta_scale_rows(w->cf, w->decay_from_start, g->y, m, f);
    d9di_gated_delta_gemm(false, true, m, d, f, -1.0f, w->cf, state, 0.0f, g->n, w->gemm_scratch);
    (void)dgate_add_rows(g, w->beta, w->k, g->n, 1.0, m, d);
    d9di_gated_delta_gemm(false, false, m, d, m, 1.0f, g->h, w->k, 1.0f, g->n, w->gemm_scratch);
    d9di_gated_delta_scale_rows(w->cf, w->decay_to_end, w->u, m, f);
    d9di_gated_delta_gemm(false, true, m, d, f, 1.0f, w->cf, dstate, 0.0f, g->one_k,
                          w->gemm_scratch);
    g->last = (double)(w->decay_last * d9di_cpu_row_dot(state, dstate, d * f)) -
              dgate_add_rows(g, NULL, w->k, g->one_k, -1.0, m, d);
    d9di_gated_delta_gemm(true, false, m, d, m, 1.0f, g->f, w->q, 1.0f, g->one_k, w->gemm_scratch);
    d9di_gated_delta_scale_rows(w->kd, w->beta, w->k, m, d);
    for (int64_t i = 0; i < m; i++)
        d9di_cpu_row_axpy(g->one_k + i * d, w->beta[i], g->n + i * d, d);
    d9di_gated_delta_scale_rows(g->h, w->beta, g->h, m, m);
    d9di_gated_delta_gemm(true, false, m, d, m, 1.0f, g->h, w->k, 1.0f, g->one_k, w->gemm_scratch);
}

/* Writes the gradients of v, b and g. */
static void store_dv_db_dg(const d9di_gated_delta_args *c, const d9di_gated_delta_chunk *x,
                           gated_delta_bwd_scratch *g, d9di_gated_delta_work *w)
{
    const d9d_gated_delta_dims *n = c->n;
    const int64_t d = n->d, f = n->f;
    double sum = g->last;

    for (int64_t i = x->n - 1; i >= 0; i--) {
        const int64_t at = (x->first + i) * n->a + x->h;
        const float r = d9di_cpu_row_dot(w->k + i * d, g->n + i * d, d), beta = w->beta[i];
        const float dsigmoid = beta * (1.0f - beta);
        const float db = (d9di_cpu_row_dot(g->y + i * f, w->v + i * f, f) + r) * dsigmoid;

        sum += g->b[i];
        g->dg[at] = (float)sum;
        d9di_cpu_store(n->t, g->db, at, 1, &db);
        d9di_cpu_row_scale(w->cf, beta, g->y + i * f, f);
        d9di_cpu_store(n->t, g->dv, at * f, f, w->cf);
    }
}

/* Replaces the gradient of the state after the chunk by that of the state before it. */
static void dstate_update(const d9di_gated_delta_chunk *x, float *dstate, int64_t d, int64_t f,
                          gated_delta_bwd_scratch *g, d9di_gated_delta_work *w)
{
    const int64_t m = x->n;

    d9di_gated_delta_scale_rows(w->kd, w->decay_from_start, w->q, m, d);
    d9di_gated_delta_gemm(true, false, d, f, m, 1.0f, w->kd, g->dout, w->decay_last, dstate,
                          w->gemm_scratch);
    d9di_gated_delta_scale_rows(w->kd, w->decay_from_start, w->k, m, d);
    d9di_gated_delta_scale_rows(w->cf, w->beta, g->y, m, f);
    d9di_gated_delta_gemm(true, false, d, f, m, -1.0f, w->kd, w->cf, 1.0f, dstate, w->gemm_scratch);
}

static void head_bwd(const d9di_gated_delta_args *c, const d9di_gated_delta_chunk *x, float *dstate,
                     gated_delta_bwd_scratch *g, d9di_gated_delta_work *w)
{
    const d9d_gated_delta_dims *n = c->n;
    const int64_t d = n->d, f = n->f;
    const float *state =
        x->fresh ? g->zero : c->states + d9di_gated_delta_state_index(n, x->first, x->h);

    d9di_gated_delta_solve_chunk(c, x, state, w);
    for (int64_t i = 0; i < x->n; i++)
        d9di_cpu_load(n->t, g->dout + i * f, c->dout, ((x->first + i) * n->a + x->h) * f, f);
    solve_dvalues(x, dstate, d, f, g, w);
    dqk_head(x, state, dstate, d, f, g, w);
    store_dv_db_dg(c, x, g, w);
    dstate_update(x, dstate, d, f, g, w);
    d9di_cpu_row_axpy(g->sum_q, 1.0f, g->one_q, x->n * d);
    d9di_cpu_row_axpy(g->sum_k, 1.0f, g->one_k, x->n * d);
}

/* Backward of L2 normalisation, u = scale unit, unit = x inv: dx = scale inv (du - unit (unit du)).
 */
static void l2_normalize_bwd_row(d9d_dtype t, void *dx, int64_t at, float *du, const float *u,
                                 float scale, float inv, int64_t d)
{
    const float part = scale != 0.0f ? d9di_cpu_row_dot(u, du, d) / (scale * scale) : 0.0f;

    d9di_cpu_row_axpy(du, -part, u, d);
    d9di_cpu_row_scale(du, scale * inv, du, d);
    d9di_cpu_store(t, dx, at, d, du);
}

static void chunk_bwd(const d9di_gated_delta_args *c, d9di_gated_delta_chunk x,
                      gated_delta_bwd_scratch *g, d9di_gated_delta_work *w)
{
    const d9d_gated_delta_dims *n = c->n;
    const int64_t group = n->a / n->k, d = n->d;
    const size_t bytes = (size_t)(x.n * d) * sizeof(float);

    memset(g->sum_q, 0, bytes);
    memset(g->sum_k, 0, bytes);
    for (int64_t i = 0; i < group; i++) {
        x.h = x.kh * group + i;
        head_bwd(c, &x, g->dstate + i * d * n->f, g, w);
    }
    for (int64_t i = 0; i < x.n; i++) {
        const int64_t at = ((x.first + i) * n->k + x.kh) * d;

        l2_normalize_bwd_row(n->t, g->dq, at, g->sum_q + i * d, w->q + i * d, n->scale, w->inv_q[i],
                             d);
        l2_normalize_bwd_row(n->t, g->dk, at, g->sum_k + i * d, w->k + i * d, 1.0f, w->inv_k[i], d);
    }
}

static void document_bwd(const d9di_gated_delta_args *c, d9di_varlen_document at, int64_t kh,
                         const gated_delta_bwd_scratch *out, float *scratch)
{
    const d9d_gated_delta_dims *n = c->n;
    const size_t size = (size_t)(n->d * n->f) * sizeof(float);
    gated_delta_bwd_scratch g = *out;
    d9di_gated_delta_work w;

    scratch_init(&g, &w, n, scratch);
    memset(g.dstate, 0, size * (size_t)(n->a / n->k));
    memset(g.zero, 0, size);
    for (int64_t i = (d9di_i64_ceil_div(at.n, D9DI_GATED_DELTA_CHUNK) - 1) * D9DI_GATED_DELTA_CHUNK;
         i >= 0; i -= D9DI_GATED_DELTA_CHUNK)
        chunk_bwd(c,
                  (d9di_gated_delta_chunk){
                      at.first + i, d9di_i64_min(at.n - i, D9DI_GATED_DELTA_CHUNK), kh, 0, i == 0},
                  &g, &w);
}

d9d_status d9d_ref_gated_delta_bwd(d9d_stream s, const d9d_gated_delta_dims *n, void *dq, void *dk,
                                   void *dv, float *dg, void *db, const void *dout, const void *q,
                                   const void *k, const void *v, const float *g, const void *b,
                                   const float *states)
{
    const d9di_gated_delta_args c = {n, q, k, v, b, dout, g, states};
    const gated_delta_bwd_scratch out = {.dq = dq, .dk = dk, .dv = dv, .db = db, .dg = dg};
    int64_t floats;
    float *scratch;

    (void)s;
    D9D_TRY(d9di_gated_delta_check("gated_delta_bwd", n));
    if (n->k == 0)
        return D9D_OK;
    floats = scratch_floats(n);
    if ((scratch = d9di_cpu_scratch_alloc_threads("gated_delta_bwd", floats)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (n->docs.b * n->docs.s * n->a * n->d >               \
                                               D9DI_MIN_PARALLEL / 16)
    for (int64_t i = 0; i < d9di_varlen_n_documents(&n->docs) * n->k; i++)
        document_bwd(&c, d9di_varlen_document_at(&n->docs, i / n->k), i % n->k, &out,
                     d9di_cpu_scratch_of_thread(scratch, floats));
    free(scratch);
    return D9D_OK;
}
