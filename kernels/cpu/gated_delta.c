/* gated_delta.c - the gated delta rule by chunks, forward; see gated_delta.h. */
#include "cpu/gated_delta.h"
#include "cpu/math.h"

d9d_status d9di_gated_delta_check(const char *op, const d9d_gated_delta_dims *n)
{
    D9D_TRY(d9di_args_check_float(op, n->t));
    if (n->k == 0 ? n->a != 0 : n->a % n->k != 0)
        return D9D_FAIL(D9D_EINVAL, "%s: %lld value heads are not a multiple of %lld key heads", op,
                        (long long)n->a, (long long)n->k);
    return d9di_varlen_check(op, &n->docs);
}

/* --- a thread's arrays -------------------------------------------------------------------- */

enum { N_ARRAYS = 14 };

/* Sizes in the order of d9di_gated_delta_work_init(). */
static void work_sizes(const d9d_gated_delta_dims *n, int64_t size[N_ARRAYS])
{
    const int64_t c = D9DI_GATED_DELTA_CHUNK, cd = c * n->d, cf = c * n->f, cc = c * c;
    const int64_t all[N_ARRAYS] = {cd, cd, c, c, cf, cf, c, c, c, cc, cc, cc, cd, cf};

    memcpy(size, all, sizeof(all));
}

static int64_t gemm_scratch_floats(const d9d_gated_delta_dims *n)
{
    const int64_t c = D9DI_GATED_DELTA_CHUNK, max_side = d9di_i64_max(d9di_i64_max(n->d, n->f), c);

    return d9di_i64_max(d9di_sgemm_scratch(max_side, max_side, c),
                        d9di_sgemm_scratch(c, max_side, max_side));
}

int64_t d9di_gated_delta_work_floats(const d9d_gated_delta_dims *n)
{
    int64_t size[N_ARRAYS], all = gemm_scratch_floats(n);

    work_sizes(n, size);
    for (int i = 0; i < N_ARRAYS; i++)
        all += size[i];
    return all;
}

void d9di_gated_delta_work_init(d9di_gated_delta_work *w, const d9d_gated_delta_dims *n, float *p)
{
    float **part[N_ARRAYS] = {&w->q,
                              &w->k,
                              &w->inv_q,
                              &w->inv_k,
                              &w->v,
                              &w->u,
                              &w->beta,
                              &w->decay_from_start,
                              &w->decay_to_end,
                              &w->decay,
                              &w->a,
                              &w->p,
                              &w->kd,
                              &w->cf};
    int64_t size[N_ARRAYS];

    work_sizes(n, size);
    for (int i = 0; i < N_ARRAYS; i++) {
        *part[i] = p;
        p += size[i];
    }
    w->gemm_scratch = p;
}

/* --- a chunk ---------------------------------------------------------------------------------- */

/* Loads rows of head `h` of x [B, S, heads, width]. */
static void chunk_load_rows(d9d_dtype t, float *y, const void *x, const d9di_gated_delta_chunk *at,
                            int64_t heads, int64_t h, int64_t width)
{
    for (int64_t i = 0; i < at->n; i++)
        d9di_cpu_load(t, y + i * width, x, ((at->first + i) * heads + h) * width, width);
}

/* Normalises rows to the length `scale`; inv receives the inverse lengths. */
static void rows_l2_normalize(float *x, float *inv, float scale, int64_t c, int64_t d)
{
    for (int64_t i = 0; i < c; i++) {
        inv[i] = 1.0f / sqrtf(d9di_cpu_row_dot(x + i * d, x + i * d, d) + D9DI_QK_NORM_EPS);
        d9di_cpu_row_scale(x + i * d, inv[i] * scale, x + i * d, d);
    }
}

/* Sums in double: small differences of large sums matter. */
static void chunk_decays(const float *g, int64_t step, int64_t c, d9di_gated_delta_work *w)
{
    double b[D9DI_GATED_DELTA_CHUNK], sum = 0.0;

    for (int64_t i = 0; i < c; i++)
        b[i] = sum += (double)g[i * step];
    for (int64_t i = 0; i < c; i++) {
        w->decay_from_start[i] = d9di_cpu_expf((float)b[i]);
        w->decay_to_end[i] = d9di_cpu_expf((float)(sum - b[i]));
        for (int64_t j = 0; j < c; j++)
            w->decay[i * c + j] = j <= i ? d9di_cpu_expf((float)(b[i] - b[j])) : 0.0f;
    }
    w->decay_last = d9di_cpu_expf((float)sum);
}

static void chunk_load(const d9di_gated_delta_args *c, const d9di_gated_delta_chunk *x,
                       d9di_gated_delta_work *w)
{
    const d9d_gated_delta_dims *n = c->n;

    chunk_load_rows(n->t, w->q, c->q, x, n->k, x->kh, n->d);
    chunk_load_rows(n->t, w->k, c->k, x, n->k, x->kh, n->d);
    chunk_load_rows(n->t, w->v, c->v, x, n->a, x->h, n->f);
    chunk_load_rows(n->t, w->beta, c->b, x, n->a, x->h, 1);
    rows_l2_normalize(w->q, w->inv_q, n->scale, x->n, n->d);
    rows_l2_normalize(w->k, w->inv_k, 1.0f, x->n, n->d);
    for (int64_t i = 0; i < x->n; i++)
        w->beta[i] = d9di_cpu_sigmoid(w->beta[i]);
    chunk_decays(c->g + x->first * n->a + x->h, n->a, x->n, w);
}

void d9di_gated_delta_solve_chunk(const d9di_gated_delta_args *c, const d9di_gated_delta_chunk *x,
                                  const float *state, d9di_gated_delta_work *w)
{
    const int64_t m = x->n, d = c->n->d, f = c->n->f;

    chunk_load(c, x, w);
    d9di_gated_delta_gemm(false, true, m, m, d, 1.0f, w->k, w->k, 0.0f, w->a, w->gemm_scratch);
    d9di_gated_delta_mask_lower(w->a, w->decay, m, false);
    d9di_gated_delta_scale_rows(w->a, w->beta, w->a, m, m);
    d9di_gated_delta_gemm(false, true, m, m, d, 1.0f, w->q, w->k, 0.0f, w->p, w->gemm_scratch);
    d9di_gated_delta_mask_lower(w->p, w->decay, m, true);
    memcpy(w->u, w->v, (size_t)(m * f) * sizeof(float));
    if (!x->fresh) {
        d9di_gated_delta_scale_rows(w->kd, w->decay_from_start, w->k, m, d);
        d9di_gated_delta_gemm(false, false, m, f, d, -1.0f, w->kd, state, 1.0f, w->u,
                              w->gemm_scratch);
    }
    d9di_gated_delta_scale_rows(w->u, w->beta, w->u, m, f);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < i; j++)
            d9di_cpu_row_axpy(w->u + i * f, -w->a[i * m + j], w->u + j * f, f);
}

/* --- forward ------------------------------------------------------------------------------- */

/* Output of a chunk; then the state is advanced past it. */
static void chunk_output(const d9di_gated_delta_args *c, const d9di_gated_delta_chunk *x, void *o,
                         float *state, d9di_gated_delta_work *w)
{
    const d9d_gated_delta_dims *n = c->n;
    const int64_t m = x->n, d = n->d, f = n->f;

    d9di_gated_delta_scale_rows(w->kd, w->decay_from_start, w->q, m, d);
    d9di_gated_delta_gemm(false, false, m, f, d, 1.0f, w->kd, state, 0.0f, w->cf, w->gemm_scratch);
    d9di_gated_delta_gemm(false, false, m, f, m, 1.0f, w->p, w->u, 1.0f, w->cf, w->gemm_scratch);
    for (int64_t i = 0; i < m; i++)
        d9di_cpu_store(n->t, o, ((x->first + i) * n->a + x->h) * f, f, w->cf + i * f);
    d9di_gated_delta_scale_rows(w->kd, w->decay_to_end, w->k, m, d);
    d9di_gated_delta_gemm(true, false, d, f, m, 1.0f, w->kd, w->u, w->decay_last, state,
                          w->gemm_scratch);
}

static void document_forward(const d9di_gated_delta_args *c, d9di_varlen_document at, int64_t h,
                             void *o, float *states, float *workspace)
{
    const d9d_gated_delta_dims *n = c->n;
    const int64_t size = n->d * n->f;
    float *state = workspace;
    d9di_gated_delta_work w;

    d9di_gated_delta_work_init(&w, n, workspace + size);
    memset(state, 0, (size_t)size * sizeof(*state));
    for (int64_t i = 0; i < at.n; i += D9DI_GATED_DELTA_CHUNK) {
        const d9di_gated_delta_chunk x = {at.first + i,
                                          d9di_i64_min(at.n - i, D9DI_GATED_DELTA_CHUNK),
                                          h / (n->a / n->k), h, i == 0};

        if (i > 0)
            memcpy(states + d9di_gated_delta_state_index(n, x.first, h), state,
                   (size_t)size * sizeof(*state));
        d9di_gated_delta_solve_chunk(c, &x, state, &w);
        chunk_output(c, &x, o, state, &w);
    }
}

d9d_status d9d_ref_gated_delta(d9d_stream s, const d9d_gated_delta_dims *n, void *o, float *states,
                               const void *q, const void *k, const void *v, const float *g,
                               const void *b)
{
    const d9di_gated_delta_args c = {.n = n, .q = q, .k = k, .v = v, .g = g, .b = b};
    const int64_t floats = n->d * n->f + d9di_gated_delta_work_floats(n);
    float *workspace;

    (void)s;
    D9D_TRY(d9di_gated_delta_check("gated_delta", n));
    if ((workspace = d9di_cpu_scratch_alloc_threads("gated_delta", floats)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (n->docs.b * n->docs.s * n->a * n->d >               \
                                               D9DI_MIN_PARALLEL / 16)
    for (int64_t i = 0; i < d9di_varlen_n_documents(&n->docs) * n->a; i++)
        document_forward(&c, d9di_varlen_document_at(&n->docs, i / n->a), i % n->a, o, states,
                         d9di_cpu_scratch_of_thread(workspace, floats));
    free(workspace);
    return D9D_OK;
}
