/* quant.h - frozen matrices stored in 8 or 4 bits, which activations in float32 or bfloat16
 * multiply: weight-only quantisation (W8A16, W4A16).
 *
 *     D9D_TRY(d9d_quant_rows(D9D_QUANT_NF4, D9D_BF16, w, N, K, 0, K, bytes));   // on the host
 *     const d9d_quant_matrix q = {D9D_QUANT_NF4, N, K, bytes_on_the_device};
 *     D9D_TRY(k->quant->product(s, &g, x, &q, y));                             // y = x w'
 *
 * A matrix [N, K] is stored by rows, and a row by itself alone: how a mesh divides the rows changes
 * no byte.  A part of the columns has their codes and the scales of the whole row.
 *
 *     a row   | codes | scale codes | row scales | zeros to a multiple of D9D_QUANT_ROW_ALIGN |
 *     fp8     K bytes        -         1 float
 *     nf4     K/2 bytes   K/64 bytes   2 floats
 *
 * fp8: e4m3 with a power of two for each row, the smallest with which its largest magnitude fits
 * (d9d/kernels/fp8.h).
 *
 * nf4: 4-bit NormalFloat of QLoRA (Dettmers et al., 2023).  A row is quantised as bitsandbytes
 * quantises it alone, with blocks of 64 and double quantisation:
 *
 *     a[b]  = largest magnitude of block b            code of x = nearest to x / a[b] of 16 numbers
 *     a[b] ~= map[scale code] range + offset          offset = mean of a, range = largest of
 *                                                     |a - offset|, map: 256 numbers of -1 to 1
 *
 * Two codes are a byte, the first in its upper half.  4.19 bits an element for K = 4096, with
 * padding; bitsandbytes has one offset a tensor and one range for 256 blocks, across rows.
 *
 * An element's value in float32 is the product of both numbers.  In bfloat16 each is rounded before
 * and the product after, so that every way of multiplying has the same operand.  A row with an
 * element that is not finite is NaN altogether: it shows in the product.
 *
 * The rules of every entry are in table.h. Kernels: kernels/cuda/quant.
 */
#ifndef D9D_KERNELS_QUANT_H
#define D9D_KERNELS_QUANT_H

#include "d9d/kernels/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_quant_format { D9D_QUANT_NONE, D9D_QUANT_FP8, D9D_QUANT_NF4 } d9d_quant_format;

enum {
    D9D_QUANT_NF4_BLOCK = 64, /* elements with one scale */
    D9D_QUANT_ROW_ALIGN = 32,
    D9D_QUANT_FEW_ROWS = 32 /* rows of activations for which a GPU's product() reads codes; for more
                               the matrix, or its rows of the call, are elements in scratch */
};

/* Of rows of `cols` elements each. */
typedef struct d9d_quant_matrix {
    d9d_quant_format format; /* not NONE */
    int64_t rows, cols;      /* cols: a multiple of d9d_quant_align() */
    const void *data;        /* rows of d9d_quant_row_bytes(), aligned to as much as a row is */
} d9d_quant_matrix;

/* "fp8", "nf4". */
D9D_API const char *d9d_quant_name(d9d_quant_format f);
/* Lengths of rows, and of parts of rows, are multiples of it. */
static inline int64_t d9d_quant_align(d9d_quant_format f)
{
    return f == D9D_QUANT_NF4 ? D9D_QUANT_NF4_BLOCK : 16;
}
/* Where the scale codes and the scales of a row of `cols` elements begin, and where the row ends.
 */
static inline int64_t d9d_quant_code_bytes(d9d_quant_format f, int64_t cols)
{
    return f == D9D_QUANT_NF4 ? cols / 2 : cols;
}
static inline int64_t d9d_quant_scale_at(d9d_quant_format f, int64_t cols)
{
    const int64_t codes = f == D9D_QUANT_NF4 ? cols / D9D_QUANT_NF4_BLOCK : 0;

    return (d9d_quant_code_bytes(f, cols) + codes + 7) / 8 * 8;
}
static inline int64_t d9d_quant_row_bytes(d9d_quant_format f, int64_t cols)
{
    return (d9d_quant_scale_at(f, cols) + 8 + D9D_QUANT_ROW_ALIGN - 1) / D9D_QUANT_ROW_ALIGN *
           D9D_QUANT_ROW_ALIGN;
}

/* Quantise whole rows x [rows, cols] of type t on the host, and store columns
 * [first, first + n) of each.  On the calling thread; the same bytes on every machine.  EINVAL for
 * numbers that are no multiples of d9d_quant_align(). */
D9D_API D9D_MUST_USE d9d_status d9d_quant_rows(d9d_quant_format f, d9d_dtype t, const void *x,
                                               int64_t rows, int64_t cols, int64_t first, int64_t n,
                                               void *out);

typedef struct d9d_quant_kernels {
    /* y [rows, cols] of type t. */
    d9d_status (*dequantise)(d9d_stream s, d9d_dtype t, void *y, const d9d_quant_matrix *w);
    /* gemm->dense() with w in the place of B: [N, K] with trans_b, else [K, N].  A is not
     * transposed.  The result is that of dense() with the dequantised w, but for the order of
     * sums. */
    d9d_status (*product)(d9d_stream s, const d9d_gemm *g, const void *a, const d9d_quant_matrix *w,
                          void *c);
    /* product() of one A by each of n matrices of one K, with the bits of each call by itself. */
    d9d_status (*multi)(d9d_stream s, int n, const d9d_gemm *g, const void *a,
                        const d9d_quant_matrix *w, void *const *c);
    /* gemm->glu() without experts: w of gate and up, or of one matrix if `up` is NULL. */
    d9d_status (*glu)(d9d_stream s, const d9d_gemm_glu_dims *n, void *y, void *gate, void *up,
                      const void *x, const d9d_quant_matrix *w);
} d9d_quant_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_QUANT_KERNELS(X)                                                                       \
    X(quant, dequantise, quant_dequantise)                                                         \
    X(quant, product, quant_gemm)                                                                  \
    X(quant, multi, quant_gemm_multi)                                                              \
    X(quant, glu, quant_gemm_glu)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_QUANT_H */
