/* sgemm.h - what the ways to make a product share. */
#ifndef D9DI_CPU_SGEMM_H
#define D9DI_CPU_SGEMM_H

#include "cpu/common.h"

enum {
    D9DI_SGEMM_COLS = 32,  /* of a tile */
    D9DI_SGEMM_PANEL = 256 /* of k, whose sum goes to C at once */
};

/* c = alpha tile + beta c. */
void d9di_sgemm_tile_store(float *c, int64_t ldc, const float *tile, int64_t ld, int64_t rows,
                           int64_t cols, float alpha, float beta);

/* The first columns of a product of a few rows, with the bits of d9di_sgemm() and without bringing
 * B into another order: at the speed of memory.  A is [m, k], B of type bt begins at element b.
 * Returns how many columns were made; 0 where there are many rows,
 * or where this processor is not known. */
int64_t d9di_sgemm_skinny(d9d_dtype bt, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const void *b, int64_t ldb, float beta,
                          float *c, int64_t ldc);

#endif /* D9DI_CPU_SGEMM_H */
