/* sink_private.h - the writer of samples, for sink.c and sink_finish.c. */
#ifndef D9DI_DATA_SINK_PRIVATE_H
#define D9DI_DATA_SINK_PRIVATE_H

#include "data/sink.h"

/* Where a sample is, while its number is not known. */
struct d9di_spooled {
    uint32_t shard, bucket;
    uint64_t offset;
    uint32_t stored, n_segments;
    uint64_t segments_at; /* of the split's segments */
};

struct d9di_out {
    d9d_file file;
    d9d_buf buf;
    bool open;
};

struct d9di_sink {
    d9di_sink_how how;
    d9di_sink_state state;
    struct d9di_out tokens, labels;
    struct d9di_out records[D9DI_MAX_SPLITS], segments[D9DI_MAX_SPLITS];
};

#endif
