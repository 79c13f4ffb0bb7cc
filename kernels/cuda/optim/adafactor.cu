/* adafactor.cu - Adafactor (Shazeer and Stern 2018, Adafactor: Adaptive learning rates with
 * sublinear memory cost), as torch.optim.Adafactor has it.
 *
 *     g = scale grad
 *     R = lerp(R, mean of g^2 along a row, w)        w = one_minus_beta2
 *     C = lerp(C, mean of g^2 along a column, w)
 *     V = R C / max(mean of R, eps1)                 or R, of a vector
 *     u = g / sqrt(max(V, eps1^2))
 *     p = (1 - lr wd) p - alpha u / max(1, rms(u) / d)
 *     alpha = relative_lr max(eps2, rms(p)), or relative_lr
 *
 * Sums are in orders that only the shape decides.
 */
#include <math.h>

#include "cuda/common/common.cuh"
#include "cuda/optim/master_weights.cuh"

struct plus_double {
    __device__ __forceinline__ double operator()(double a, double b) const { return a + b; }
};

/* --- sums ------------------------------------------------------------------------------------- */

/* G threads have a row. */
template <int G, class T>
static __global__ void row_sums_kernel(const float *scale, d9d_adafactor_array a)
{
    const int64_t i = group_row<G>();
    const T *const g = (const T *)a.g + i * a.c;
    const float by = *scale;
    float sum = 0.0f;

    if (isnan(by))
        return;
    if (i < a.e * a.r) {
        D9DI_ROW8 (j, a.c, G) {
            float v[8];

            load8(v, g + j, a.c - j);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum += v[k] * by * (v[k] * by);
        }
    }
    sum = group_sum<G>(sum);
    if (i < a.e * a.r && threadIdx.x % G == 0)
        a.row_sum[i / a.r * a.rows + a.r0 + i % a.r] = sum;
}

/* A block sums ROWS rows of 8 WARP columns of a matrix: part [e, chunks, c]. A warp has every
 * WARPS-th row, a lane eight columns. */
enum { COLUMN_ROWS = 256, COLUMNS = 8 * WARP };
template <class T>
static __global__ void column_parts_kernel(float *part, const float *scale, d9d_adafactor_array a,
                                           int64_t chunks)
{
    __shared__ float sums[WARPS][COLUMNS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t per_chunk = d9di_i64_ceil_div(a.c, COLUMNS),
                  at = blockIdx.x % per_chunk * COLUMNS, m = blockIdx.x / per_chunk / chunks,
                  chunk = blockIdx.x / per_chunk % chunks;
    const int64_t first = chunk * COLUMN_ROWS, end = d9di_i64_min(a.r, first + COLUMN_ROWS);
    const int64_t j = at + 8 * lane;
    const T *const g = (const T *)a.g + m * a.r * a.c + j;
    const float by = *scale;
    float sum[8] = {};

    if (isnan(by))
        return;
    for (int64_t i = first + warp; i < end && j < a.c; i += WARPS) {
        float v[8];

        load8(v, g + i * a.c, a.c - j);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum[k] += v[k] * by * (v[k] * by);
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        sums[warp][8 * lane + k] = sum[k];
    __syncthreads();
    if (at + (int)threadIdx.x < a.c) {
        float all = 0.0f;

#pragma unroll
        for (int w = 0; w < WARPS; w++)
            all += sums[w][threadIdx.x];
        part[(m * chunks + chunk) * a.c + at + threadIdx.x] = all;
    }
}

static __global__ void column_fold_kernel(const float *part, const float *scale,
                                          d9d_adafactor_array a, int64_t chunks)
{
    if (isnan(*scale))
        return;
    for (int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x; k < a.e * a.c;
         k += (int64_t)gridDim.x * THREADS) {
        const int64_t m = k / a.c, j = k % a.c;
        double sum = 0.0;

        for (int64_t i = 0; i < chunks; i++)
            sum += (double)part[(m * chunks + i) * a.c + j];
        a.col_sum[m * a.cols + a.c0 + j] = (float)sum;
    }
}

/* A block has a matrix. */
static __device__ __forceinline__ double sum_of(const float *x, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += (double)x[i];
    return group_reduce<THREADS>(sum, plus_double());
}

static __global__ void means_kernel(const float *scale, d9d_adafactor_array a)
{
    const int64_t m = blockIdx.x;
    const double sum = sum_of(a.row + m * a.r, a.r);

    if (threadIdx.x == 0 && !isnan(*scale))
        a.mean[m] = (float)sum;
}

template <class T>
static d9d_status column_sums(d9d_stream s, const float *scale, const d9d_adafactor_array *a)
{
    const int64_t chunks = d9di_i64_ceil_div(a->r, COLUMN_ROWS),
                  blocks = a->e * chunks * d9di_i64_ceil_div(a->c, COLUMNS),
                  bytes = a->e * chunks * a->c * (int64_t)sizeof(float);
    cudaStream_t stream = d9di_cuda_stream(s);
    void *part;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    column_parts_kernel<T>
        <<<(unsigned)blocks, THREADS, 0, stream>>>((float *)part, scale, *a, chunks);
    column_fold_kernel<<<grid_for(s, a->e * a->c), THREADS, 0, stream>>>((const float *)part, scale,
                                                                         *a, chunks);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("adafactor_sums");
}

template <int G, class T>
static d9d_status row_sums(d9d_stream s, const float *scale, const d9d_adafactor_array *a)
{
    row_sums_kernel<G, T>
        <<<grid_for_rows(a->e * a->r, G), THREADS, 0, d9di_cuda_stream(s)>>>(scale, *a);
    return d9di_cuda_check_launch("adafactor_sums");
}

d9d_status d9d_k_adafactor_sums(d9d_stream s, const float *scale, d9d_dtype gt,
                                const d9d_adafactor_array *a)
{
    D9D_TRY(d9di_args_check_float("adafactor_sums", gt));
    if (a->e * a->r * a->c == 0)
        return D9D_OK;
    D9D_TRY(D9DI_DISPATCH_DTYPE(gt, T, D9DI_BY_ROWS(a->c, G, row_sums<G, T>(s, scale, a))));
    if (a->col == NULL)
        return D9D_OK;
    D9D_TRY(D9DI_DISPATCH_DTYPE(gt, T, column_sums<T>(s, scale, a)));
    if (a->c0 == 0)
        means_kernel<<<(unsigned)a->e, THREADS, 0, d9di_cuda_stream(s)>>>(scale, *a);
    return d9di_cuda_check_launch("adafactor_sums");
}

/* --- moments ---------------------------------------------------------------------------------- */

/* y = lerp(y, sum / n, w) */
static __device__ __forceinline__ void moment_update(float *y, const float *sum, int64_t count,
                                                     float by, float w)
{
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        y[i] += w * (sum[i] * by - y[i]);
}

/* A block has a matrix. */
static __global__ void moments_kernel(double w, const float *scale, d9d_adafactor_array a)
{
    const int64_t m = blockIdx.x;
    const float *const row_sum = a.row_sum + m * a.rows;
    double sum;

    if (isnan(*scale))
        return;
    moment_update(a.row + m * a.r, row_sum + a.r0, a.r, (float)(1.0 / (double)a.cols), (float)w);
    if (a.col == NULL)
        return;
    moment_update(a.col + m * a.c, a.col_sum + m * a.cols + a.c0, a.c,
                  (float)(1.0 / (double)a.rows), (float)w);
    sum = sum_of(row_sum, a.rows);
    if (threadIdx.x == 0)
        a.mean[m] =
            (float)(((1.0 - w) * (double)a.mean[m] + w * sum / (double)a.cols) / (double)a.rows);
}

d9d_status d9d_k_adafactor_moments(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                   const d9d_adafactor_array *a)
{
    if (a->e > 0)
        moments_kernel<<<(unsigned)a->e, THREADS, 0, d9di_cuda_stream(s)>>>(c->one_minus_beta2,
                                                                            scale, *a);
    return d9di_cuda_check_launch("adafactor_moments");
}

/* --- the update ------------------------------------------------------------------------------- */

/* u of eight elements of row i from column j on; their gradients are in v. */
static __device__ __forceinline__ void update8(float (&v)[8], float scale, float eps1, float least,
                                               const d9d_adafactor_array &a, int64_t i, int64_t j)
{
    const int64_t m = i / a.r;
    float by_row = a.row[i], col[8] = {1.0f};

    if (a.col != NULL) {
        by_row = by_row / fmaxf(a.mean[m], eps1);
        load8(col, a.col + m * a.c + j, a.c - j);
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        v[k] = v[k] * scale / sqrtf(fmaxf(by_row * col[k], least));
}

/* Blocks add their vectors of eight in turn: part [blocks, 2]. */
enum { SQUARES_BLOCKS = 256 };
template <class W, class T>
static __global__ void squares_kernel(double *part, float eps1, float least, const float *scale,
                                      d9d_adafactor_array a)
{
    const W w = {a.p, a.residual};
    const float by = *scale;
    double u = 0.0, p = 0.0;

    if (isnan(by))
        return;
    EACH_ROW8 (i, j, a.e * a.r, a.c) {
        float v[8], x[8];

        load8(v, (const T *)a.g + i * a.c + j, a.c - j);
        update8(v, by, eps1, least, a, i, j);
        w.load(x, i * a.c + j, a.c - j);
        for (int k = 0; k < 8 && j + k < a.c; k++) {
            u += (double)v[k] * (double)v[k];
            p += (double)x[k] * (double)x[k];
        }
    }
    u = group_reduce<THREADS>(u, plus_double());
    p = group_reduce<THREADS>(p, plus_double());
    if (threadIdx.x == 0) {
        part[2 * blockIdx.x] = u;
        part[2 * blockIdx.x + 1] = p;
    }
}

static __global__ void squares_fold_kernel(const double *part, int blocks, const float *scale,
                                           double *squares)
{
    double sum = 0.0;

    if (isnan(*scale))
        return;
    for (int i = 0; i < blocks; i++)
        sum += part[2 * i + threadIdx.x];
    squares[threadIdx.x] = sum;
}

template <class W, class T>
static d9d_status launch_squares(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                 const d9d_adafactor_array *a)
{
    const int64_t vectors = a->e * a->r * d9di_i64_ceil_div(a->c, 8),
                  blocks = d9di_i64_min(SQUARES_BLOCKS, d9di_i64_ceil_div(vectors, THREADS)),
                  bytes = 2 * blocks * (int64_t)sizeof(double);
    void *part;

    D9D_TRY(d9di_cuda_scratch_alloc(s, bytes, &part));
    squares_kernel<W, T><<<(unsigned)blocks, THREADS, 0, d9di_cuda_stream(s)>>>(
        (double *)part, (float)c->eps1, (float)(c->eps1 * c->eps1), scale, *a);
    squares_fold_kernel<<<1, 2, 0, d9di_cuda_stream(s)>>>((const double *)part, (int)blocks, scale,
                                                          a->squares);
    d9di_cuda_scratch_free(s, part, bytes);
    return d9di_cuda_check_launch("adafactor_squares");
}

d9d_status d9d_k_adafactor_squares(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                   d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a)
{
    D9D_TRY(d9di_args_check_float("adafactor_squares", t));
    D9D_TRY(d9di_args_check_float("adafactor_squares", gt));
    if (a->e * a->r * a->c == 0)
        return D9D_OK;
    return D9DI_WEIGHTS(t, a->residual, W, D9DI_DISPATCH_DTYPE(gt, T, [&] {
                            return launch_squares<W, T>(s, c, scale, a);
                        }()));
}

template <class W, class T>
static __global__ void adafactor_kernel(d9d_adafactor_step c, const float *scale,
                                        d9d_adafactor_array a)
{
    const double rms = sqrt(a.squares[0] / a.numel), size = sqrt(a.squares[1] / a.numel);
    const double alpha = c.scale_parameter ? c.relative_lr * fmax(c.eps2, size) : c.relative_lr;
    const float factor = (float)(alpha / fmax(1.0, rms / c.clip_threshold)),
                decay = (float)(1.0 - c.lr * c.weight_decay), eps1 = (float)c.eps1,
                least = (float)(c.eps1 * c.eps1), by = *scale;
    const W w = {a.p, a.residual};

    if (isnan(by))
        return;
    EACH_ROW8 (i, j, a.e * a.r, a.c) {
        float v[8], x[8];

        load8(v, (const T *)a.g + i * a.c + j, a.c - j);
        update8(v, by, eps1, least, a, i, j);
        w.load(x, i * a.c + j, a.c - j);
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[k] = x[k] * decay - factor * v[k];
        w.store(i * a.c + j, x, a.c - j);
    }
}

template <class W, class T>
static d9d_status launch_adafactor(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                   const d9d_adafactor_array *a)
{
    adafactor_kernel<W, T><<<grid_for(s, a->e * a->r * d9di_i64_ceil_div(a->c, 8)), THREADS, 0,
                             d9di_cuda_stream(s)>>>(*c, scale, *a);
    return d9di_cuda_check_launch("adafactor");
}

d9d_status d9d_k_adafactor(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                           d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a)
{
    D9D_TRY(d9di_args_check_float("adafactor", t));
    D9D_TRY(d9di_args_check_float("adafactor", gt));
    if (a->e * a->r * a->c == 0)
        return D9D_OK;
    return D9DI_WEIGHTS(t, a->residual, W, D9DI_DISPATCH_DTYPE(gt, T, [&] {
                            return launch_adafactor<W, T>(s, c, scale, a);
                        }()));
}
