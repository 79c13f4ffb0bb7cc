/* attention_cp_zigzag.c - context-parallel chunks between sequence order and zigzag rank order. */
#include "cpu/common.h"

d9d_status d9d_ref_cp_zigzag(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n,
                             int64_t b, int64_t p, int64_t w, bool in_order)
{
    const int64_t size = p * w;

    (void)s;
    D9D_TRY(d9di_args_check_float("cp_zigzag", t));
    if (size == 0)
        return D9D_OK;
#pragma omp parallel for if (2 * n * b * size > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < 2 * n * b; i++) {
        const int64_t rank = i / (2 * b), row = i / 2 % b;
        const int64_t chunk = i % 2 == 0 ? rank : 2 * n - 1 - rank;
        const int64_t dealt = i * size, rows = (row * 2 * n + chunk) * size;

        memcpy(d9di_elem_at(t, y, in_order ? rows : dealt),
               d9di_elem_cat(t, x, in_order ? dealt : rows), (size_t)size * d9d_dtype_size(t));
    }
    return D9D_OK;
}
