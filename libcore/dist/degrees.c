/* degrees.c - do the degrees of parallelism make the job?  See d9d/dist/mesh.h. */
#include "d9d/dist/mesh.h"

/* The product of degrees, each below 2^20, or INT64_MAX when it is beyond. */
static int64_t product_of(const int64_t *degrees, int n)
{
    int64_t product = 1;

    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(product, degrees[i], &product))
            return INT64_MAX;
    return product;
}

d9d_status d9d_degrees_check(const d9d_degrees *m, int64_t ranks)
{
    const int64_t degrees[] = {m->pipeline_parallel,          m->data_parallel_replicate,
                               m->data_parallel_shard,        m->context_parallel_shard,
                               m->context_parallel_replicate, m->tensor_parallel};
    const int64_t product = product_of(degrees, 6), dense = product_of(degrees + 1, 5);

    if (product != ranks)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh: pipeline %lld x replicate %lld x shard %lld x context %lld x %lld x "
                        "tensor %lld is %lld ranks, and this job has %lld",
                        (long long)degrees[0], (long long)degrees[1], (long long)degrees[2],
                        (long long)degrees[3], (long long)degrees[4], (long long)degrees[5],
                        (long long)product, (long long)ranks);
    if (dense % m->expert_parallel != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "mesh: expert_parallel %lld does not divide the %lld ranks "
                        "of a pipeline stage",
                        (long long)m->expert_parallel, (long long)dense);
    return D9D_OK;
}
