/* dtype.h - element types, their names in safetensors files, and rounding to 16 bits. */
#ifndef D9D_BASE_DTYPE_H
#define D9D_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, bytes, safetensors word, configuration word.  Values are part of the ABI. */
#define D9D_DTYPE_MAP(X)                                                                           \
    X(F32, 4, "F32", "float32")                                                                    \
    X(BF16, 2, "BF16", "bfloat16")                                                                 \
    X(F16, 2, "F16", "float16")                                                                    \
    X(F64, 8, "F64", "float64")                                                                    \
    X(I64, 8, "I64", "int64")                                                                      \
    X(I32, 4, "I32", "int32")                                                                      \
    X(I16, 2, "I16", "int16")                                                                      \
    X(I8, 1, "I8", "int8")                                                                         \
    X(U64, 8, "U64", "uint64")                                                                     \
    X(U32, 4, "U32", "uint32")                                                                     \
    X(U16, 2, "U16", "uint16")                                                                     \
    X(U8, 1, "U8", "uint8")                                                                        \
    X(BOOL, 1, "BOOL", "bool")                                                                     \
    X(F8_E4M3, 1, "F8_E4M3", "float8_e4m3fn")                                                      \
    X(F8_E5M2, 1, "F8_E5M2", "float8_e5m2")

#define D9D_MAX_DIMS 6 /* dimensions of any tensor */

typedef enum d9d_dtype {
#define X(name, bytes, st, word) D9D_##name,
    D9D_DTYPE_MAP(X)
#undef X
        D9D_DTYPE_COUNT
} d9d_dtype;

D9D_API size_t d9d_dtype_size(d9d_dtype t);
D9D_API const char *d9d_dtype_name(d9d_dtype t);        /* "float32" */
D9D_API const char *d9d_dtype_safetensors(d9d_dtype t); /* "F32" */
/* The dtype of either name; -1 if unknown. */
D9D_API int d9d_dtype_find(const char *word);

static inline float d9d_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t d9d_bf16_from_f32(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x0040u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Without branches, so that loops vectorise.  The half's bits, moved to the position of a float's,
 * are its value times 2^-112, also for subnormals. */
static inline float d9d_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, u = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t bits;
    float f;

    memcpy(&f, &u, sizeof(f));
    f *= 5.192296858534828e33f;
    memcpy(&bits, &f, sizeof(bits));
    bits = sign | ((h & 0x7c00u) == 0x7c00u ? u | 0x7f800000u : bits);
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest even; above 65504 plus half a step becomes infinity.  Adding 0.5 makes a float's
 * step that of subnormal halves. */
static inline uint16_t d9d_f16_from_f32(float f)
{
    uint32_t u, h, small, sign;
    float shifted;

    memcpy(&u, &f, sizeof(u));
    sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    memcpy(&shifted, &u, sizeof(shifted));
    shifted += 0.5f;
    memcpy(&small, &shifted, sizeof(small));
    h = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
    h = u < 0x38800000u ? small - 0x3f000000u : h;
    h = u >= 0x477ff000u ? 0x7c00u : h;
    h = u > 0x7f800000u ? 0x7e00u | ((u >> 13) & 0x3ffu) : h;
    return (uint16_t)(sign | h);
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_DTYPE_H */
