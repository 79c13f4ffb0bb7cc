/* gemm_skinny.c - skinny GEMM for decode: a few rows.
 *
 * B is read once, unpacked, in long contiguous chunks. The sums are those of d9di_sgemm(): over
 * panels of k, by fused multiply-adds in order. With trans_b, rows of B are columns of the product.
 * CHUNK_BYTES of COLS rows at a time are copied to where they do not conflict in the cache. Four
 * elements of k are transposed in registers:
 *
 *     row 0   a b c d                  a e i m
 *     row 1   e f g h    transposed    b f j n     one k, consecutive columns
 *     row 2   i j k l                  c g k o
 *     row 3   m n o p                  d h l p
 *
 * with rows 4, 8, 12, ... in the other lanes; bfloat16 elements are transposed in pairs. Otherwise
 * the sums of STRAIGHT_COLS columns stay in the cache, and four rows of B are added at a time.
 */
#include "cpu/sgemm.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum {
    PANEL = D9DI_SGEMM_PANEL,
    MAX_ROWS = 8,       /* rows */
    COLS = 16,          /* transposed: as many streams as memory sustains */
    CHUNK_BYTES = 256,  /* bytes of each */
    STRAIGHT_COLS = 256 /* columns, not transposed */
};

#define UNROLL _Pragma("GCC unroll 8")

/* --- transposed: y[H][COLS] = A [H, n] times COLS rows of B -------------------------------- */

typedef void transposed_fn(int64_t n, const float *a, int64_t lda, const char *b, int64_t ldb,
                           float *y);

/* One k for W vectors: adds to H rows of sums. */
#define STEP(op, H, W, at, x)                                                                      \
    UNROLL for (int i_ = 0; i_ < (H); i_++)                                                        \
    {                                                                                              \
        UNROLL for (int w_ = 0; w_ < (W); w_++) sum[i_][w_] =                                      \
            op##_fmadd_ps(op##_set1_ps(a[i_ * lda + (at)]), (x)[w_], sum[i_][w_]);                 \
    }

/* Copies `bytes` of each row, zero-padded to a group of four elements. */
static inline void chunk_load(char *y, const char *b, int64_t ldb, int64_t bytes)
{
    for (int j = 0; j < COLS; j++, y += CHUNK_BYTES, b += ldb)
        if (bytes == CHUNK_BYTES) {
            __builtin_memcpy(y, b, CHUNK_BYTES);
        } else {
            memcpy(y, b, (size_t)bytes);
            memset(y + bytes, 0, (size_t)d9di_i64_min(16, CHUNK_BYTES - bytes));
        }
}

/* EACH elements of k are 16 bytes; GATHER and TURN are defined below; ldb in bytes. */
#define TRANSPOSED(name, isa, op, vec, V, H, T, EACH, GATHER, TURN)                                \
    __attribute__((target(isa))) static void name(int64_t n, const float *a, int64_t lda,          \
                                                  const char *b, int64_t ldb, float *y)            \
    {                                                                                              \
        enum { IN = CHUNK_BYTES / (int)sizeof(T) };                                                \
        _Alignas(64) char tile[COLS * CHUNK_BYTES];                                                \
        vec sum[H][COLS / (V)], x[EACH][COLS / (V)], r[4];                                         \
                                                                                                   \
        UNROLL for (int i = 0; i < (H); i++) UNROLL for (int w = 0; w < COLS / (V); w++)           \
            sum[i][w] = op##_setzero_ps();                                                         \
        for (int64_t from = 0; from < n; from += IN, a += IN, b += CHUNK_BYTES) {                  \
            const int64_t in_len = d9di_i64_min(n - from, IN);                                     \
                                                                                                   \
            chunk_load(tile, b, ldb, in_len *(int64_t)sizeof(T));                                  \
            for (int64_t k = 0; k < in_len; k += (EACH)) {                                         \
                UNROLL for (int w = 0; w < COLS / (V); w++)                                        \
                {                                                                                  \
                    const char *at = tile + w * (V)*CHUNK_BYTES + k * (int64_t)sizeof(T);          \
                                                                                                   \
                    UNROLL for (int q = 0; q < 4; q++) r[q] =                                      \
                        GATHER(at + q * CHUNK_BYTES, 4 * CHUNK_BYTES);                             \
                    TURN(r, x, w);                                                                 \
                }                                                                                  \
                if (k + (EACH) <= in_len)                                                          \
                    UNROLL for (int j = 0; j < (EACH); j++)                                        \
                        STEP(op, H, COLS / (V), k + j, x[j]) else for (int64_t j = 0;              \
                                                                       k + j < in_len; j++)        \
                            STEP(op, H, COLS / (V), k + j, x[j])                                   \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (int i = 0; i < (H); i++) UNROLL for (int w = 0; w < COLS / (V); w++)           \
            op##_storeu_ps(y + i * COLS + w * (V), sum[i][w]);                                     \
    }

/* --- not transposed: y[cols] += a[0] b[0][cols], then a[1] b[1][cols], ... ----------------- */

typedef void straight_fn(int64_t n, const float *a, const void *b, int64_t ldb, int64_t cols,
                         float *y);

/* Adds N rows of B. */
#define ADD(op, vec, V, N, LOAD)                                                                   \
    for (int64_t j = 0; j < cols; j += (V)) {                                                      \
        vec v = op##_loadu_ps(y + j);                                                              \
                                                                                                   \
        UNROLL for (int q = 0; q < (N); q++) v =                                                   \
            op##_fmadd_ps(op##_set1_ps(a[k + q]), LOAD(b + q * ldb + j), v);                       \
        op##_storeu_ps(y + j, v);                                                                  \
    }
#define STRAIGHT(name, isa, op, vec, V, T, LOAD)                                                   \
    __attribute__((target(isa))) static void name(int64_t n, const float *a, const void *from,     \
                                                  int64_t ldb, int64_t cols, float *y)             \
    {                                                                                              \
        const T *b = from;                                                                         \
        int64_t k = 0;                                                                             \
                                                                                                   \
        for (; k + 4 <= n; k += 4, b += 4 * ldb)                                                   \
            ADD(op, vec, V, 4, LOAD)                                                               \
        for (; k < n; k++, b += ldb)                                                               \
            ADD(op, vec, V, 1, LOAD)                                                               \
    }

/* --- loading vectors of B ------------------------------------------------------------------ */

#define F512(p) _mm512_loadu_ps(p)
#define F256(p) _mm256_loadu_ps(p)
#define B512(p)                                                                                    \
    _mm512_castsi512_ps(                                                                           \
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define B256(p)                                                                                    \
    _mm256_castsi256_ps(                                                                           \
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))

/* 16 bytes at p and at each of the next addresses, one per lane. */
#define LANE(p)        _mm_loadu_ps((const float *)(p))
#define LANES256(p, d) _mm256_insertf128_ps(_mm256_castps128_ps256(LANE(p)), LANE((p) + (d)), 1)
#define LANES512(p, d)                                                                             \
    _mm512_insertf32x4(_mm512_insertf32x4(_mm512_insertf32x4(_mm512_castps128_ps512(LANE(p)),      \
                                                             LANE((p) + (d)), 1),                  \
                                          LANE((p) + 2 * (d)), 2),                                 \
                       LANE((p) + 3 * (d)), 3)

/* In each lane, column j of the four vectors. */
#define LOW(op, a, b)  op##_unpacklo_ps(a, b)
#define HIGH(op, a, b) op##_unpackhi_ps(a, b)
#define FIRST(op, vec, d, a, b)                                                                    \
    op##_castpd_ps(op##_unpacklo_pd(op##_castps_pd(a), op##_castps_pd(b)))
#define SECOND(op, vec, d, a, b)                                                                   \
    op##_castpd_ps(op##_unpackhi_pd(op##_castps_pd(a), op##_castps_pd(b)))
#define TRANSPOSE4(op, r, t)                                                                       \
    do {                                                                                           \
        const __typeof__((r)[0]) l01_ = LOW(op, (r)[0], (r)[1]), l23_ = LOW(op, (r)[2], (r)[3]);   \
        const __typeof__((r)[0]) h01_ = HIGH(op, (r)[0], (r)[1]), h23_ = HIGH(op, (r)[2], (r)[3]); \
                                                                                                   \
        (t)[0] = FIRST(op, , , l01_, l23_);                                                        \
        (t)[1] = SECOND(op, , , l01_, l23_);                                                       \
        (t)[2] = FIRST(op, , , h01_, h23_);                                                        \
        (t)[3] = SECOND(op, , , h01_, h23_);                                                       \
    } while (0)

#define TRANSPOSE_F32(op, r, x, w)                                                                 \
    do {                                                                                           \
        __typeof__((r)[0]) t_[4];                                                                  \
                                                                                                   \
        TRANSPOSE4(op, r, t_);                                                                     \
        UNROLL for (int j_ = 0; j_ < 4; j_++)(x)[j_][w] = t_[j_];                                  \
    } while (0)
/* A pair is the even k in the low half, the odd one in the high half. */
#define TRANSPOSE_BF16(op, r, x, w, castto, castfrom, shift, mask)                                 \
    do {                                                                                           \
        __typeof__((r)[0]) t_[4];                                                                  \
                                                                                                   \
        TRANSPOSE4(op, r, t_);                                                                     \
        UNROLL for (int j_ = 0; j_ < 4; j_++)                                                      \
        {                                                                                          \
            (x)[2 * j_][w] = castfrom(shift(castto(t_[j_]), 16));                                  \
            (x)[2 * j_ + 1][w] = castfrom(mask(castto(t_[j_])));                                   \
        }                                                                                          \
    } while (0)
#define UPPER512(v)                _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000))
#define UPPER256(v)                _mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000))
#define TRANSPOSE_F32_512(r, x, w) TRANSPOSE_F32(_mm512, r, x, w)
#define TRANSPOSE_F32_256(r, x, w) TRANSPOSE_F32(_mm256, r, x, w)
#define TRANSPOSE_BF16_512(r, x, w)                                                                \
    TRANSPOSE_BF16(_mm512, r, x, w, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_slli_epi32,   \
                   UPPER512)
#define TRANSPOSE_BF16_256(r, x, w)                                                                \
    TRANSPOSE_BF16(_mm256, r, x, w, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_slli_epi32,   \
                   UPPER256)

/* --- functions per vector width ------------------------------------------------------------ */

#define ROWS(width, isa, op, vec, V, H)                                                            \
    TRANSPOSED(turned_f32_##width##_##H, isa, op, vec, V, H, float, 4, LANES##width,               \
               TRANSPOSE_F32_##width)                                                              \
    TRANSPOSED(turned_bf16_##width##_##H, isa, op, vec, V, H, uint16_t, 8, LANES##width,           \
               TRANSPOSE_BF16_##width)
#define WIDTH(width, isa, op, vec, V)                                                              \
    STRAIGHT(straight_f32_##width, isa, op, vec, V, float, F##width)                               \
    STRAIGHT(straight_bf16_##width, isa, op, vec, V, uint16_t, B##width)                           \
    ROWS(width, isa, op, vec, V, 1)                                                                \
    ROWS(width, isa, op, vec, V, 2)                                                                \
    ROWS(width, isa, op, vec, V, 4)                                                                \
    ROWS(width, isa, op, vec, V, 8)

WIDTH(512, "avx512f", _mm512, __m512, 16)
WIDTH(256, "avx2,fma", _mm256, __m256, 8)

/* Per type; transposed for 1, 2, 4 or 8 rows. */
typedef struct skinny_kernels {
    straight_fn *straight[2];
    transposed_fn *turned[2][4];
} skinny_kernels;
#define BY_ROWS(name)                                                                              \
    {                                                                                              \
        name##_1, name##_2, name##_4, name##_8                                                     \
    }
#define KERNELS(width)                                                                             \
    {                                                                                              \
        {straight_f32_##width, straight_bf16_##width},                                             \
        {                                                                                          \
            BY_ROWS(turned_f32_##width), BY_ROWS(turned_bf16_##width)                              \
        }                                                                                          \
    }
static const skinny_kernels kernels_avx512 = KERNELS(512), kernels_avx2 = KERNELS(256);

static const skinny_kernels *kernels_for_cpu(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &kernels_avx2;
    return NULL;
}

/* --- GEMM ---------------------------------------------------------------------------------- */

typedef struct skinny_args {
    const skinny_kernels *by;
    d9d_dtype bt;
    int64_t m, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a;
} skinny_args;

/* COLS columns of the product, which are rows of B. */
static void gemm_transposed(const skinny_args *p, const char *b, float *c)
{
    const int64_t size = d9d_dtype_size(p->bt);
    transposed_fn *const *by = p->by->turned[p->bt != D9D_F32];
    float y[MAX_ROWS * COLS];

    for (int64_t k = 0; k < p->k; k += PANEL)
        for (int64_t i = 0, rows; i < p->m; i += rows) {
            const int64_t left = p->m - i;
            const int which = left >= 8 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;

            rows = 1 << which;
            by[which](d9di_i64_min(p->k - k, PANEL), p->a + i * p->lda + k, p->lda, b + k * size,
                      p->ldb * size, y);
            d9di_sgemm_tile_store(c + i * p->ldc, p->ldc, y, COLS, rows, COLS, p->alpha,
                                  k == 0 ? p->beta : 1.0f);
        }
}

/* At most STRAIGHT_COLS columns. */
static void gemm_straight(const skinny_args *p, const char *b, int64_t cols, float *c)
{
    straight_fn *by = p->by->straight[p->bt != D9D_F32];
    float y[STRAIGHT_COLS];

    for (int64_t k = 0; k < p->k; k += PANEL)
        for (int64_t i = 0; i < p->m; i++) {
            memset(y, 0, sizeof(y));
            by(d9di_i64_min(p->k - k, PANEL), p->a + i * p->lda + k,
               b + k * p->ldb * (int64_t)d9d_dtype_size(p->bt), p->ldb, cols, y);
            d9di_sgemm_tile_store(c + i * p->ldc, p->ldc, y, STRAIGHT_COLS, 1, cols, p->alpha,
                                  k == 0 ? p->beta : 1.0f);
        }
}

int64_t d9di_sgemm_skinny(d9d_dtype bt, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const void *b, int64_t ldb, float beta,
                          float *c, int64_t ldc)
{
    const skinny_args p = {kernels_for_cpu(), bt, m, k, lda, ldb, ldc, alpha, beta, a};
    const int64_t size = d9d_dtype_size(bt), whole = n - n % COLS;
    const char *from = b;

    if (m > MAX_ROWS || k == 0 || p.by == NULL)
        return 0;
    for (int64_t j = 0, cols; j < whole; j += cols) {
        cols = trans_b ? COLS : d9di_i64_min(whole - j, STRAIGHT_COLS);
        if (trans_b)
            gemm_transposed(&p, from + j * ldb * size, c + j);
        else
            gemm_straight(&p, from + j * size, cols, c + j);
    }
    return whole;
}

#else

int64_t d9di_sgemm_skinny(d9d_dtype bt, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const void *b, int64_t ldb, float beta,
                          float *c, int64_t ldc)
{
    (void)bt, (void)trans_b, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda, (void)b,
        (void)ldb, (void)beta, (void)c, (void)ldc;
    return 0;
}

#endif
