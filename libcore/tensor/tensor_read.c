/* tensor_read.c - conversion of elements of any dtype to float on the host.  See
 * d9d/tensor/tensor.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/tensor/tensor.h"

/* sign, `e` exponent bits, `m` mantissa bits; E4M3FN has no infinity and one NaN. */
static float small_float(unsigned bits, int e, int m, bool infinities)
{
    const int bias = (1 << (e - 1)) - 1, top = (1 << e) - 1;
    const int exponent = (int)(bits >> m) & top;
    const int mantissa = (int)bits & ((1 << m) - 1);
    float v;

    if (exponent == top && (infinities || mantissa == (1 << m) - 1))
        v = infinities && mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        v = ldexpf((float)mantissa, 1 - bias - m);
    else
        v = ldexpf((float)(mantissa + (1 << m)), exponent - bias - m);
    return (bits >> (e + m)) & 1 ? -v : v;
}

/* One function for each dtype: element i of p.  p is aligned as malloc()'s memory is. */
#define PLAIN(name, type)                                                                          \
    static float from_##name(const void *p, int64_t i)                                             \
    {                                                                                              \
        return (float)((const type *)p)[i];                                                        \
    }
PLAIN(F32, float)
PLAIN(F64, double)
PLAIN(I64, int64_t)
PLAIN(I32, int32_t)
PLAIN(I16, int16_t)
PLAIN(I8, int8_t)
PLAIN(U64, uint64_t)
PLAIN(U32, uint32_t)
PLAIN(U16, uint16_t)
PLAIN(U8, uint8_t)
#undef PLAIN

static float from_BOOL(const void *p, int64_t i)
{
    return ((const uint8_t *)p)[i] != 0;
}

static float from_BF16(const void *p, int64_t i)
{
    return d9d_bf16_to_f32(((const uint16_t *)p)[i]);
}

static float from_F16(const void *p, int64_t i)
{
    return d9d_f16_to_f32(((const uint16_t *)p)[i]);
}

static float from_F8_E4M3(const void *p, int64_t i)
{
    return small_float(((const uint8_t *)p)[i], 4, 3, false);
}

static float from_F8_E5M2(const void *p, int64_t i)
{
    return small_float(((const uint8_t *)p)[i], 5, 2, true);
}

void d9d_tensor_elements_to_f32(d9d_dtype dtype, const void *host, int64_t n, float *out)
{
    static float (*const from[D9D_DTYPE_COUNT])(const void *, int64_t) = {
#define X(name, bytes, st, word) from_##name,
        D9D_DTYPE_MAP(X)
#undef X
    };

    for (int64_t i = 0; i < n; i++)
        out[i] = from[dtype](host, i);
}

d9d_status d9d_tensor_to_f32(const d9d_tensor *t, float *host)
{
    const uint64_t bytes = d9d_tensor_bytes(t);
    const int64_t n = d9d_tensor_numel(t);
    d9d_device *dev = d9d_tensor_device(t);
    void *raw;
    d9d_status st;

    if (dev == NULL)
        return D9D_FAIL(D9D_EINVAL, "a tensor without storage has no elements to read");
    if (t->dtype == D9D_F32)
        return d9d_device_download(dev, host, d9d_tensor_data(t), bytes);
    raw = malloc(bytes > 0 ? bytes : 1);
    if (raw == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to read %llu bytes of a tensor",
                        (unsigned long long)bytes);
    st = d9d_device_download(dev, raw, d9d_tensor_data(t), bytes);
    if (st == D9D_OK)
        d9d_tensor_elements_to_f32(t->dtype, raw, n, host);
    free(raw);
    return st;
}
