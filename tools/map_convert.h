/* map_convert.h - a checkpoint made by one rank or several: d9d-map SRC DST, and init. */
#ifndef D9D_MAP_CONVERT_H
#define D9D_MAP_CONVERT_H

#include "d9d/convert/convert.h"
#include "tool.h"

/* Of every command of d9d-map. */
struct map_opts {
    int to, experts, dtype, overflow;
    int64_t shard_size, jobs, seed;
    bool force, dot, all, boxes, no_manifest;
    const char *model, *mapper, *adapter;
};

d9d_convert_opts map_convert_opts(const tool_run *r, const struct map_opts *o);

/* "SRC DST", or of random weights "DST".  Under a launcher every task is a rank with its share. */
d9d_status map_convert(tool_run *r, const void *options);

#endif /* D9D_MAP_CONVERT_H */
