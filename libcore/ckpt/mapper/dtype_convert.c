/* dtype_convert.c - see dtype_convert.h.  One table row per dtype: how to read it as double or
 * float and, for floating types, how to write it and which bit patterns are not finite. */
#include "ckpt/mapper/dtype_convert.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/mapper/map_graph.h"

enum { BLOCK = 2048 };

/* --- small formats ------------------------------------------------------------ */

/* Decodes sign, exponent and mantissa bits.  `ieee`: the largest exponent means infinity or NaN;
 * otherwise it is a number. */
static float small_to_float(unsigned bits, int exp_bits, int man_bits, bool ieee)
{
    int bias = (1 << (exp_bits - 1)) - 1;
    int e = (int)(bits >> man_bits) & ((1 << exp_bits) - 1);
    int m = (int)bits & ((1 << man_bits) - 1);
    bool top = e == (1 << exp_bits) - 1;
    float v;

    if (ieee && top)
        v = m == 0 ? INFINITY : NAN;
    else if (!ieee && top && m == (1 << man_bits) - 1)
        v = NAN;
    else
        v = ldexpf((float)(e == 0 ? m : m + (1 << man_bits)), (e == 0 ? 1 : e) - bias - man_bits);
    return (bits >> (exp_bits + man_bits)) != 0 ? -v : v;
}

/* --- the table ------------------------------------------------------------------- */

/* Loops over n elements; X is the expression of one element v. */
#define READER(name, T, R, X)                                                                      \
    static void name(const void *src, R *dst, size_t n)                                            \
    {                                                                                              \
        const unsigned char *p = src;                                                              \
        T v;                                                                                       \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(&v, p + i * sizeof(v), sizeof(v));                                              \
            dst[i] = (R)(X);                                                                       \
        }                                                                                          \
    }
#define WRITER(name, T, X)                                                                         \
    static void name(const float *src, void *dst, size_t n)                                        \
    {                                                                                              \
        unsigned char *p = dst;                                                                    \
        T v;                                                                                       \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            float x = src[i];                                                                      \
                                                                                                   \
            v = (T)(X);                                                                            \
            memcpy(p + i * sizeof(v), &v, sizeof(v));                                              \
        }                                                                                          \
    }

READER(f32_float, float, float, v)
READER(f64_float, double, float, v)
READER(bf16_float, uint16_t, float, d9d_bf16_to_f32(v))
READER(f16_float, uint16_t, float, d9d_f16_to_f32(v))
READER(e4m3_float, uint8_t, float, small_to_float(v, 4, 3, false))
READER(e5m2_float, uint8_t, float, small_to_float(v, 5, 2, true))
READER(f64_double, double, double, v)
READER(i64_double, int64_t, double, v)
READER(i32_double, int32_t, double, v)
READER(i16_double, int16_t, double, v)
READER(i8_double, int8_t, double, v)
READER(u64_double, uint64_t, double, v)
READER(u32_double, uint32_t, double, v)
READER(u16_double, uint16_t, double, v)
READER(u8_double, uint8_t, double, v)
WRITER(float_f32, float, x)
WRITER(float_f64, double, x)
WRITER(float_bf16, uint16_t, d9d_bf16_from_f32(x))
WRITER(float_f16, uint16_t, d9d_f16_from_f32(x))

static const struct {
    void (*to_float)(const void *src, float *dst, size_t n);   /* floating types */
    void (*to_double)(const void *src, double *dst, size_t n); /* other types, and float64 */
    void (*from_float)(const float *src, void *dst, size_t n); /* types to cast to */
    uint64_t nonfinite; /* all of these bits set: NaN or infinity; 0: never */
    double largest;     /* largest finite result of a cast, which goes through float */
} float_types[D9D_DTYPE_COUNT] = {
    [D9D_F32] = {f32_float, NULL, float_f32, 0x7f800000u, 0x1.fffffep127},
    [D9D_BF16] = {bf16_float, NULL, float_bf16, 0x7f80u, 0x1.fep127},
    [D9D_F16] = {f16_float, NULL, float_f16, 0x7c00u, 65504},
    [D9D_F64] = {f64_float, f64_double, float_f64, 0x7ff0000000000000u, 0x1.fffffep127},
    [D9D_F8_E4M3] = {e4m3_float, NULL, NULL, 0x7fu, 0},
    [D9D_F8_E5M2] = {e5m2_float, NULL, NULL, 0x7cu, 0},
    [D9D_I64] = {NULL, i64_double, NULL, 0, 0},
    [D9D_I32] = {NULL, i32_double, NULL, 0, 0},
    [D9D_I16] = {NULL, i16_double, NULL, 0, 0},
    [D9D_I8] = {NULL, i8_double, NULL, 0, 0},
    [D9D_U64] = {NULL, u64_double, NULL, 0, 0},
    [D9D_U32] = {NULL, u32_double, NULL, 0, 0},
    [D9D_U16] = {NULL, u16_double, NULL, 0, 0},
    [D9D_U8] = {NULL, u8_double, NULL, 0, 0},
    [D9D_BOOL] = {NULL, u8_double, NULL, 0, 0},
};

bool d9di_cast_is_float(d9d_dtype t)
{
    return float_types[t].to_float != NULL;
}

bool d9di_cast_is_supported(d9d_dtype from, d9d_dtype to)
{
    return float_types[from].to_float != NULL && float_types[to].from_float != NULL;
}

static bool has_nonfinite(const void *src, d9d_dtype t, size_t n);

bool d9di_cast_chain(const void *src, d9d_dtype from, const d9d_dtype *casts, int n_casts,
                     void *dst, size_t n)
{
    d9d_dtype to = casts[n_casts - 1];
    float x[BLOCK];
    unsigned char rounded[BLOCK * sizeof(double)];
    bool nonfinite = false;

    for (size_t at = 0; at < n; at += BLOCK) {
        size_t k = n - at < BLOCK ? n - at : BLOCK;

        float_types[from].to_float((const unsigned char *)src + at * d9d_dtype_size(from), x, k);
        for (int c = 0; c + 1 < n_casts; c++) {
            float_types[casts[c]].from_float(x, rounded, k);
            float_types[casts[c]].to_float(rounded, x, k);
        }
        float_types[to].from_float(x, (unsigned char *)dst + at * d9d_dtype_size(to), k);
        nonfinite |= has_nonfinite((unsigned char *)dst + at * d9d_dtype_size(to), to, k);
    }
    return nonfinite;
}

void d9di_cast_to_f64(const void *src, d9d_dtype t, double *dst, size_t n)
{
    float x[BLOCK];

    if (float_types[t].to_double != NULL) {
        float_types[t].to_double(src, dst, n);
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t k = n - at < BLOCK ? n - at : BLOCK;

        float_types[t].to_float((const unsigned char *)src + at * d9d_dtype_size(t), x, k);
        for (size_t i = 0; i < k; i++)
            dst[at + i] = (double)x[i];
    }
}

/* True if any element in n bytes, `width` bytes each, has all bits of the mask set.  Tests eight
 * bytes at a time.  A lane's missing mask bits, minus one, borrow from its own high bit only if no
 * bit is missing; the mask never includes that bit. */
static bool any_nonfinite(const unsigned char *p, size_t n, size_t width, uint64_t mask)
{
    const uint64_t ones = width == 8 ? 1 : UINT64_MAX / ((UINT64_C(1) << 8 * width) - 1);
    const uint64_t masks = mask * ones, highs = ones << (8 * width - 1);
    uint64_t hit = 0;

#pragma omp simd reduction(| : hit)
    for (size_t i = 0; i < n / sizeof(uint64_t); i++) {
        uint64_t w;

        memcpy(&w, p + i * sizeof(w), sizeof(w));
        hit |= (~w & masks) - ones;
    }
    return (hit & highs) != 0;
}

static bool has_nonfinite(const void *src, d9d_dtype t, size_t n)
{
    const size_t width = d9d_dtype_size(t), whole = n - n % sizeof(uint64_t);

    return float_types[t].nonfinite != 0 &&
           (any_nonfinite(src, whole * width, width, float_types[t].nonfinite) ||
            d9di_cast_first_nonfinite((const unsigned char *)src + whole * width, t, n - whole) <
                n - whole);
}

double d9di_cast_max_finite(d9d_dtype t)
{
    return float_types[t].largest;
}

d9di_cast_overflow d9di_cast_overflow_find(const double *exact, d9d_dtype t, size_t n, void *cast,
                                           double limit)
{
    const size_t width = d9d_dtype_size(t);
    unsigned char *p = cast;
    d9di_cast_overflow found = {0};

    for (size_t i = 0; i < n; i++) {
        const float end = (float)copysign(limit, exact[i]);

        if (!isfinite(exact[i]) || d9di_cast_first_nonfinite(p + i * width, t, 1) == 1)
            continue;
        found.n++;
        found.largest = fabs(exact[i]) > found.largest ? fabs(exact[i]) : found.largest;
        if (limit > 0)
            float_types[t].from_float(&end, p + i * width, 1);
    }
    return found;
}

size_t d9di_cast_first_nonfinite(const void *src, d9d_dtype t, size_t n)
{
    const unsigned char *p = src;
    const uint64_t mask = float_types[t].nonfinite;
    const size_t width = d9d_dtype_size(t);

    for (size_t at = 0; at < n && mask != 0; at += BLOCK) {
        const size_t k = n - at < BLOCK ? n - at : BLOCK;

        if (k == BLOCK && !any_nonfinite(p + at * width, BLOCK * width, width, mask))
            continue;
        for (size_t i = at; i < at + k; i++) {
            uint64_t v = 0;

            memcpy(&v, p + i * width, width);
            if ((v & mask) == mask)
                return i;
        }
    }
    return n;
}
