/* gather.h - all parameters whole on rank 0, in host memory. */
#ifndef D9DI_LOOP_GATHER_H
#define D9DI_LOOP_GATHER_H

#include "loop/engine.h"

typedef struct d9di_whole {
    d9d_params params; /* of rank 0; the engine's own where they are whole already */
    d9d_device *host;
    d9d_param *copies;
    size_t n;
    d9d_arena arena;
} d9di_whole;

/* Collective: over the job. */
d9d_status d9di_whole_gather(d9di_engine *e, d9di_whole *out);
void d9di_whole_release(d9di_whole *w);

#endif /* D9DI_LOOP_GATHER_H */
