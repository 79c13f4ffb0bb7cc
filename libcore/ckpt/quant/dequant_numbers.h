/* dequant_numbers.h - numbers of eight and four bits, by their bits. */
#ifndef D9DI_CKPT_QUANT_DEQUANT_NUMBERS_H
#define D9DI_CKPT_QUANT_DEQUANT_NUMBERS_H

#include <stdint.h>

#include "d9d/base/dtype.h"

/* The number that a byte of this type, F8_E4M3 or I8, means. */
float d9di_dequant_byte(d9d_dtype type, int byte);

/* FP4: a sign, two bits of exponent with bias 1, one of mantissa. */
extern const float d9di_dequant_e2m1[16];

/* A scale of the OCP Microscaling Formats: 2^(bits - 127); 255 is infinity, as by transformers. */
float d9di_dequant_e8m0(uint8_t bits);

#endif /* D9DI_CKPT_QUANT_DEQUANT_NUMBERS_H */
