/* dequant_codes.h - matrices of codes of two to eight bits along their rows, the lowest bits of a
 * byte first, that have a scale for each group of a row, and perhaps a zero.
 *
 * R rows, C columns, groups of the item's block[1]; a code has d9d_quantization.bits.  A method
 * says what the codes mean with a scale and a zero.
 */
#ifndef D9DI_CKPT_QUANT_DEQUANT_CODES_H
#define D9DI_CKPT_QUANT_DEQUANT_CODES_H

#include "ckpt/quant/dequant_method.h"

enum { D9DI_DEQUANT_CODES = 256 /* that there are at most */ };

struct d9di_dequant_codes {
    d9d_dtype values;              /* stored type of the codes */
    const char *need;              /* what scales of other values must be, for the message */
    bool (*is_scale)(d9d_dtype t); /* type of the scales */
    d9d_dtype scale;               /* which the message names */
    /* Read the scales of n groups from group `first` on, counted through the matrix; NULL: as they
     * are stored. */
    d9d_status (*scales)(const d9di_dequant_item *p, uint64_t first, uint64_t n, float *out);
    /* Read their zeros; NULL: the middle of the codes. */
    d9d_status (*zeros)(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint8_t *out);
    /* Set what each of the codes means in a group of this scale and zero. */
    void (*numbers)(const d9di_dequant_item *p, float scale, int zero, float *out);
};

/* Of methods that have `codes`.  Values must be a matrix and scales [R, C / group]; a group of 0
 * becomes the whole row. */
d9d_status d9di_dequant_codes_shape(d9di_dequant_item *p, d9d_arena *a);
d9d_status d9di_dequant_codes_read(const d9di_dequant_item *p, uint64_t first, uint64_t n,
                                   void *dst);

#endif /* D9DI_CKPT_QUANT_DEQUANT_CODES_H */
