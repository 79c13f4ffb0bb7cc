/* param.c - placement of a parameter on the ranks.  See d9d/tape/param.h. */
#include "d9d/tape/param.h"

#include <string.h>

void d9d_param_partition(d9d_param *p, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_param_split_even(p->local.shape.dim[dim], parts, i, &first, &count);
    p->local.shape.dim[dim] = count;
    p->local.offset[dim] += first;
    p->shard.shape = p->local.shape;
    memcpy(p->shard.offset, p->local.offset, sizeof(p->shard.offset));
}

void d9d_param_shard(d9d_param *p, d9d_comm *shard, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_param_split_even(p->local.shape.dim[dim], parts, i, &first, &count);
    p->placement.shard_group = shard;
    p->placement.shard_dim = dim;
    p->shard.shape = p->local.shape;
    p->shard.shape.dim[dim] = count;
    memcpy(p->shard.offset, p->local.offset, sizeof(p->shard.offset));
    p->shard.offset[dim] += first;
}
