/* stage.h - which layers a pipeline stage owns.
 *
 * A model builds only the layers of its stage; parameter names keep the layer's number in the whole
 * model.  Virtual layers before and after the real ones stand for the cost of the embedding and the
 * head.  Of V layers, virtual ones included, each of S stages gets V / S, and the first V % S
 * stages one more.  The virtual layers are then removed from the first and the last stage.
 */
#ifndef D9D_PIPE_STAGE_H
#define D9D_PIPE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_stage {
    int index, count; /* {0, 1} is the whole model */
} d9d_stage;

#define D9D_WHOLE_MODEL ((d9d_stage){0, 1})

static inline bool d9d_stage_is_first(d9d_stage s)
{
    return s.index == 0;
}
static inline bool d9d_stage_is_last(d9d_stage s)
{
    return s.index == s.count - 1;
}

/* Layers [first, end) of this stage.  ECONFIG names a stage that would get no layer. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_layers(int64_t n_layers, int64_t virtual_pre,
                                                 int64_t virtual_post, d9d_stage s, int64_t *first,
                                                 int64_t *end);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_STAGE_H */
