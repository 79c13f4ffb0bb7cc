/* dequant_numbers.c - see ckpt/quant/dequant_numbers.h. */
#include "ckpt/quant/dequant_numbers.h"

#include <math.h>
#include <string.h>

const float d9di_dequant_e2m1[16] = {0,   0.5f,  1,   1.5f,  2,   3,   4,   6,
                                     -0., -0.5f, -1., -1.5f, -2., -3., -4., -6.};

float d9di_dequant_e8m0(uint8_t bits)
{
    const uint32_t u = bits > 0 ? (uint32_t)bits << 23 : UINT32_C(1) << 22;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* The numbers by their bits: sign, four bits of exponent with bias 7, three of mantissa.  All ones
 * are NaN; there is no infinity. */
#define EIGHTHS(x) 8 * (x), 9 * (x), 10 * (x), 11 * (x), 12 * (x), 13 * (x), 14 * (x), 15 * (x)
static const float magnitudes[128] = {
    0,
    0x1p-9f,
    2 * 0x1p-9f,
    3 * 0x1p-9f,
    4 * 0x1p-9f,
    5 * 0x1p-9f,
    6 * 0x1p-9f,
    7 * 0x1p-9f,
    EIGHTHS(0x1p-9f),
    EIGHTHS(0x1p-8f),
    EIGHTHS(0x1p-7f),
    EIGHTHS(0x1p-6f),
    EIGHTHS(0x1p-5f),
    EIGHTHS(0x1p-4f),
    EIGHTHS(0x1p-3f),
    EIGHTHS(0x1p-2f),
    EIGHTHS(0x1p-1f),
    EIGHTHS(1.f),
    EIGHTHS(2.f),
    EIGHTHS(4.f),
    EIGHTHS(8.f),
    EIGHTHS(16.f),
    256,
    288,
    320,
    352,
    384,
    416,
    448,
    NAN,
};

float d9di_dequant_byte(d9d_dtype type, int byte)
{
    if (type == D9D_I8)
        return byte < 128 ? (float)byte : (float)(byte - 256);
    return byte < 128 ? magnitudes[byte] : -magnitudes[byte - 128];
}
