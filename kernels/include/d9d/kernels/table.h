/* table.h - the kernels of one backend: tables of functions on plain device pointers, one for each
 * family of kernels.
 *
 *     D9D_TRY(k->attention->fwd(s, &dims, o, lse, q, k, v));
 *     D9D_TRY(k->gemm->grouped_wgrad(s, D9D_BF16, D9D_F32, dw, 1.0f, x, dy, offset, T, E, H, I));
 *
 * A function that computes with one family takes that family's table. The header of a family has
 * its entries and the structs of their arguments:
 *
 *     elementwise.h   fills, casts, sums, activations, biases, random numbers; copies of rows,
 *                     embedding
 *     gemm.h          GEMM: dense, grouped, per head, with a GLU after it
 *     fp8.h           quantisation to 8 bits, and products of such matrices
 *     quant.h         products with frozen matrices that are stored in 8 or 4 bits
 *     norm.h          RMSNorm, RoPE
 *     attention.h     attention over segments (segment.h), sink, zigzag order
 *     gdn.h           Gated DeltaNet: causal convolution, gated delta rule
 *     moe.h           router, permutation of tokens into expert order and back
 *     loss.h          fused linear head and cross entropy
 *     reduce.h        sums, sums of squares, the search for NaN
 *     optim.h         Adam, Lion, Muon, SGD, gradient clipping
 *     math.h          functions of elements with broadcasting, reductions of an axis, gather
 *
 * The CPU's table (d9d_kernels_cpu(), plain C) is the reference. The GPU's table (cuda.h) and the
 * simulated one (sim.h) have the same entries. Rules for every entry:
 *
 *  - Arrays are dense and row-major, in device memory, aligned to 16 bytes. Outputs do not overlap
 *    inputs unless the entry says so. Any size may be 0.
 *  - Work is enqueued on stream `s`; the call does not wait for it. Numbers that only the device
 *    knows (rows per expert, the clipping factor) are read through device pointers.
 *  - Invalid arguments return EINVAL. Invalid array contents return EINVAL on the CPU only. A GPU
 *    would have to wait to report them, so it only stays inside its memory: the loss of a target
 *    outside the vocabulary is NaN; an expert id that is too large counts as the last expert, and a
 *    negative one as -1; rows that no group's offsets cover are not written.
 *  - Results do not depend on the number of threads: a sum is split into fixed blocks, which are
 *    added in one order.
 *  - `t` is the type of activations and parameters, D9D_F32 or D9D_BF16; arithmetic is float32.
 *    Gradients of parameters have a type of their own, `gt`. `beta` 0 overwrites the output, 1 adds
 *    to it.
 *  - Suffixes: _bwd computes the gradients of all inputs, _dgrad those of activations, _wgrad those
 *    of parameters.
 *  - Shape letters: M rows, N columns, B S Z T H A K D I E V k as in d9d/op/op.h.
 *
 * Every entry has a test over types and odd sizes in tests/unit/kernels/test_kernel_*.c.
 */
#ifndef D9D_KERNELS_TABLE_H
#define D9D_KERNELS_TABLE_H

#include "d9d/base/status.h"
#include "d9d/kernels/attention.h"
#include "d9d/kernels/elementwise.h"
#include "d9d/kernels/fp8.h"
#include "d9d/kernels/gdn.h"
#include "d9d/kernels/gemm.h"
#include "d9d/kernels/loss.h"
#include "d9d/kernels/math.h"
#include "d9d/kernels/moe.h"
#include "d9d/kernels/norm.h"
#include "d9d/kernels/optim.h"
#include "d9d/kernels/quant.h"
#include "d9d/kernels/reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The families are pointers, so that each may grow at its end. */
typedef struct d9d_kernels {
    const char *name; /* "cpu", "cuda", or "sim", whose arrays may not be accessed (sim.h) */
    const d9d_elementwise_kernels *elementwise;
    const d9d_gemm_kernels *gemm;
    const d9d_norm_kernels *norm;
    const d9d_attention_kernels *attention;
    const d9d_gdn_kernels *gdn;
    const d9d_moe_kernels *moe;
    const d9d_loss_kernels *loss;
    const d9d_reduce_kernels *reduce;
    const d9d_optim_kernels *optim;
    const d9d_math_kernels *math;
    const d9d_fp8_kernels *fp8;
    const d9d_quant_kernels *quant;
} d9d_kernels;

/* Every family as F(family, LIST), for code that visits all entries: LIST(X) is X(family, member,
 * op) for each entry of the family. */
#define D9D_KERNEL_FAMILIES(F)                                                                     \
    F(elementwise, D9D_ELEMENTWISE_KERNELS)                                                        \
    F(gemm, D9D_GEMM_KERNELS)                                                                      \
    F(norm, D9D_NORM_KERNELS)                                                                      \
    F(attention, D9D_ATTENTION_KERNELS)                                                            \
    F(gdn, D9D_GDN_KERNELS)                                                                        \
    F(moe, D9D_MOE_KERNELS)                                                                        \
    F(loss, D9D_LOSS_KERNELS)                                                                      \
    F(reduce, D9D_REDUCE_KERNELS)                                                                  \
    F(optim, D9D_OPTIM_KERNELS)                                                                    \
    F(math, D9D_MATH_KERNELS)                                                                      \
    F(fp8, D9D_FP8_KERNELS)                                                                        \
    F(quant, D9D_QUANT_KERNELS)

D9D_API const d9d_kernels *d9d_kernels_cpu(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_TABLE_H */
