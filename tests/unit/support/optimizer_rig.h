/* optimizer_rig.h - an optimizer and a few parameters on the CPU.
 *
 *     optim_rig_open(&r, "{\"name\": \"adamw\", \"lr\": 1}", D9D_F32);
 *     optim_rig_create(&r, seed);
 *     optim_rig_set_grad(&r.param[WIDE], k);
 *     optim_rig_step(&r, 0.1, 1.0f);
 *     optim_rig_close(&r);
 */
#ifndef D9D_TEST_OPTIMIZER_RIG_H
#define D9D_TEST_OPTIMIZER_RIG_H

#include "d9d/optim/optim.h"

enum { WIDE, FROZEN, SHORT, PARAMS };

typedef struct optim_rig {
    d9d_device *dev;
    d9d_arena arena;
    d9d_module module;
    d9d_param param[PARAMS];
    d9d_params params;
    json_t *doc;
    d9d_union section;
    d9d_optimizer *opt;
    d9d_tensor scale;
} optim_rig;

/* Parameters of this dtype, and the section of a configuration. */
void optim_rig_open(optim_rig *r, const char *config, d9d_dtype t);
void optim_rig_close(optim_rig *r);
void optim_rig_create(optim_rig *r, uint64_t seed);
/* A gradient of float32 numbers that differs in every step. */
void optim_rig_set_grad(d9d_param *p, int step);
/* The first element of the parameter. */
float optim_rig_first_of(const d9d_param *p);
void optim_rig_step(optim_rig *r, double lr, float scale);

#endif /* D9D_TEST_OPTIMIZER_RIG_H */
