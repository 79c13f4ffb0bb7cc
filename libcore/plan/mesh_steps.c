/* mesh_steps.c - see plan/mesh_steps.h. */
#include "plan/mesh_steps.h"

enum { NEAR = 2, FAR = NEAR + 1 }; /* steps */

static bool is_prime(int64_t n)
{
    for (int64_t p = 2; p * p <= n; p++)
        if (n % p == 0)
            return false;
    return n > 1;
}

static int degree_steps(int64_t a, int64_t b)
{
    const int64_t small = a < b ? a : b, large = a < b ? b : a;

    if (small == large)
        return 0;
    return large % small == 0 && is_prime(large / small) ? 1 : FAR;
}

bool d9di_mesh_search_is_near(const d9d_parallel_degrees *a, int a_size,
                              const d9d_parallel_degrees *b, int b_size)
{
    int steps = degree_steps(a->pipeline_parallel, b->pipeline_parallel) +
                degree_steps(a->tensor_parallel, b->tensor_parallel) +
                degree_steps(a->context_parallel_shard, b->context_parallel_shard) +
                degree_steps(a->expert_parallel, b->expert_parallel) +
                (a->context_parallel_method != b->context_parallel_method) +
                (a->expert_parallel_local != b->expert_parallel_local) +
                (a_size < b_size ? b_size - a_size : a_size - b_size);

    /* Sharding is by nodes, so its next degree may be several factors away. */
    if (a->data_parallel_shard != b->data_parallel_shard)
        steps += degree_steps(a->data_parallel_shard, b->data_parallel_shard) == 1 ? 1 : NEAR;
    return steps <= NEAR;
}
