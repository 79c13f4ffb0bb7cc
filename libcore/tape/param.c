/* param.c - placing a parameter on the ranks.  See d9d/tape/param.h. */
#include "d9d/tape/param.h"

#include <string.h>

void d9d_param_cut(d9d_param *p, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_part_of(p->work.dim[dim], parts, i, &first, &count);
    p->work.dim[dim] = count;
    p->work_start[dim] += first;
    p->box = p->work;
    memcpy(p->start, p->work_start, sizeof(p->start));
}

void d9d_param_shard(d9d_param *p, d9d_comm *shard, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_part_of(p->work.dim[dim], parts, i, &first, &count);
    p->shard = shard;
    p->shard_dim = dim;
    p->box = p->work;
    p->box.dim[dim] = count;
    memcpy(p->start, p->work_start, sizeof(p->start));
    p->start[dim] += first;
}
