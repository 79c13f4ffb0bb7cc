/* dequant_bytes.h - matrices of bytes, e4m3 or integers, that have a scale for each block.
 *
 * R rows, C columns; a matrix may be one of several, [..., R, C], each with scales of its own.  A
 * method says what the 256 bytes mean with a scale.
 */
#ifndef D9DI_CKPT_QUANT_DEQUANT_BYTES_H
#define D9DI_CKPT_QUANT_DEQUANT_BYTES_H

#include "ckpt/quant/dequant_method.h"
#include "ckpt/quant/dequant_numbers.h"

/* The scales [rows, columns] of each of the matrices [R, C]. */
typedef struct d9di_dequant_grid {
    int64_t R, C;
    int64_t block_rows, block_columns;
    int64_t rows, columns;
} d9di_dequant_grid;

/* By the shape of the values and the item's block. */
d9di_dequant_grid d9di_dequant_grid_of(const d9di_dequant_item *p);

/* Of methods that have `bytes`.  Check scales of this grid, or one of a whole matrix without
 * dimensions, or with one; the decoded shape is that of the values.  EFORMAT. */
d9d_status d9di_dequant_bytes_shape(d9di_dequant_item *p, d9d_arena *a);
/* The values must be F8_E4M3. */
d9d_status d9di_dequant_fp8_shape(d9di_dequant_item *p, d9d_arena *a);
/* Must a tensor of this type have scales? */
bool d9di_dequant_is_fp8(d9d_dtype type);

/* What the 256 bytes mean: the product in float32. */
void d9di_dequant_bytes_product(const d9di_dequant_item *p, float scale, float out[256]);

/* Decode n elements from element `first` on. */
d9d_status d9di_dequant_bytes_read(const d9di_dequant_item *p, uint64_t first, uint64_t n,
                                   void *dst);
void d9di_dequant_bytes_span(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                             uint64_t *bytes);

#endif /* D9DI_CKPT_QUANT_DEQUANT_BYTES_H */
