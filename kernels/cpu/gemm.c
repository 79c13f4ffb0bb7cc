/* gemm.c - GEMM: tiles over the threads.
 *
 * A GEMM is divided, by its sizes only, into tiles of C. Each tile is one call of d9di_sgemm() over
 * the whole of K, and the tiles of all GEMMs of a call are distributed over the threads. bfloat16
 * panels are converted to float32, K_PANEL columns at a time, and C is rounded once.
 */
#include "cpu/sgemm.h"

#include <limits.h>

enum {
    TILE_MAX = 512, /* most rows and columns of a tile */
    K_PANEL = 512,  /* depth of a converted panel */
    PANEL_FLOATS = TILE_MAX * TILE_MAX + 2 * TILE_MAX * K_PANEL
};
static const double MIN_PARALLEL_WORK = 1e6; /* fewer multiply-adds are not worth a second thread */
static const double MIN_TILE_WORK = 2e6;     /* nor a tile of fewer */

/* Large tiles are faster each; many tiles keep many threads busy. While there are fewer than
 * `tiles`, their sides are halved down to `side`. */
static const struct {
    int64_t tiles, side;
} tile_targets[] = {{4, 64}, {16, 192}};

static bool needs_convert(const d9di_gemm_desc *g)
{
    return g->at != D9D_F32 || g->bt != D9D_F32 || g->ct != D9D_F32;
}

/* How one GEMM is divided. */
typedef struct gemm_tiling {
    int64_t rows, cols;         /* of a tile */
    int64_t n_cols, first_tile; /* tiles per row of tiles; number of the first tile */
} gemm_tiling;

static bool tile_is_too_large(const d9di_gemm_job *j, int64_t rows, int64_t cols)
{
    int64_t tiles = d9di_i64_ceil_div(j->m, rows) * d9di_i64_ceil_div(j->n, cols);

    if ((double)rows * (double)cols * (double)j->k < 2 * MIN_TILE_WORK)
        return false;
    for (size_t i = 0; i < sizeof(tile_targets) / sizeof(*tile_targets); i++)
        if (tiles < tile_targets[i].tiles && d9di_i64_max(rows, cols) >= 2 * tile_targets[i].side)
            return true;
    return false;
}

static gemm_tiling tiling_make(const d9di_gemm_job *j)
{
    int64_t rows = d9di_i64_min(TILE_MAX, j->m), cols = d9di_i64_min(TILE_MAX, j->n);
    gemm_tiling t = {0};

    if (j->m == 0 || j->n == 0)
        return t;
    while (tile_is_too_large(j, rows, cols))
        *(rows >= cols ? &rows : &cols) /= 2;
    /* Equal tiles, in multiples of the widest microkernel. */
    t.rows = d9di_i64_round_up(d9di_i64_ceil_div(j->m, d9di_i64_ceil_div(j->m, rows)), 16);
    t.cols = d9di_i64_round_up(d9di_i64_ceil_div(j->n, d9di_i64_ceil_div(j->n, cols)), 16);
    t.n_cols = d9di_i64_ceil_div(j->n, t.cols);
    return t;
}

static int64_t tiling_count(const gemm_tiling *t, const d9di_gemm_job *j)
{
    return j->m == 0 || j->n == 0 ? 0 : d9di_i64_ceil_div(j->m, t->rows) * t->n_cols;
}

/* Converts rows x cols at (r, c) of a matrix with row length ld to dense float32. */
static void panel_load(d9d_dtype t, float *y, const void *x, int64_t ld, int64_t r, int64_t c,
                       int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        d9di_cpu_load(t, y + i * cols, x, (r + i) * ld + c, cols);
}

/* sum = beta sum + A B of a tile if some type is not float32, in panels of K. */
static void gemm_panels(const d9di_gemm_desc *g, const d9di_gemm_job *j, const void *a,
                        const void *b, int64_t r, int64_t c, int64_t rows, int64_t cols, float beta,
                        float *sum)
{
    float *pa = sum + rows * cols, *pb = pa + rows * K_PANEL, *workspace = sum + PANEL_FLOATS;

    for (int64_t k = 0; k < j->k; k += K_PANEL, beta = 1.0f) {
        const int64_t depth = d9di_i64_min(j->k - k, K_PANEL);
        int64_t made = 0, left;

        if (g->trans_a)
            panel_load(g->at, pa, a, j->m, k, r, depth, rows);
        else
            panel_load(g->at, pa, a, j->k, r, k, rows, depth);
        if (!g->trans_a)
            made =
                d9di_sgemm_skinny(g->bt, g->trans_b, rows, cols, depth, g->alpha, pa, depth,
                                  d9di_elem_cat(g->bt, b, g->trans_b ? c * j->k + k : k * j->n + c),
                                  g->trans_b ? j->k : j->n, beta, sum, cols);
        if ((left = cols - made) == 0)
            continue;
        if (g->trans_b)
            panel_load(g->bt, pb, b, j->k, c + made, k, left, depth);
        else
            panel_load(g->bt, pb, b, j->n, k, c + made, depth, left);
        d9di_sgemm(g->trans_a, g->trans_b, rows, left, depth, g->alpha, pa,
                   g->trans_a ? rows : depth, pb, g->trans_b ? depth : left, beta, sum + made, cols,
                   workspace);
    }
}

/* y += the bias of columns c .. c + n - 1 of a tile */
static void bias_add(const d9di_gemm_desc *g, const d9di_gemm_job *j, int64_t c, int64_t n,
                     float *y)
{
    float buf[TILE_MAX];

    if (j->bias != NULL)
        d9di_cpu_row_axpy(y, 1.0f, d9di_cpu_read(g->ct, j->bias, c, n, buf), n);
}

/* The sum is in float32 scratch. */
static void tile_run_convert(const d9di_gemm_desc *g, const d9di_gemm_job *j, int64_t r, int64_t c,
                             int64_t rows, int64_t cols, float *sum)
{
    if (j->k == 0)
        memset(sum, 0, (size_t)(rows * cols) * sizeof(float));
    gemm_panels(g, j, j->a, j->b, r, c, rows, cols, 0.0f, sum);
    if (j->a2 != NULL)
        gemm_panels(g, j, j->a2, j->b2, r, c, rows, cols, 1.0f, sum);
    for (int64_t i = 0; i < rows; i++) {
        bias_add(g, j, c, cols, sum + i * cols);
        d9di_cpu_store_add(g->ct, j->c, (r + i) * j->n + c, cols, g->beta, sum + i * cols);
    }
}

static void tile_run_f32(const d9di_gemm_desc *g, const d9di_gemm_job *j, int64_t r, int64_t c,
                         int64_t rows, int64_t cols, float *workspace)
{
    const struct {
        const void *a, *b;
        float beta;
    } sums[] = {{j->a, j->b, g->beta}, {j->a2, j->b2, 1.0f}};
    float *y = (float *)j->c + r * j->n + c;

    for (int i = 0; i < 2 && sums[i].a != NULL && j->k > 0; i++)
        d9di_sgemm(g->trans_a, g->trans_b, rows, cols, j->k, g->alpha,
                   (const float *)sums[i].a + (g->trans_a ? r : r * j->k), g->trans_a ? j->m : j->k,
                   (const float *)sums[i].b + (g->trans_b ? c * j->k : c), g->trans_b ? j->k : j->n,
                   sums[i].beta, y, j->n, workspace);
    for (int64_t i = 0; i < rows && j->k == 0; i++)
        for (int64_t at = 0; at < cols; at++)
            y[i * j->n + at] = g->beta == 0.0f ? 0.0f : g->beta * y[i * j->n + at];
    for (int64_t i = 0; i < rows; i++)
        bias_add(g, j, c, cols, y + i * j->n);
}

static void tile_run(const d9di_gemm_desc *g, const d9di_gemm_job *j, const gemm_tiling *t,
                     int64_t tile, float *scratch)
{
    int64_t r = tile / t->n_cols * t->rows, c = tile % t->n_cols * t->cols;
    int64_t rows = d9di_i64_min(j->m - r, t->rows), cols = d9di_i64_min(j->n - c, t->cols);

    if (needs_convert(g))
        tile_run_convert(g, j, r, c, rows, cols, scratch);
    else
        tile_run_f32(g, j, r, c, rows, cols, scratch);
}

/* The last job whose first tile is not after `tile`. Empty jobs share a first tile with their
 * successor and are skipped. */
static int64_t tile_job_index(const gemm_tiling *cuts, int64_t n, int64_t tile)
{
    int64_t lo = 0, hi = n - 1;

    while (lo < hi) {
        int64_t mid = (lo + hi + 1) / 2;

        if (cuts[mid].first_tile <= tile)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* Scratch of a thread for the largest tile. */
static int64_t scratch_floats(const d9di_gemm_desc *g, const d9di_gemm_job *jobs,
                              const gemm_tiling *cuts, int64_t n_jobs)
{
    int64_t max_floats = 0;

    for (int64_t i = 0; i < n_jobs; i++)
        max_floats =
            d9di_i64_max(max_floats, d9di_sgemm_scratch(cuts[i].rows, cuts[i].cols, jobs[i].k));
    return max_floats + (needs_convert(g) ? PANEL_FLOATS : 0);
}

static d9d_status tiles_run(const char *op, const d9di_gemm_desc *g, const d9di_gemm_job *jobs,
                            const gemm_tiling *cuts, int64_t n_jobs, int64_t n_tiles, bool parallel)
{
    const int64_t floats = scratch_floats(g, jobs, cuts, n_jobs);
    float *scratch = d9di_cpu_scratch_alloc_threads(op, floats);

    if (scratch == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (parallel)
    for (int64_t i = 0; i < n_tiles; i++) {
        int64_t j = tile_job_index(cuts, n_jobs, i);

        tile_run(g, &jobs[j], &cuts[j], i - cuts[j].first_tile,
                 d9di_cpu_scratch_of_thread(scratch, floats));
    }
    free(scratch);
    return D9D_OK;
}

d9d_status d9di_gemm_run(const char *op, const d9di_gemm_desc *desc, const d9di_gemm_job *jobs,
                         int64_t n_jobs)
{
    d9d_status st;
    gemm_tiling one, *cuts = &one;
    int64_t n_tiles = 0;
    double work = 0.0;

    D9D_TRY(d9di_args_check_float(op, desc->at));
    D9D_TRY(d9di_args_check_float(op, desc->bt));
    D9D_TRY(d9di_args_check_float(op, desc->ct));
    if (n_jobs > 1 && (cuts = malloc((size_t)n_jobs * sizeof(*cuts))) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the tiles of %lld GEMMs", op,
                        (long long)n_jobs);
    for (int64_t i = 0; i < n_jobs; i++) {
        const d9di_gemm_job *j = &jobs[i];

        if (j->m > INT_MAX || j->n > INT_MAX || j->k > INT_MAX) {
            st = D9D_FAIL(D9D_EINVAL, "%s: a GEMM of %lld x %lld x %lld has a dimension over %d",
                          op, (long long)j->m, (long long)j->n, (long long)j->k, INT_MAX);
            goto out;
        }
        cuts[i] = tiling_make(j);
        cuts[i].first_tile = n_tiles;
        n_tiles += tiling_count(&cuts[i], j);
        work += (double)j->m * (double)j->n * (double)j->k;
    }
    st = tiles_run(op, desc, jobs, cuts, n_jobs, n_tiles, n_tiles > 1 && work > MIN_PARALLEL_WORK);
out:
    if (cuts != &one)
        free(cuts);
    return st;
}

d9d_status d9d_ref_gemm(d9d_stream s, const d9d_gemm *g, const void *a, const void *b, void *c)
{
    const d9d_gemm_batched one = {.gemm = *g, .count = 1, .alpha = 1.0f};

    return d9d_ref_gemm_batched(s, &one, a, b, c);
}

d9d_status d9d_ref_gemm_batched(d9d_stream s, const d9d_gemm_batched *n, const void *a,
                                const void *b, void *c)
{
    const d9d_gemm *g = &n->gemm;
    const d9di_gemm_desc desc = {.at = g->t,
                                 .bt = g->t,
                                 .ct = g->ct,
                                 .trans_a = g->trans_a,
                                 .trans_b = g->trans_b,
                                 .alpha = n->alpha,
                                 .beta = g->beta};
    d9di_gemm_job one, *jobs = &one;
    d9d_status st;

    (void)s;
    if (n->count > 1 && (jobs = malloc((size_t)n->count * sizeof(*jobs))) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "gemm: no memory for %lld products", (long long)n->count);
    for (int64_t i = 0; i < n->count; i++)
        jobs[i] = (d9di_gemm_job){.a = d9di_elem_cat(g->t, a, i * g->m * g->k),
                                  .b = d9di_elem_cat(g->t, b, i * g->k * g->n),
                                  .c = d9di_elem_at(g->ct, c, i * g->m * g->n),
                                  .bias = g->bias,
                                  .m = g->m,
                                  .n = g->n,
                                  .k = g->k};
    if (g->addend != NULL && g->addend != c && g->beta != 0.0f)
        memcpy(c, g->addend, (size_t)(n->count * g->m * g->n) * d9d_dtype_size(g->ct));
    st = d9di_gemm_run("gemm", &desc, jobs, n->count);
    if (jobs != &one)
        free(jobs);
    return st;
}

d9d_status d9d_ref_gemm_multi(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                              const void *const *b, void *const *c)
{
    return d9di_gemm_each(d9d_kernels_cpu(), s, n, g, a, b, c);
}
