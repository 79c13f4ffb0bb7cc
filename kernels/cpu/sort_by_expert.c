/* sort_by_expert.c - expert order for MoE dispatch, and the ranks that own the chosen experts. */
#include "cpu/common.h"

/* A stable counting sort: tokens ascend within an expert. */
d9d_status d9d_ref_sort_by_expert(d9d_stream s, int32_t *offset, int32_t *row, int32_t *source,
                                  const int32_t *expert, int64_t rows, int64_t e, int64_t k)
{
    int64_t n = rows * k;

    (void)s;
    if (n > INT32_MAX)
        return D9D_FAIL(D9D_EINVAL, "sort_by_expert: %lld tokens of %lld experts are over %d rows",
                        (long long)rows, (long long)k, INT32_MAX);
    memset(offset, 0, (size_t)(e + 1) * sizeof(*offset));
    for (int64_t i = 0; i < n; i++) {
        if (expert[i] < -1 || expert[i] >= e)
            return D9D_FAIL(D9D_EINVAL, "sort_by_expert: token %lld goes to expert %d of %lld",
                            (long long)(i / k), (int)expert[i], (long long)e);
        if (expert[i] >= 0)
            offset[expert[i] + 1]++;
    }
    for (int64_t x = 0; x < e; x++)
        offset[x + 1] += offset[x];
    for (int64_t i = offset[e]; i < n; i++)
        source[i] = -1;
    for (int64_t i = 0; i < n; i++) {
        row[i] = expert[i] < 0 ? -1 : offset[expert[i]]++;
        if (row[i] >= 0)
            source[row[i]] = (int32_t)i;
    }
    /* Placing moved each offset to the next one's start. */
    memmove(offset + 1, offset, (size_t)e * sizeof(*offset));
    offset[0] = 0;
    return D9D_OK;
}

d9d_status d9d_ref_expert_ranks(d9d_stream s, int32_t *rank, const int32_t *expert, int64_t rows,
                                int64_t k, int64_t ranks, int64_t per)
{
    (void)s;
    for (int64_t i = 0; i < rows * ranks; i++)
        rank[i] = -1;
    for (int64_t i = 0; i < rows * k; i++) {
        int32_t d = (int32_t)(expert[i] / per);

        if (expert[i] == -1)
            continue;
        if (expert[i] < 0 || d >= ranks)
            return D9D_FAIL(D9D_EINVAL, "expert_ranks: token %lld goes to expert %d of %lld",
                            (long long)(i / k), (int)expert[i], (long long)(ranks * per));
        rank[i / k * ranks + d] = d;
    }
    return D9D_OK;
}

d9d_status d9d_ref_expert_local_ids(d9d_stream s, int32_t *local, const int32_t *source,
                                    const int32_t *expert, int64_t n, int64_t rows, int64_t k,
                                    int64_t ranks, int64_t per)
{
    (void)s, (void)rows;
    for (int64_t i = 0; i < n * k; i++) {
        int64_t from = source[i / k], e = -1;

        if (from >= 0)
            e = expert[from / ranks * k + i % k] - from % ranks * per;
        local[i] = e >= 0 && e < per ? (int32_t)e : -1;
    }
    return D9D_OK;
}

d9d_status d9d_ref_expert_numbers(d9d_stream s, int64_t *number, const int64_t *token,
                                  const int32_t *source, const int32_t *expert, int64_t n,
                                  int64_t rows, int64_t k, int64_t first, int64_t all)
{
    (void)s, (void)rows;
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = source[i];

        number[i] = from < 0 ? 0
                             : (int64_t)((uint64_t)token[from / k] * (uint64_t)all +
                                         (uint64_t)(first + expert[from]));
    }
    return D9D_OK;
}
