/* shard_filter.h - d9d-shard filter, and its options. */
#ifndef SHARD_FILTER_H
#define SHARD_FILTER_H

#include "d9d/data/filter/filter.h"
#include "tool.h"

typedef struct shard_filter {
    d9d_filter_opts opts;
    tool_list evaluations;
    bool rules;
} shard_filter;
extern const tool_option shard_filter_options[];
extern const shard_filter shard_filter_default;
d9d_status shard_filter_run(tool_run *r, const void *given);

#endif
