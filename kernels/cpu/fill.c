/* fill.c - y = v. */
#include "cpu/common.h"

#define FILL(type, value)                                                                          \
    do {                                                                                           \
        type v_ = (value);                                                                         \
        for (int64_t i_ = 0; i_ < n; i_++)                                                         \
            ((type *)y)[i_] = v_;                                                                  \
    } while (0)

d9d_status d9d_ref_fill(d9d_stream s, d9d_dtype t, void *y, int64_t n, float v)
{
    (void)s;
    switch (t) {
    case D9D_F32: FILL(float, v); return D9D_OK;
    case D9D_BF16: FILL(uint16_t, d9d_bf16_from_f32(v)); return D9D_OK;
    case D9D_I16: FILL(int16_t, (int16_t)v); return D9D_OK;
    case D9D_I8: FILL(int8_t, (int8_t)v); return D9D_OK;
    case D9D_U8: FILL(uint8_t, (uint8_t)v); return D9D_OK;
    case D9D_F64: FILL(double, v); return D9D_OK;
    case D9D_I32: FILL(int32_t, (int32_t)v); return D9D_OK;
    case D9D_I64: FILL(int64_t, (int64_t)v); return D9D_OK;
    default: return D9D_FAIL(D9D_EINVAL, "fill: cannot fill an array of %s", d9d_dtype_name(t));
    }
}
