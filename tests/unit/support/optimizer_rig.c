/* optimizer_rig.c - see support/optimizer_rig.h. */
#include "support/optimizer_rig.h"

#include "d9d/base/rng.h"
#include "support/optimizer_config.h"
#include "support/unit.h"

void optim_rig_open(optim_rig *r, const char *config, d9d_dtype t)
{
    *r = (optim_rig){0};
    assert_ok(d9d_device_open("cpu", &r->dev));
    d9d_module_init(&r->module);
    assert_ok(d9d_module_param(&r->module, "wide", &r->param[WIDE], t, D9D_SHAPE(9, 31),
                               D9D_INIT_NORMAL, 1.0f));
    assert_ok(d9d_module_param(&r->module, "frozen", &r->param[FROZEN], t, D9D_SHAPE(5),
                               D9D_INIT_ONES, 0));
    assert_ok(d9d_module_param(&r->module, "short", &r->param[SHORT], t, D9D_SHAPE(3),
                               D9D_INIT_NORMAL, 0.1f));
    r->param[FROZEN].spec.trainable = false;
    assert_ok(d9d_module_bind(&r->module));
    assert_ok(d9d_module_materialise(&r->module, r->dev, true));
    assert_ok(d9d_module_reset(&r->module, 7));
    assert_ok(d9d_module_params(&r->module, &r->arena, &r->params));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SCALAR, &r->scale));
    assert_ok(optimizer_config_bind(config, &r->arena, &r->doc, &r->section));
}

void optim_rig_close(optim_rig *r)
{
    d9d_optimizer_free(r->opt);
    d9d_tensor_release(&r->scale);
    d9d_module_release(&r->module);
    json_decref(r->doc);
    d9d_arena_release(&r->arena);
    d9d_device_close(r->dev);
}

void optim_rig_create(optim_rig *r, uint64_t seed)
{
    assert_ok(d9d_optimizer_create(&r->section, r->dev, &r->params, NULL, seed, &r->opt));
}

/* A gradient of float32 numbers that differs in every step. */
void optim_rig_set_grad(d9d_param *p, int step)
{
    float *g = d9d_tensor_data(&p->local.grad);

    for (int64_t i = 0; i < d9d_tensor_numel(&p->local.grad); i++)
        g[i] = d9d_rng_normal((d9d_rng){99, p->id + (uint64_t)step}, (uint64_t)i) +
               (i % 7 == 0 ? 3.0f : 0.0f);
    p->local.has_grad = true;
}

void optim_rig_step(optim_rig *r, double lr, float scale)
{
    *(float *)d9d_tensor_data(&r->scale) = scale;
    assert_ok(d9d_optimizer_step(r->opt, lr, &r->scale));
}

float optim_rig_first_of(const d9d_param *p)
{
    return *(const float *)d9d_tensor_data(&p->shard.data);
}
