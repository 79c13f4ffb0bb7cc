/* mesh_steps.h - which meshes a search looks at next. */
#ifndef D9DI_PLAN_MESH_STEPS_H
#define D9DI_PLAN_MESH_STEPS_H

#include <stdbool.h>

#include "d9d/comm/mesh.h"

/* A step changes the degree of an axis by a prime factor, replicates what was sharded or the
 * reverse, chooses another method, or doubles or halves the micro-batch; near is what is at most
 * two steps away.  So a factor moves from one axis to another, or an axis and the micro-batch
 * change together. */
bool d9di_mesh_search_is_near(const d9d_parallel_degrees *a, int a_size,
                              const d9d_parallel_degrees *b, int b_size);

#endif /* D9DI_PLAN_MESH_STEPS_H */
