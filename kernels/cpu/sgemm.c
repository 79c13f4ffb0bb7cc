/* sgemm.c - float32 GEMM on one thread, in which an element depends only on its row and its column
 * (batch-invariant).
 *
 *     c = alpha (sum over a panel of k of a[k] b[k], by fused multiply-adds in order) + beta c
 *
 * and likewise for the next panel, with beta 1. BLAS libraries use other orders at block edges and
 * for small products, so that a row of the result depends on the number of rows. Here a document's
 * results have the same bits whatever is computed with it, and on any processor with fused
 * multiply-adds.
 *
 * d9di_sgemm_skinny() computes a few rows. Otherwise panels of op(A) and op(B) are packed into
 * slices of ROWS rows and COLS columns. The microkernel reads slices in order (Goto and van de
 * Geijn, "Anatomy of high-performance matrix multiplication", 2008; BLIS). Slices are padded with
 * zeros.
 */
#include "cpu/sgemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    ROWS = 12,                /* rows of a slice of op(A) */
    COLS = D9DI_SGEMM_COLS,   /* columns of a slice of op(B) */
    K_MAX = D9DI_SGEMM_PANEL, /* depth of a panel */
    M_MAX = 96,               /* rows of op(A) that stay in the cache */
    N_MAX = 512               /* columns of op(B) */
};

/* --- microkernel: y[rows][COLS] = slice of A, [n][ROWS], times slice of B, [n][COLS] ---------- */

/* Computes at least the first `rows` rows and `cols` columns of y. */
typedef void tile_fn(int64_t n, const float *a, const float *b, float *y, int64_t rows,
                     int64_t cols);

static void tile_plain(int64_t n, const float *a, const float *b, float *y, int64_t rows,
                       int64_t cols)
{
    memset(y, 0, ROWS * COLS * sizeof(*y));
    for (int64_t k = 0; k < n; k++, a += ROWS, b += COLS)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                y[i * COLS + j] = fmaf(a[i], b[j], y[i * COLS + j]);
}

#if defined(__x86_64__)
/* A microkernel: H rows of W vectors of V floats, in registers. */
#define TILE_PART(name, isa, vec, V, H, W, op)                                                     \
    __attribute__((target(isa))) static void name(int64_t n, const float *a, const float *b,       \
                                                  float *y)                                        \
    {                                                                                              \
        vec sum[H][W];                                                                             \
                                                                                                   \
        _Pragma("GCC unroll 16") for (int i = 0; i < (H); i++)                                     \
            _Pragma("GCC unroll 4") for (int j = 0; j < (W); j++) sum[i][j] = op##_setzero_ps();   \
        for (int64_t k = 0; k < n; k++, a += ROWS, b += COLS) {                                    \
            vec x[W];                                                                              \
                                                                                                   \
            _Pragma("GCC unroll 4") for (int j = 0; j < (W); j++) x[j] = op##_loadu_ps(b + j * V); \
            _Pragma("GCC unroll 16") for (int i = 0; i < (H); i++)                                 \
            {                                                                                      \
                const vec s = op##_set1_ps(a[i]);                                                  \
                                                                                                   \
                _Pragma("GCC unroll 4") for (int j = 0; j < (W); j++) sum[i][j] =                  \
                    op##_fmadd_ps(s, x[j], sum[i][j]);                                             \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < (H); i++)                                     \
            _Pragma("GCC unroll 4") for (int j = 0; j < (W); j++)                                  \
                op##_storeu_ps(y + i * COLS + j * V, sum[i][j]);                                   \
    }
TILE_PART(part_512x12, "avx512f", __m512, 16, 12, 2, _mm512)
TILE_PART(part_512x4, "avx512f", __m512, 16, 4, 2, _mm512)
TILE_PART(part_256x6, "avx2,fma", __m256, 8, 6, 2, _mm256)

static void tile_avx512(int64_t n, const float *a, const float *b, float *y, int64_t rows,
                        int64_t cols)
{
    (void)cols;
    if (rows > 8)
        part_512x12(n, a, b, y);
    else
        for (int64_t i = 0; i < rows; i += 4)
            part_512x4(n, a + i, b, y + i * COLS);
}

static void tile_avx2(int64_t n, const float *a, const float *b, float *y, int64_t rows,
                      int64_t cols)
{
    for (int64_t i = 0; i < rows; i += 6)
        for (int64_t j = 0; j < cols; j += 16)
            part_256x6(n, a + i, b + j, y + i * COLS + j);
}
#endif

static tile_fn *tile_fn_for_cpu(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return tile_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return tile_avx2;
#endif
    return tile_plain;
}

/* --- packing ------------------------------------------------------------------------------- */

/* Transposes 4 x 4 numbers, y[k][i] = x[i][k]; rows of y are `width` long, of x `across`. */
static inline void transpose_4x4(float *y, int64_t width, const float *x, int64_t across)
{
#if defined(__x86_64__)
    __m128 r0 = _mm_loadu_ps(x), r1 = _mm_loadu_ps(x + across);
    __m128 r2 = _mm_loadu_ps(x + 2 * across), r3 = _mm_loadu_ps(x + 3 * across);

    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(y, r0);
    _mm_storeu_ps(y + width, r1);
    _mm_storeu_ps(y + 2 * width, r2);
    _mm_storeu_ps(y + 3 * width, r3);
#else
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++)
            y[k * width + i] = x[i * across + k];
#endif
}

/* y[k][i] = x[i * across + k] for i < count of `width`, zeros beyond. */
static void pack_transposed(float *y, const float *x, int64_t across, int64_t count, int64_t width,
                            int64_t n)
{
    int64_t i = 0, k;

    for (; i + 4 <= count; i += 4) {
        for (k = 0; k + 4 <= n; k += 4)
            transpose_4x4(y + k * width + i, width, x + i * across + k, across);
        for (; k < n; k++)
            for (int64_t q = i; q < i + 4; q++)
                y[k * width + q] = x[q * across + k];
    }
    for (; i < width; i++)
        for (k = 0; k < n; k++)
            y[k * width + i] = i < count ? x[i * across + k] : 0.0f;
}

/* y[k][i] = x[i + k * along], as above. */
static void pack_straight(float *y, const float *x, int64_t along, int64_t count, int64_t width,
                          int64_t n)
{
    for (int64_t k = 0; k < n; k++, x += along, y += width)
        if (count == ROWS && width == ROWS) {
            memcpy(y, x, ROWS * sizeof(*y));
        } else if (count == COLS) {
            memcpy(y, x, COLS * sizeof(*y));
        } else {
            memcpy(y, x, (size_t)count * sizeof(*y));
            memset(y + count, 0, (size_t)(width - count) * sizeof(*y));
        }
}

/* Packs all slices of a panel, `width` of `total` at a time; one of x's strides is 1. */
static void pack_panel(float *y, const float *x, int64_t across, int64_t along, int64_t total,
                       int64_t width, int64_t n)
{
    for (int64_t i = 0; i < total; i += width, y += n * width) {
        const int64_t count = d9di_i64_min(total - i, width);

        if (across == 1)
            pack_straight(y, x + i, along, count, width, n);
        else
            pack_transposed(y, x + i * across, across, count, width, n);
    }
}

D9DI_CLONES void d9di_sgemm_tile_store(float *c, int64_t ldc, const float *tile, int64_t ld,
                                       int64_t rows, int64_t cols, float alpha, float beta)
{
    for (int64_t i = 0; i < rows; i++, c += ldc, tile += ld)
        if (beta == 0.0f)
            for (int64_t j = 0; j < cols; j++)
                c[j] = alpha * tile[j];
        else
            for (int64_t j = 0; j < cols; j++)
                c[j] = alpha * tile[j] + beta * c[j];
}

/* --- GEMM ---------------------------------------------------------------------------------- */

typedef struct sgemm_panel {
    int64_t k; /* of this panel */
    float alpha, beta;
    float *c;
    int64_t ldc;
} sgemm_panel;

/* Multiplies slices of A [m, k] by slices of B [k, n]. */
static void block_multiply(const sgemm_panel *p, tile_fn *tile, const float *a, const float *b,
                           int64_t m, int64_t n, float *c)
{
    float y[ROWS * COLS];

    for (int64_t j = 0; j < n; j += COLS)
        for (int64_t i = 0; i < m; i += ROWS) {
            const int64_t rows = d9di_i64_min(m - i, ROWS), cols = d9di_i64_min(n - j, COLS);

            tile(p->k, a + i * p->k, b + j * p->k, y, rows, cols);
            d9di_sgemm_tile_store(c + i * p->ldc + j, p->ldc, y, COLS, rows, cols, p->alpha,
                                  p->beta);
        }
}

static int64_t round_up(int64_t x, int64_t to)
{
    return d9di_i64_ceil_div(x, to) * to;
}

static int64_t a_scratch(int64_t m, int64_t k)
{
    return round_up(d9di_i64_min(m, M_MAX), ROWS) * d9di_i64_min(k, K_MAX);
}

int64_t d9di_sgemm_scratch(int64_t m, int64_t n, int64_t k)
{
    return a_scratch(m, k) + round_up(d9di_i64_min(n, N_MAX), COLS) * d9di_i64_min(k, K_MAX);
}

void d9di_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                int64_t ldc, float *workspace)
{
    const int64_t a_across = trans_a ? 1 : lda, a_along = trans_a ? lda : 1;
    const int64_t b_across = trans_b ? ldb : 1, b_along = trans_b ? 1 : ldb;
    const int64_t made =
        trans_a ? 0
                : d9di_sgemm_skinny(D9D_F32, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    float *b_slices = workspace + a_scratch(m, k);
    tile_fn *tile = tile_fn_for_cpu();

    b += made * b_across;
    c += made;
    n -= made;
    for (int64_t j = 0; j < n; j += N_MAX)
        for (int64_t p = 0; p < d9di_i64_max(k, 1); p += K_MAX) {
            const sgemm_panel panel = {d9di_i64_min(k - p, K_MAX), alpha, p == 0 ? beta : 1.0f, c,
                                       ldc};
            const int64_t cols = d9di_i64_min(n - j, N_MAX);

            pack_panel(b_slices, b + j * b_across + p * b_along, b_across, b_along, cols, COLS,
                       panel.k);
            for (int64_t i = 0; i < m; i += M_MAX) {
                const int64_t rows = d9di_i64_min(m - i, M_MAX);

                pack_panel(workspace, a + i * a_across + p * a_along, a_across, a_along, rows, ROWS,
                           panel.k);
                block_multiply(&panel, tile, workspace, b_slices, rows, cols, c + i * ldc + j);
            }
        }
}
