/* adafactor.c - Adafactor (Shazeer and Stern 2018, Adafactor: Adaptive learning rates with
 * sublinear memory cost), as torch.optim.Adafactor has it.
 *
 *     g = scale grad
 *     R = lerp(R, mean of g^2 along a row, w)        w = one_minus_beta2
 *     C = lerp(C, mean of g^2 along a column, w)
 *     V = R C / max(mean of R, eps1)                 or R, of a vector
 *     u = g / sqrt(max(V, eps1^2))
 *     p = (1 - lr wd) p - alpha u / max(1, rms(u) / d)
 *     alpha = relative_lr max(eps2, rms(p)), or relative_lr
 */
#include <math.h>

#include "cpu/common.h"
#include "cpu/math.h"

/* --- sums ------------------------------------------------------------------------------------- */

static void row_sums(float scale, d9d_dtype gt, const d9d_adafactor_array *a)
{
#pragma omp parallel for if (a->e * a->r * a->c > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < a->e * a->r; i++) {
        double sum = 0;

        for (int64_t j = 0; j < a->c; j += D9DI_BLOCK) {
            const int64_t n = d9di_i64_min(a->c - j, D9DI_BLOCK);
            float buf[D9DI_BLOCK];
            const float *g = d9di_cpu_read(gt, a->g, i * a->c + j, n, buf);

            sum += (double)d9di_cpu_row_dot(g, g, n);
        }
        a->row_sum[i / a->r * a->rows + a->r0 + i % a->r] =
            (float)(sum * (double)scale * (double)scale);
    }
}

D9DI_CLONES static void squares_add(double *restrict sum, const float *restrict g, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        sum[j] += (double)g[j] * (double)g[j];
}

/* A block of columns of a matrix, row after row. */
static void column_sums(float scale, d9d_dtype gt, const d9d_adafactor_array *a)
{
    const int64_t blocks = d9di_i64_ceil_div(a->c, D9DI_BLOCK);

#pragma omp parallel for if (a->e * a->r * a->c > D9DI_MIN_PARALLEL)
    for (int64_t k = 0; k < a->e * blocks; k++) {
        const int64_t m = k / blocks, at = k % blocks * D9DI_BLOCK;
        const int64_t n = d9di_i64_min(a->c - at, D9DI_BLOCK);
        float buf[D9DI_BLOCK], *out = a->col_sum + m * a->cols + a->c0 + at;
        double sum[D9DI_BLOCK] = {0};

        for (int64_t i = 0; i < a->r; i++)
            squares_add(sum, d9di_cpu_read(gt, a->g, (m * a->r + i) * a->c + at, n, buf), n);
        for (int64_t j = 0; j < n; j++)
            out[j] = (float)(sum[j] * (double)scale * (double)scale);
    }
}

static double sum_of(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum;
}

d9d_status d9d_ref_adafactor_sums(d9d_stream s, const float *scale, d9d_dtype gt,
                                  const d9d_adafactor_array *a)
{
    (void)s;
    D9D_TRY(d9di_args_check_float("adafactor_sums", gt));
    if (isnan(*scale))
        return D9D_OK;
    row_sums(*scale, gt, a);
    if (a->col == NULL)
        return D9D_OK;
    column_sums(*scale, gt, a);
    for (int64_t m = 0; m < a->e && a->c0 == 0; m++)
        a->mean[m] = (float)sum_of(a->row + m * a->r, a->r);
    return D9D_OK;
}

/* --- moments ---------------------------------------------------------------------------------- */

/* y = lerp(y, sum / n, w) */
static void moment_update(float *y, const float *sum, int64_t count, float by, float w)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += w * (sum[i] * by - y[i]);
}

d9d_status d9d_ref_adafactor_moments(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                     const d9d_adafactor_array *a)
{
    const double w = c->one_minus_beta2;
    const float of_row = (float)(1.0 / (double)a->cols), of_col = (float)(1.0 / (double)a->rows);

    (void)s;
    for (int64_t m = 0; m < a->e && !isnan(*scale); m++) {
        const float *row_sum = a->row_sum + m * a->rows;

        moment_update(a->row + m * a->r, row_sum + a->r0, a->r, of_row, (float)w);
        if (a->col == NULL)
            continue;
        moment_update(a->col + m * a->c, a->col_sum + m * a->cols + a->c0, a->c, of_col, (float)w);
        a->mean[m] = (float)(((1.0 - w) * (double)a->mean[m] +
                              w * sum_of(row_sum, a->rows) / (double)a->cols) /
                             (double)a->rows);
    }
    return D9D_OK;
}

/* --- the update ------------------------------------------------------------------------------- */

/* Constants of the update u of a matrix. */
typedef struct adafactor_consts {
    float scale, eps1, least; /* least: eps1^2 */
} adafactor_consts;

static adafactor_consts consts_make(const d9d_adafactor_step *c, const float *scale)
{
    return (adafactor_consts){
        .scale = *scale, .eps1 = (float)c->eps1, .least = (float)(c->eps1 * c->eps1)};
}

D9DI_CLONES static void matrix_update(float *restrict u, const float *restrict g, float scale,
                                      float by_row, const float *restrict col, float least,
                                      int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        const float v = by_row * col[j];

        u[j] = g[j] * scale / sqrtf(v > least ? v : least);
    }
}

/* u of the n elements of row i from column j on. */
static void update_make(const adafactor_consts *k, d9d_dtype gt, const d9d_adafactor_array *a,
                        int64_t i, int64_t j, int64_t n, float *u)
{
    static const float one = 1.0f;
    const int64_t m = i / a->r;
    float buf[D9DI_BLOCK];
    const float *g = d9di_cpu_read(gt, a->g, i * a->c + j, n, buf);

    if (a->col == NULL)
        matrix_update(u, g, k->scale, a->row[i], &one, k->least, n);
    else
        matrix_update(u, g, k->scale, a->row[i] / fmaxf(a->mean[m], k->eps1), a->col + m * a->c + j,
                      k->least, n);
}

/* Sums of the squares of u and p of row i. */
static void row_squares(const adafactor_consts *k, d9d_dtype t, d9d_dtype gt,
                        const d9d_adafactor_array *a, int64_t i, double out[2])
{
    out[0] = out[1] = 0;
    for (int64_t j = 0; j < a->c; j += D9DI_BLOCK) {
        const int64_t n = d9di_i64_min(a->c - j, D9DI_BLOCK);
        float u[D9DI_BLOCK], buf[D9DI_BLOCK], *p;

        update_make(k, gt, a, i, j, n, u);
        p = d9di_cpu_modify_weights(t, a->p, a->residual, i * a->c + j, n, buf);
        out[0] += (double)d9di_cpu_row_dot(u, u, n);
        out[1] += (double)d9di_cpu_row_dot(p, p, n);
    }
}

/* Rows are divided into parts by their number alone, and parts are added in order. */
d9d_status d9d_ref_adafactor_squares(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                     d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a)
{
    const adafactor_consts k = consts_make(c, scale);
    const int64_t rows = a->e * a->r, size = d9di_i64_ceil_div(rows + 1, D9DI_MAX_PARTS);
    const int64_t parts = d9di_i64_ceil_div(rows, size);
    double part[D9DI_MAX_PARTS][2] = {{0}};

    (void)s;
    D9D_TRY(d9di_args_check_float("adafactor_squares", t));
    D9D_TRY(d9di_args_check_float("adafactor_squares", gt));
    if (isnan(*scale))
        return D9D_OK;
#pragma omp parallel for if (rows * a->c > D9DI_MIN_PARALLEL)
    for (int64_t q = 0; q < parts; q++)
        for (int64_t i = q * size; i < d9di_i64_min(rows, (q + 1) * size); i++) {
            double squares[2];

            row_squares(&k, t, gt, a, i, squares);
            part[q][0] += squares[0];
            part[q][1] += squares[1];
        }
    a->squares[0] = a->squares[1] = 0;
    for (int64_t q = 0; q < parts; q++) {
        a->squares[0] += part[q][0];
        a->squares[1] += part[q][1];
    }
    return D9D_OK;
}

/* The factor of u, alpha / max(1, rms(u) / d). */
static float factor_make(const d9d_adafactor_step *c, const d9d_adafactor_array *a)
{
    const double rms = sqrt(a->squares[0] / a->numel), size = sqrt(a->squares[1] / a->numel);
    const double alpha = c->scale_parameter ? c->relative_lr * fmax(c->eps2, size) : c->relative_lr;

    return (float)(alpha / fmax(1.0, rms / c->clip_threshold));
}

D9DI_CLONES static void weights_update(float *restrict p, const float *restrict u, float decay,
                                       float factor, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        p[j] = p[j] * decay - factor * u[j];
}

d9d_status d9d_ref_adafactor(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                             d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a)
{
    const adafactor_consts k = consts_make(c, scale);
    const float decay = (float)(1.0 - c->lr * c->weight_decay), factor = factor_make(c, a);
    const int64_t blocks = d9di_i64_ceil_div(a->c, D9DI_BLOCK);

    (void)s;
    D9D_TRY(d9di_args_check_float("adafactor", t));
    D9D_TRY(d9di_args_check_float("adafactor", gt));
    if (isnan(*scale))
        return D9D_OK;
#pragma omp parallel for if (a->e * a->r * a->c > D9DI_MIN_PARALLEL)
    for (int64_t q = 0; q < a->e * a->r * blocks; q++) {
        const int64_t i = q / blocks, j = q % blocks * D9DI_BLOCK, at = i * a->c + j;
        const int64_t n = d9di_i64_min(a->c - j, D9DI_BLOCK);
        float u[D9DI_BLOCK], buf[D9DI_BLOCK], *p;

        update_make(&k, gt, a, i, j, n, u);
        p = d9di_cpu_modify_weights(t, a->p, a->residual, at, n, buf);
        weights_update(p, u, decay, factor, n);
        d9di_cpu_write_weights(t, a->p, a->residual, at, n, p);
    }
    return D9D_OK;
}
