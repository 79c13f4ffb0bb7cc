/* param.c - placement of a parameter on the ranks.  See d9d/tape/param.h. */
#include "d9d/tape/param.h"

#include <string.h>

void d9d_param_partition(d9d_param *p, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_param_split_even(p->local_shape.dim[dim], parts, i, &first, &count);
    p->local_shape.dim[dim] = count;
    p->local_offset[dim] += first;
    p->shard_shape = p->local_shape;
    memcpy(p->shard_offset, p->local_offset, sizeof(p->shard_offset));
}

void d9d_param_shard(d9d_param *p, d9d_comm *shard, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_param_split_even(p->local_shape.dim[dim], parts, i, &first, &count);
    p->shard_group = shard;
    p->shard_dim = dim;
    p->shard_shape = p->local_shape;
    p->shard_shape.dim[dim] = count;
    memcpy(p->shard_offset, p->local_offset, sizeof(p->shard_offset));
    p->shard_offset[dim] += first;
}
