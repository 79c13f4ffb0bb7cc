/* map_certify.h - d9d-map certify: what holds of a family, measured on a small model of it. */
#ifndef D9D_MAP_CERTIFY_H
#define D9D_MAP_CERTIFY_H

#include "map_convert.h"

/* The operand is a family or a folder.  Under a launcher each task is a rank. */
d9d_status map_certify(tool_run *r, const void *options);

#endif /* D9D_MAP_CERTIFY_H */
