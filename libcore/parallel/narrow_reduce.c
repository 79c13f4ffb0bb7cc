/* narrow_reduce.c - see parallel/narrow_reduce.h. */
#include "parallel/narrow_reduce.h"

d9d_status d9di_narrow_reduce_add(d9d_device *dev, d9d_stream stream, float *sum, bool add,
                                  const d9d_tensor *received, int ranks, int64_t each, int64_t n)
{
    const char *x = d9d_tensor_data(received);

    for (int r = 0; n > 0 && r < ranks; r++)
        D9D_TRY(dev->kernels->elementwise->accumulate(
            stream, D9D_F32, sum, add || r > 0 ? 1.0f : 0.0f, D9D_BF16,
            x + (uint64_t)(r * each) * d9d_dtype_size(D9D_BF16), n));
    return D9D_OK;
}
