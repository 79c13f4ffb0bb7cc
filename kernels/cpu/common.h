/* common.h - what the kernels of the CPU backend share.
 *
 * Every kernel is written once, in float32. A block or a row of an array is read with
 * d9di_cpu_read() and written with d9di_cpu_write_ptr() and d9di_cpu_write(). For float32 these are
 * pointers into the array; for bfloat16 they convert in a buffer that stays in the cache:
 *
 *     float bx[D9DI_BLOCK], by[D9DI_BLOCK];
 *     const float *x = d9di_cpu_read(t, X, i, n, bx);    // X[i .. i + n)
 *     float *y = d9di_cpu_write_ptr(t, Y, i, by);
 *     ... y[j] = f(x[j]) ...
 *     d9di_cpu_write(t, Y, i, n, y);                     // one rounding
 *
 * Work is split at places that only sizes decide, and partial results are added in one order. So a
 * result does not depend on the number of threads.
 */
#ifndef D9DI_CPU_COMMON_H
#define D9DI_CPU_COMMON_H

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/kernel_common.h"

/* Every entry of the tables, d9d_ref_<op>, declared with its type there. */
#define DECLARE(family, member, op)                                                                \
    extern __typeof__(*((d9d_##family##_kernels *)0)->member) d9d_ref_##op;
#define FAMILY(family, list) list(DECLARE)
D9D_KERNEL_FAMILIES(FAMILY)
#undef FAMILY
#undef DECLARE

/* Function multiversioning: loops marked so are compiled for several instruction sets, and one is
 * chosen when the library is loaded. No clone contracts a*b+c, so all give the same bits. `omp
 * simd` on a loop says that its output may be one of its inputs, but not overlap one otherwise. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define D9DI_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define D9DI_CLONES
#endif

enum {
    D9DI_BLOCK = 1024,             /* elements of an elementwise block */
    D9DI_MIN_PARALLEL = 32 * 1024, /* less work than this many elements starts no threads */
    D9DI_MAX_PARTS = 256           /* most partial results of a reduction */
};

/* Sixteen floats; loads need no alignment. */
typedef float d9di_cpu_v16 __attribute__((vector_size(64), aligned(4), may_alias));

void d9di_cpu_from_bf16(float *y, const uint16_t *x, int64_t n);
void d9di_cpu_to_bf16(uint16_t *y, const float *x, int64_t n);

static inline const float *d9di_cpu_read(d9d_dtype t, const void *x, int64_t i, int64_t n,
                                         float *buf)
{
    if (t == D9D_F32)
        return (const float *)x + i;
    d9di_cpu_from_bf16(buf, (const uint16_t *)x + i, n);
    return buf;
}
static inline float *d9di_cpu_write_ptr(d9d_dtype t, void *y, int64_t i, float *buf)
{
    return t == D9D_F32 ? (float *)y + i : buf;
}
/* A block to be modified: in place if it is float32, else to be written back. */
static inline float *d9di_cpu_modify(d9d_dtype t, void *x, int64_t i, int64_t n, float *buf)
{
    if (t == D9D_F32)
        return (float *)x + i;
    d9di_cpu_from_bf16(buf, (const uint16_t *)x + i, n);
    return buf;
}
static inline void d9di_cpu_write(d9d_dtype t, void *y, int64_t i, int64_t n, const float *buf)
{
    if (t != D9D_F32)
        d9di_cpu_to_bf16((uint16_t *)y + i, buf, n);
}
/* Weights to be modified and written back: with residuals (d9d_adam_arrays), their master weights.
 */
float *d9di_cpu_modify_weights(d9d_dtype t, void *p, const int16_t *residual, int64_t i, int64_t n,
                               float *buf);
void d9di_cpu_write_weights(d9d_dtype t, void *p, int16_t *residual, int64_t i, int64_t n,
                            const float *buf);
/* Copies between an array of any type and float32. */
void d9di_cpu_load(d9d_dtype t, float *y, const void *x, int64_t i, int64_t n);
void d9di_cpu_store(d9d_dtype t, void *y, int64_t i, int64_t n, const float *x);
/* y[i..] = beta y[i..] + x, rounded once. */
void d9di_cpu_store_add(d9d_dtype t, void *y, int64_t i, int64_t n, float beta, const float *x);

/* Scratch of 64-byte aligned floats, which the caller frees. NULL, with ENOMEM recorded, if memory
 * is out. */
float *d9di_cpu_scratch_alloc(const char *op, int64_t n);
/* The same, n floats for each thread of the parallel region that follows. Inside it,
 * d9di_cpu_scratch_of_thread() returns the calling thread's part. */
float *d9di_cpu_scratch_alloc_threads(const char *op, int64_t n);
float *d9di_cpu_scratch_of_thread(float *scratch, int64_t n);

/* Rows of n floats. Sums run in sixteen lanes, which are reduced in one order. */
float d9di_cpu_row_sum(const float *x, int64_t n);
float d9di_cpu_row_dot(const float *x, const float *y, int64_t n);
float d9di_cpu_row_max(const float *x, int64_t n);
void d9di_cpu_row_axpy(float *y, float a, const float *x, int64_t n);  /* y += a x */
void d9di_cpu_row_scale(float *y, float a, const float *x, int64_t n); /* y = a x */
/* y = exp(x - m); returns its sum. y may be x. */
float d9di_cpu_row_exp(float *y, const float *x, float m, int64_t n);
/* y = cap tanh(x / cap), or x if cap is 0. y may be x. */
void d9di_cpu_row_softcap(float *y, float cap, const float *x, int64_t n);

/* C = alpha op(A) op(B) + beta C, row-major, on the calling thread only. An element's bits depend
 * only on its row of op(A) and its column of op(B). `workspace` has d9di_sgemm_scratch() floats for
 * the same sizes, or for larger ones. */
void d9di_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                int64_t ldc, float *workspace);
int64_t d9di_sgemm_scratch(int64_t m, int64_t n, int64_t k);

/* Several GEMMs that share types and layout, as one pool of tiles over all threads. Each is dense:
 * op(A) [m, k], op(B) [k, n], C [m, n], as in d9d_gemm. */
typedef struct d9di_gemm_desc {
    d9d_dtype at, bt, ct;
    bool trans_a, trans_b;
    float alpha, beta;
} d9di_gemm_desc;
typedef struct d9di_gemm_job {
    const void *a, *b;
    void *c;
    int64_t m, n, k;
    const void *a2, *b2; /* a second product, added before C is rounded, or NULL */
    const void *bias;    /* of the columns, added before C is rounded, or NULL */
} d9di_gemm_job;
d9d_status d9di_gemm_run(const char *op, const d9di_gemm_desc *desc, const d9di_gemm_job *jobs,
                         int64_t n_jobs);

/* y [rows, k] = the values of rows from `first` on, elements from `from` on. */
void d9di_cpu_fp8_dequantise(const d9d_fp8_operand *x, int64_t first, int64_t rows, int64_t from,
                             int64_t k, float *y);

/* EINVAL unless the offsets of E experts ascend from 0 to `rows`. */
d9d_status d9di_cpu_offsets_check(const char *op, const int32_t *offset, int64_t rows, int64_t e);

/* out[j] = d9d_rng_u32(r, index + j). */
void d9di_cpu_random_bits(uint32_t *out, d9d_rng r, uint64_t index, int64_t n);

#endif /* D9DI_CPU_COMMON_H */
