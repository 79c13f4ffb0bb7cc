/* shard_make.h - the commands of d9d-shard that make datasets, and their options. */
#ifndef SHARD_MAKE_H
#define SHARD_MAKE_H

#include "d9d/data/build/shard.h"
#include "tool.h"

typedef struct shard_make {
    d9d_shard_opts opts;
    tool_list edges;
    const char *task;
    bool array;
} shard_make;
extern const tool_option shard_make_options[];
extern const shard_make shard_make_default;
d9d_status shard_make_run(tool_run *r, const void *given);

typedef struct shard_merge {
    bool force;
} shard_merge;
extern const tool_option shard_merge_options[];
d9d_status shard_merge_run(tool_run *r, const void *given);

#endif
