/* shrink_weights_plugin.c - a plugin for plugin.bats: an event handler that shrinks all weights by
 * a tenth after each optimizer step. */
#include <d9d/tasks/plugin.h>

static d9d_model *const *models; /* of this process */
static size_t n_models;

static d9d_status keep(void *self, const d9d_job_event *e)
{
    (void)self;
    models = e->models;
    n_models = e->n_models;
    return D9D_OK;
}

static d9d_status shrink_one(void *arg, d9d_param *p)
{
    float *x = d9d_tensor_data(&p->shard.data);

    (void)arg;
    if (p->spec.dtype != D9D_F32)
        return D9D_FAIL(D9D_EINVAL, "shrink: %s is not float32", p->name);
    for (int64_t i = 0; i < d9d_tensor_numel(&p->shard.data); i++)
        x[i] *= 0.9F;
    return D9D_OK;
}

static d9d_status shrink(void *self, const d9d_job_event *e)
{
    (void)self, (void)e;
    for (size_t i = 0; i < n_models; i++)
        D9D_TRY(d9d_module_each(models[i]->module, shrink_one, NULL));
    return D9D_OK;
}

static const d9d_job_event_handler events[] = {
    {"train.configuration.model_stages", keep},
    {"train.step.post", shrink},
    {NULL, NULL},
};
D9D_PLUGIN(.events = events);
