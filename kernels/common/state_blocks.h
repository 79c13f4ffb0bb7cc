/* state_blocks.h - optimizer states in 8 bits by blocks: a code per element, a scale per block.
 * Shared by the CPU and CUDA.
 *
 * A block is D9D_STATE_BLOCK elements of a row, which is the last dimension; a row's last block may
 * be shorter.  Its scale is the largest magnitude in it, rounded up to bfloat16.  With c the code,
 *
 *     first moment    int8   m = scale c |c| / 127^2         the signed square root is linear in c
 *     second moment   uint8  v = scale (c / 255)^4           so is the square root of sqrt(v)
 *
 * m and sqrt(v), whose quotient is the update, thus have steps in the same proportion to their
 * size, from 1.6 % and 0.8 % at the largest of a block.  A number between two codes takes either,
 * with the probability that makes its mean exact.  A second moment above zero has a code above
 * zero: no update divides by epsilon alone. */
#ifndef D9DI_COMMON_STATE_BLOCKS_H
#define D9DI_COMMON_STATE_BLOCKS_H

#include <math.h>
#include <string.h>

#include "common/kernel_common.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9DI_STATE_M (1.0f / (127.0f * 127.0f))
#define D9DI_STATE_V (1.0f / (255.0f * 255.0f))

/* The scale of a block whose largest magnitude is x >= 0: the bits of the smallest bfloat16 that is
 * at least x; NaN stays NaN.  Below 2^-100, which no epsilon leaves a trace of, it is 0. */
D9DI_HOST_DEVICE static inline uint16_t d9di_state_scale_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    if (u < 27u << 23)
        return 0;
    return (uint16_t)((u > 0x7f800000u ? u | 0x00400000u : u + 0xffffu) >> 16);
}
/* What elements are multiplied by before they become codes. */
D9DI_HOST_DEVICE static inline float d9di_state_inverse(float scale)
{
    return scale > 0 ? 1.0f / scale : 0;
}

D9DI_HOST_DEVICE static inline float d9di_state_m(int code, float scale)
{
    return (float)(code * (code < 0 ? -code : code)) * D9DI_STATE_M * scale;
}
D9DI_HOST_DEVICE static inline float d9di_state_v(int code, float scale)
{
    const float r = (float)(code * code) * D9DI_STATE_V;

    return r * r * scale;
}

/* A root whose integer part may be off by one where it is nearly whole: the remainder then decides
 * as it should. */
D9DI_HOST_DEVICE static inline float d9di_state_root(float x)
{
#ifdef __CUDA_ARCH__
    float y;

    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sqrtf(x);
#endif
}

/* The code of x, for 16 random bits. */
D9DI_HOST_DEVICE static inline int d9di_state_m_code(float x, float inverse, uint32_t bits)
{
    const float square = (x < 0 ? -x : x) * inverse * (127.0f * 127.0f),
                root = d9di_state_root(square);
    const int c = (int)(root < 127.0f ? root : 127.0f);
    const float above = square - (float)(c * c), gap = (float)(2 * c + 1);
    const int code = c + (c < 127 && (float)bits * gap < above * 65536.0f ? 1 : 0);

    return x < 0 ? -code : code;
}
D9DI_HOST_DEVICE static inline int d9di_state_v_code(float x, float inverse, uint32_t bits)
{
    const float fourth = x * inverse * (255.0f * 255.0f * 255.0f * 255.0f);
    const float root = d9di_state_root(d9di_state_root(fourth));
    const int c = (int)(root < 255.0f ? root : 255.0f);
    const float low = (float)(c * c), high = (float)((c + 1) * (c + 1));
    const float above = fourth - low * low, gap = high * high - low * low;
    const int code = c + (c < 255 && (float)bits * gap < above * 65536.0f ? 1 : 0);

    return code == 0 && x * inverse > 0 ? 1 : code;
}

/* EINVAL unless a box of 8-bit states begins and ends with blocks. */
d9d_status d9di_args_check_state_box(const char *op, const d9d_optim_arrays *a, int states,
                                     int ndim, const int64_t *box, const int64_t *start,
                                     const int64_t *whole);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_COMMON_STATE_BLOCKS_H */
