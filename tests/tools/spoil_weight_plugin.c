/* spoil_weight_plugin.c - a plugin for optimizer_in_backward.bats: makes one element of
 * model.layers.3.mlp.down_proj.weight infinite in step 2, when the event before its update comes.
 * With updates within backward that is between forward and backward, so that the loss is finite,
 * and gradients below that matrix are not. */
#include <d9d/tasks/plugin.h>
#include <math.h>
#include <string.h>

static d9d_param *matrix;

static d9d_status find(void *arg, d9d_param *p)
{
    (void)arg;
    if (strcmp(p->name, "model.layers.3.mlp.down_proj.weight") == 0)
        matrix = p;
    return D9D_OK;
}

static d9d_status look(void *self, const d9d_job_event *e)
{
    (void)self;
    return d9d_module_each(e->models[0]->module, find, NULL);
}

static d9d_status spoil(void *self, const d9d_job_event *e)
{
    (void)self;
    if (e->step == 1)
        ((float *)d9d_tensor_data(&matrix->shard.data))[0] = INFINITY;
    return D9D_OK;
}

static const d9d_job_event_handler events[] = {
    {"train.configuration.model_stages", look},
    {"train.optimizer_step.pre", spoil},
    {NULL, NULL},
};
D9D_PLUGIN(.events = events);
