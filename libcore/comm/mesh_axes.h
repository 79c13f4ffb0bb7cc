/* mesh_axes.h - which ranks form the groups over a set of mesh axes.  See d9d/comm/mesh.h. */
#ifndef D9DI_COMM_MESH_AXES_H
#define D9DI_COMM_MESH_AXES_H

#include "d9d/comm/mesh.h"

/* A rank's group among the groups over a set of axes, and its index in that group. */
typedef struct d9di_mesh_place {
    int64_t group, index, count; /* count: size of the group */
} d9di_mesh_place;

d9di_mesh_place d9di_mesh_axes_place(const d9d_parallel_degrees *d, unsigned axes, int64_t rank);
/* The set without the axes of size 1. */
unsigned d9di_mesh_axes_normalize(const d9d_parallel_degrees *d, unsigned axes);
/* "dp_shard+cp_shard"; returns buf. */
char *d9di_mesh_axes_name(unsigned axes, char *buf, size_t n);
/* "dps 1 tp 0": see d9d_mesh_text(). */
char *d9di_mesh_axes_text(const d9d_parallel_degrees *d, int64_t rank, char *buf, size_t n);

#endif /* D9DI_COMM_MESH_AXES_H */
