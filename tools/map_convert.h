/* map_convert.h - d9d-map SRC DST and d9d-map init: make a checkpoint on one or several ranks. */
#ifndef D9D_MAP_CONVERT_H
#define D9D_MAP_CONVERT_H

#include "d9d/convert/convert.h"
#include "tool.h"

/* Options of all commands of d9d-map. */
struct map_opts {
    int to, experts, dtype, overflow;
    int64_t shard_size, jobs, seed;
    bool force, dot, all, boxes, no_manifest;
    const char *model, *mapper, *adapter, *into, *golden, *task;
    tool_list plugins;
};

/* Loads the plugins that the options name.  They are closed after the conversion. */
d9d_status map_plugins_open(const struct map_opts *o, d9d_plugins **out);

/* The options of a conversion by the families that are built in, and those of the plugins. */
d9d_status map_convert_opts(const tool_run *r, const struct map_opts *o, d9d_plugins *plugins,
                            d9d_convert_opts *out);

/* Operands are "SRC DST", or "DST" for random weights.  Under a launcher each task is a rank and
 * makes its share. */
d9d_status map_convert(tool_run *r, const void *options);

#endif /* D9D_MAP_CONVERT_H */
