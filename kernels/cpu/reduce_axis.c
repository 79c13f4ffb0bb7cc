/* reduce_axis.c - sum, mean, maximum and logsumexp along an axis or over segments of rows, and
 * their gradients. See d9d_reduce_axis_dims.
 *
 * A block of columns is reduced row after row.
 */
#include "cpu/common.h"
#include "cpu/math.h"

enum { COLUMNS = 256 };

/* Rows [*first, *end) of x that row i of y is of. */
static void rows_of(const d9d_reduce_axis_dims *d, int64_t i, int64_t *first, int64_t *end)
{
    *first = d->offset == NULL ? i * d->r : d9di_i64_max(0, d9di_i64_min(d->r, d->offset[i]));
    *end = d->offset == NULL ? *first + d->r
                             : d9di_i64_max(*first, d9di_i64_min(d->r, d->offset[i + 1]));
}

/* Sums in float64; the maximum, and the sum of exponentials less it. */
typedef struct reduce_state {
    double sum[COLUMNS];
    float max[COLUMNS];
} reduce_state;

static void state_init(reduce_state *s, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        s->sum[j] = 0;
        s->max[j] = -INFINITY;
    }
}

D9DI_CLONES static void sum_add(double *sum, const float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        sum[j] += (double)x[j];
}
D9DI_CLONES static void max_add(float *max, const float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        max[j] = max[j] > x[j] || max[j] != max[j] ? max[j] : x[j];
}
D9DI_CLONES static void exp_add(double *sum, const float *x, const float *max, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        sum[j] += (double)(x[j] == max[j] ? 1.0f : d9di_cpu_expf(x[j] - max[j]));
}

/* The elements of x of one result, or of n results side by side, as runs of at most COLUMNS
 * elements. An axis of single elements is divided into such runs, whose lanes are folded at last.
 */
typedef struct element_runs {
    int64_t first, end, step, n;
} element_runs;

static element_runs runs_of(const d9d_reduce_axis_dims *d, int64_t i, int64_t j, int64_t n)
{
    int64_t first, end;

    rows_of(d, i, &first, &end);
    if (d->n == 1)
        return (element_runs){first, end, COLUMNS, d9di_i64_min(end - first, COLUMNS)};
    return (element_runs){first * d->n + j, end * d->n + j, d->n, n};
}
/* Elements of the run at `at`. */
static int64_t run_len(const d9d_reduce_axis_dims *d, const element_runs *e, int64_t at)
{
    return d->n == 1 ? d9di_i64_min(e->end - at, COLUMNS) : e->n;
}

static void state_add(const d9d_reduce_axis_dims *d, reduce_state *s, const void *x,
                      const element_runs *e)
{
    const bool has_max = d->kind == D9D_REDUCE_MAX || d->kind == D9D_REDUCE_LOGSUMEXP;
    float buf[COLUMNS];

    for (int64_t at = e->first; has_max && at < e->end; at += e->step)
        max_add(s->max, d9di_cpu_read(d->t, x, at, run_len(d, e, at), buf), run_len(d, e, at));
    for (int64_t at = e->first; d->kind != D9D_REDUCE_MAX && at < e->end; at += e->step) {
        const int64_t n = run_len(d, e, at);
        const float *run = d9di_cpu_read(d->t, x, at, n, buf);

        if (has_max)
            exp_add(s->sum, run, s->max, n);
        else
            sum_add(s->sum, run, n);
    }
}

/* All lanes into the first. */
static void state_fold(const d9d_reduce_axis_dims *d, reduce_state *s, int64_t n)
{
    double sum = 0;
    float max = -INFINITY;

    for (int64_t j = 0; j < n; j++)
        max_add(&max, &s->max[j], 1);
    for (int64_t j = 0; j < n; j++)
        sum += d->kind == D9D_REDUCE_LOGSUMEXP && s->max[j] != max
                   ? s->sum[j] * exp((double)s->max[j] - (double)max)
                   : s->sum[j];
    s->sum[0] = sum;
    s->max[0] = max;
}

static float state_result(const d9d_reduce_axis_dims *d, const reduce_state *s, int64_t rows,
                          int64_t j)
{
    switch (d->kind) {
    case D9D_REDUCE_SUM: return (float)s->sum[j];
    case D9D_REDUCE_MEAN: return rows > 0 ? (float)(s->sum[j] / (double)rows) : 0.0f;
    case D9D_REDUCE_MAX: return s->max[j];
    default: return isinf(s->max[j]) ? s->max[j] : s->max[j] + (float)log(s->sum[j]);
    }
}

/* Columns [j, j + n) of row i of y. */
static void reduce_block(const d9d_reduce_axis_dims *d, float *y, const void *x, int64_t i,
                         int64_t j, int64_t n)
{
    const element_runs e = runs_of(d, i, j, n);
    reduce_state s;
    int64_t first, end;

    rows_of(d, i, &first, &end);
    state_init(&s, e.n);
    state_add(d, &s, x, &e);
    if (d->n == 1)
        state_fold(d, &s, e.n);
    for (int64_t c = 0; c < n; c++)
        y[i * d->n + j + c] = state_result(d, &s, end - first, c);
}

d9d_status d9d_ref_reduce_axis(d9d_stream s, const d9d_reduce_axis_dims *d, float *y, const void *x)
{
    (void)s;
    D9D_TRY(d9di_args_check_reduce_axis("reduce_axis", d));
#pragma omp parallel for collapse(2) if (d->m * d->r * d->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j += COLUMNS)
            reduce_block(d, y, x, i, j, d9di_i64_min(d->n - j, COLUMNS));
    return D9D_OK;
}

/* --- gradients ------------------------------------------------------------------------------- */

/* What a row of a block is multiplied with: dy times 1, 1/rows or 1/ties, and y. */
typedef struct grad_factors {
    float dy[COLUMNS], y[COLUMNS];
} grad_factors;

D9DI_CLONES static void grad_block(d9d_reduce_kind kind, float *dx, const grad_factors *f,
                                   const float *x, int64_t n)
{
    switch (kind) {
    case D9D_REDUCE_MAX:
        for (int64_t j = 0; j < n; j++)
            dx[j] = x[j] == f->y[j] ? f->dy[j] : 0.0f;
        break;
    case D9D_REDUCE_LOGSUMEXP:
        for (int64_t j = 0; j < n; j++)
            dx[j] = f->dy[j] * d9di_cpu_expf(x[j] - f->y[j]);
        break;
    default: memcpy(dx, f->dy, (size_t)n * sizeof(*dx));
    }
}

/* How many elements equal the maximum. */
static int64_t ties_of(const d9d_reduce_axis_dims *d, const void *x, int64_t i, int64_t j,
                       float max)
{
    int64_t first, end, ties = 0;
    float buf;

    rows_of(d, i, &first, &end);
    for (int64_t r = first; r < end; r++)
        ties += *d9di_cpu_read(d->t, x, r * d->n + j, 1, &buf) == max;
    return d9di_i64_max(1, ties);
}

static void factors_of(const d9d_reduce_axis_dims *d, grad_factors *f, const float *dy,
                       const void *x, const float *y, int64_t i, int64_t j, int64_t n)
{
    int64_t first, end;

    rows_of(d, i, &first, &end);
    for (int64_t c = 0; c < n; c++) {
        const int64_t at = i * d->n + j + c;
        int64_t share = 1;

        f->y[c] = y != NULL ? y[at] : 0.0f;
        if (d->kind == D9D_REDUCE_MEAN)
            share = end - first;
        else if (d->kind == D9D_REDUCE_MAX)
            share = ties_of(d, x, i, j + c, f->y[c]);
        f->dy[c] = dy[at] / (float)share;
    }
    for (int64_t c = 1; d->n == 1 && c < COLUMNS; c++) {
        f->dy[c] = f->dy[0];
        f->y[c] = f->y[0];
    }
}

static void bwd_block(const d9d_reduce_axis_dims *d, void *dx, const float *dy, const void *x,
                      const float *y, int64_t i, int64_t j, int64_t n)
{
    const bool reads = d->kind == D9D_REDUCE_MAX || d->kind == D9D_REDUCE_LOGSUMEXP;
    const element_runs e = runs_of(d, i, j, n);
    float buf[COLUMNS], out[COLUMNS];
    grad_factors f;

    factors_of(d, &f, dy, x, y, i, j, n);
    for (int64_t at = e.first; at < e.end; at += e.step) {
        const int64_t len = run_len(d, &e, at);
        float *to = d9di_cpu_write_ptr(d->t, dx, at, out);

        grad_block(d->kind, to, &f, reads ? d9di_cpu_read(d->t, x, at, len, buf) : NULL, len);
        d9di_cpu_write(d->t, dx, at, len, to);
    }
}

d9d_status d9d_ref_reduce_axis_bwd(d9d_stream s, const d9d_reduce_axis_dims *d, void *dx,
                                   const float *dy, const void *x, const float *y)
{
    (void)s;
    D9D_TRY(d9di_args_check_reduce_axis("reduce_axis_bwd", d));
    if (d->offset != NULL) /* rows between segments */
        memset(dx, 0, (size_t)(d->r * d->n) * (d->t == D9D_F32 ? 4 : 2));
#pragma omp parallel for collapse(2) if (d->m * d->r * d->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j += COLUMNS)
            bwd_block(d, dx, dy, x, y, i, j, d9di_i64_min(d->n - j, COLUMNS));
    return D9D_OK;
}
