/* fp8.h - products of matrices whose elements are quantised to 8 bits: e4m3 or e5m2, with scales.
 *
 *     x [M, K] --quantise--> rows  [M, K]   a scale for each row: y = x w'
 *                      '---> cols  [K, M']  a scale for each column of x: dW = dy' x
 *
 * An operand of a product is R rows of K elements, with K contiguous, as tensor cores want both
 * sides.  So an array that is summed over its rows is quantised to a transposed copy, `cols`, whose
 * rows are the array's columns.  One call makes both copies, from which products follow:
 *
 *     y  [M, N] = x w'      x.rows [M, K],   w.rows [N, K]
 *     dx [M, K] = dy w      dy.rows [M, N],  w.cols [K, N]
 *     dw [N, K] = dy' x     dy.cols [N, M'], x.cols [K, M']
 *
 * M' is M rounded up to a multiple of D9D_FP8_ALIGN; the elements beyond M are zero.
 *
 * The matrices of E experts are one array w [E in, out], quantised as any other: a scale belongs to
 * a row, or to a column of all experts.  The same copies serve, of which a product reads a part:
 *
 *     y  [R, out]     = x W_e       x.rows  [R, in],   w.cols  [out, E in]
 *     dx [R, in]      = dy W_e'     dy.rows [R, out],  w.rows  [E in, out]
 *     dw [E, in, out] = x_e' dy_e   x.cols  [in, R'],  dy.cols [out, R']
 *
 * A scale is the smallest power of two, from 2^-100 on, with which the largest magnitude fits into
 * the format; that of zeros is 1.  So scaling is exact and the one error of an element is that of
 * its rounding, to nearest even: at most 2^-4 of it in e4m3 and 2^-3 in e5m2, or half the smallest
 * subnormal times the scale.  A value that is not finite becomes NaN, and its scale 1: it shows in
 * the product as it would without quantisation.  Values are those of `__nv_fp8_e4m3` and
 * `torch.float8_e4m3fn`; scales multiply, as the inverse scales of PyTorch and cuBLASLt.
 *
 * Where ranks have parts of x, the steps of a quantisation are entries of their own, and give the
 * bits that one call gives for the whole x:
 *
 *     part of x --amax--> maxima  == largest over ranks ==>  maxima --scales--> scale of the copies
 *     part of x, maxima --encode--> bytes  == gathered ==>   bytes of x: data of rows
 *                                                              '--transpose--> data of cols
 *
 * The rules of every entry are in table.h. Kernels: kernels/cuda/fp8.
 */
#ifndef D9D_KERNELS_FP8_H
#define D9D_KERNELS_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_FP8_ALIGN = 16 }; /* row lengths of operands are multiples of it */

/* One side of a product: element (r, k) is scale[r] data[r row_stride + k], or scale[0] for all. */
typedef struct d9d_fp8_operand {
    d9d_dtype t;        /* D9D_F8_E4M3 or D9D_F8_E5M2 */
    bool scale_by_row;  /* a scale for each row (rowwise); else one (tensorwise) */
    int64_t row_stride; /* a multiple of D9D_FP8_ALIGN */
    void *data;         /* a product reads it, and so the scales */
    float *scale;
} d9d_fp8_operand;

/* C = A B' + beta C: C [M, N] of type ct, A [M, K], B [N, K], N and K multiples of D9D_FP8_ALIGN.
 * At most one side is e5m2, and both have scales of one kind. addend: if not NULL, it takes the
 * place of C in `beta C`; on a GPU a result may then differ in its last bit (on a CPU it does not).
 * A GPU may round A B to bfloat16 before it is added to a bfloat16 C.
 * fast_accum: sums may keep about 14 bits within a product, which Hopper does faster. */
typedef struct d9d_fp8_gemm_dims {
    d9d_dtype ct;
    int64_t m, n, k;
    float beta;
    const void *addend;
    bool fast_accum;
} d9d_fp8_gemm_dims;

/* A product of R rows of E experts, rows offset[e] <= r < offset[e+1] of expert e (offset [E + 1]
 * on the device), with the operands of the list above as A and B.  in and out are multiples of
 * D9D_FP8_ALIGN; beta is 0 or 1.  WGRAD of an expert without rows is beta C. */
typedef enum d9d_fp8_grouped_form {
    D9D_FP8_GROUPED_FWD,
    D9D_FP8_GROUPED_DGRAD,
    D9D_FP8_GROUPED_WGRAD
} d9d_fp8_grouped_form;
typedef struct d9d_fp8_grouped_dims {
    d9d_fp8_grouped_form form;
    d9d_dtype ct;
    int64_t rows, e, in, out;
    const int32_t *offset;
    float beta;
    bool fast_accum;
} d9d_fp8_grouped_dims;

/* The largest magnitudes of an array [M, N]: of all elements, of each row, of each column; NULL for
 * what is not wanted.  A magnitude is the bits of a float32 without its sign, so magnitudes compare
 * as integers.  Row r has its place at rows[r + r / group * skip]: an array that is E groups of
 * rows among the rows of another one.  group 0: at rows[r]. */
typedef struct d9d_fp8_maxima {
    int32_t *all, *rows, *cols;
    int64_t group, skip;
} d9d_fp8_maxima;

typedef struct d9d_fp8_kernels {
    /* x [M, N] of type t to rows [M, N] and to cols [N, M], N a multiple of D9D_FP8_ALIGN; either
     * is NULL if it is not wanted. */
    d9d_status (*quantise)(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                           const d9d_fp8_operand *rows, const d9d_fp8_operand *cols);
    /* A GPU without such products, below compute capability 8.9, multiplies the values in bfloat16,
     * which has them all. */
    d9d_status (*product)(d9d_stream s, const d9d_fp8_gemm_dims *g, const d9d_fp8_operand *a,
                          const d9d_fp8_operand *b, void *c);
    /* A GPU other than Hopper multiplies the values in float32. */
    d9d_status (*grouped)(d9d_stream s, const d9d_fp8_grouped_dims *g, const d9d_fp8_operand *a,
                          const d9d_fp8_operand *b, void *c);
    /* Maxima of x [M, N] of type t, N a multiple of D9D_FP8_ALIGN, and of what `to` has. */
    d9d_status (*amax)(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                       const d9d_fp8_maxima *to);
    /* y [M, N] of format f: x as `quantise` rounds it, with the scales of the one kind of maxima
     * that `by` has. */
    d9d_status (*encode)(d9d_stream s, d9d_dtype t, const void *x, int64_t m, int64_t n,
                         const d9d_fp8_maxima *by, d9d_dtype f, void *y);
    /* scale [N] of elements of format f with these maxima [N]. */
    d9d_status (*scales)(d9d_stream s, d9d_dtype f, const int32_t *maxima, int64_t n, float *scale);
    /* y [N, M'] = the transpose of the bytes x [M, N], N a multiple of D9D_FP8_ALIGN. */
    d9d_status (*transpose)(d9d_stream s, const void *x, int64_t m, int64_t n, void *y);
} d9d_fp8_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_FP8_KERNELS(X)                                                                         \
    X(fp8, quantise, fp8_quantise)                                                                 \
    X(fp8, product, fp8_gemm)                                                                      \
    X(fp8, grouped, fp8_grouped_gemm)                                                              \
    X(fp8, amax, fp8_amax)                                                                         \
    X(fp8, encode, fp8_encode)                                                                     \
    X(fp8, scales, fp8_scales)                                                                     \
    X(fp8, transpose, fp8_transpose)

/* Elements of a row of `cols`: M'. */
static inline int64_t d9d_fp8_padded(int64_t m)
{
    return (m + D9D_FP8_ALIGN - 1) / D9D_FP8_ALIGN * D9D_FP8_ALIGN;
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_FP8_H */
