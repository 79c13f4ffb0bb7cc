/* moe.h - a routing from a given choice of experts. */
#ifndef D9D_MOE_H
#define D9D_MOE_H

#include "d9d/op/op.h"

/* expert [T, k] int32, each in [0, experts), or -1: no row. */
d9d_status moe_route(const d9d_tensor *expert, int64_t experts, d9d_routing *out);

#endif /* D9D_MOE_H */
