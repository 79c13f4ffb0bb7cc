/* narrow_reduce.h - sums over ranks of float32 gradients that travel as bfloat16.
 *
 *     gradient --cast--> packed --all-to-all--> received [rank][n] --added in rank order--> sum
 *       float32          bfloat16               bfloat16                                    float32
 *
 * A collective that reduces in bfloat16 would round after every addition, in an order that the
 * backend chooses.  Here each rank's gradient is rounded once and the sum is in float32.  With g_r
 * the gradients of n ranks, u = 2^-8 and v = 2^-24, the sum is off by at most
 *
 *     (u + (n - 1) v (1 + u)) * (|g_0| + ... + |g_n-1|)
 *
 * The gradient of the rank that adds is rounded too, so that a sum does not depend on which rank
 * owns it.  An all-reduce rounds the sum once more on its way back: u * |sum|.
 */
#ifndef D9DI_PARALLEL_NARROW_REDUCE_H
#define D9DI_PARALLEL_NARROW_REDUCE_H

#include "d9d/device/device.h"
#include "d9d/tensor/tensor.h"

/* Does a gradient of this type travel as `reduce_dtype` (d9d_fsdp_opts)?  Others travel as they
 * are, and the backend adds them. */
static inline bool d9di_narrow_reduce_is_used(d9d_dtype reduce_dtype, d9d_dtype grad_dtype)
{
    return reduce_dtype == D9D_BF16 && grad_dtype == D9D_F32;
}

/* Elements from one rank's array to the next: n or more, so that kernels find each aligned. */
enum { D9DI_NARROW_REDUCE_ALIGN = 8 };
static inline int64_t d9di_narrow_reduce_each(int64_t n)
{
    return (n + D9DI_NARROW_REDUCE_ALIGN - 1) / D9DI_NARROW_REDUCE_ALIGN * D9DI_NARROW_REDUCE_ALIGN;
}

/* sum [n] += or = the arrays of all ranks, which are `each` elements apart in `received`, in rank
 * order. */
d9d_status d9di_narrow_reduce_add(d9d_device *dev, d9d_stream stream, float *sum, bool add,
                                  const d9d_tensor *received, int ranks, int64_t each, int64_t n);

#endif /* D9DI_PARALLEL_NARROW_REDUCE_H */
