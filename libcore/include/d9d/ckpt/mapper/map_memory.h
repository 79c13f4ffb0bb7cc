/* map_memory.h - a sink that keeps the outputs of a map plan in memory.
 *
 *     d9d_map_memory got = {0};
 *     const d9d_tensor_sink sink = d9d_map_memory_sink(&got);
 *
 *     st = d9d_map_plan_run(plan, &sink, jobs, log);
 *     ... got.data[i] has got.tensors[i].bytes bytes ...
 *     d9d_map_memory_release(&got);
 */
#ifndef D9D_CKPT_MAPPER_MAP_MEMORY_H
#define D9D_CKPT_MAPPER_MAP_MEMORY_H

#include "d9d/ckpt/mapper/mapper.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_map_memory {
    const d9d_safetensors_tensor *tensors; /* [n], valid as long as the plan */
    void **data;                           /* [n], dense */
    size_t n;
} d9d_map_memory;

/* A sink into `m`, which is empty. */
D9D_API d9d_tensor_sink d9d_map_memory_sink(d9d_map_memory *m);
/* Frees the outputs, also after a plan that failed. */
D9D_API void d9d_map_memory_release(d9d_map_memory *m);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_MAPPER_MAP_MEMORY_H */
