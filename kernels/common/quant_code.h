/* quant_code.h - the numbers that codes of quantised matrices stand for, shared by the CPU and
 * CUDA, and arguments of kernels that read such matrices (d9d/kernels/quant.h). */
#ifndef D9DI_COMMON_QUANT_CODE_H
#define D9DI_COMMON_QUANT_CODE_H

#include "common/kernel_common.h"

#ifdef __cplusplus
extern "C" {
#define D9DI_QUANT_CONSTEXPR constexpr
#else
#define D9DI_QUANT_CONSTEXPR inline
#endif

/* The 16 numbers of NormalFloat: quantiles of a normal distribution, scaled to -1 and 1. */
#define D9DI_QUANT_NF4_VALUES                                                                      \
    {                                                                                              \
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                  \
            -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,             \
            0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,                      \
            0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f,  \
            1.0f                                                                                   \
    }

/* Number i of the 256 of the dynamic map: negative ones, 0, positive ones, 1.  Seven decades have
 * 1, 2, 4, ... 64 numbers each, in the middles of as many equal parts of [0.1, 1) of the decade.
 * (Dettmers, 8-bit approximations for parallelism in deep learning, 2015.) */
D9DI_HOST_DEVICE static D9DI_QUANT_CONSTEXPR float d9di_quant_map(int i)
{
    const bool negative = i < 127;
    int p = negative ? 126 - i : i - 128, decade = 0;
    double power = 1e7;

    if (i == 127)
        return 0.0f;
    if (i == 255)
        return 1.0f;
    for (p += 1; p >> (decade + 1) != 0; decade++)
        power /= 10;
    /* (1 + 9 (j + 1/2) / 2^decade) / 10 times 10^(decade - 6), of integers */
    const double v = (double)((2 << decade) + 9 * (2 * (p - (1 << decade)) + 1)) /
                     ((double)(2 << decade) * power);

    return negative ? -(float)v : (float)v;
}

/* EINVAL unless w is a matrix of a known format with rows that can be read. */
d9d_status d9di_args_check_quant(const char *op, const d9d_quant_matrix *w);
/* EINVAL unless it fits the product. */
d9d_status d9di_args_check_quant_gemm(const char *op, const d9d_gemm *g, const d9d_quant_matrix *w);
/* EINVAL unless both matrices fit the layer. */
d9d_status d9di_args_check_quant_glu(const d9d_gemm_glu_dims *n, const d9d_quant_matrix *w,
                                     bool gated);

/* quant->multi() and quant->glu() from a table's other entries. */
d9d_status d9di_quant_gemm_each(const d9d_kernels *k, d9d_stream s, int n, const d9d_gemm *g,
                                const void *a, const d9d_quant_matrix *w, void *const *c);
d9d_status d9di_quant_glu_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                                void *y, void *gate, void *up, const void *x,
                                const d9d_quant_matrix *w);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_COMMON_QUANT_CODE_H */
