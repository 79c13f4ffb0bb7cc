/* sgemm.h - what the float32 GEMM and the skinny GEMM share. */
#ifndef D9DI_CPU_SGEMM_H
#define D9DI_CPU_SGEMM_H

#include "cpu/common.h"

enum {
    D9DI_SGEMM_COLS = 32,  /* columns of a tile */
    D9DI_SGEMM_PANEL = 256 /* depth of a panel, whose sum is added to C at once */
};

/* c = alpha tile + beta c. */
void d9di_sgemm_tile_store(float *c, int64_t ldc, const float *tile, int64_t ld, int64_t rows,
                           int64_t cols, float alpha, float beta);

/* The first columns of a GEMM of a few rows, with the bits of d9di_sgemm() and without packing B:
 * at memory bandwidth. A is [m, k]; B of type bt begins at element b. Returns the number of columns
 * computed; 0 if there are many rows, or if this processor is not supported. */
int64_t d9di_sgemm_skinny(d9d_dtype bt, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const void *b, int64_t ldb, float beta,
                          float *c, int64_t ldc);

#endif /* D9DI_CPU_SGEMM_H */
