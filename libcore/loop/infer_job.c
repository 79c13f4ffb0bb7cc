/* infer_job.c - see loop/infer_job.h. */
#include "loop/infer_job.h"

d9d_status d9di_infer_check(const d9d_infer_config *c, const d9d_job *where, const char *output)
{
    D9D_TRY(d9d_degrees_check(&c->mesh, d9d_boot_size(where->boot)));
    if (c->trainer.model_stage_factory.source_checkpoint == NULL)
        return D9D_FAIL(D9D_ECONFIG, "trainer.model_stage_factory.source_checkpoint: name the "
                                     "model's weights");
    return output != NULL && d9d_boot_rank(where->boot) == 0 ? d9d_fs_check_new(output) : D9D_OK;
}

d9di_engine_how d9di_infer_engine_opts(const d9d_infer_config *c, const d9d_job *where,
                                       const d9di_data *data, const d9di_task *task)
{
    const d9d_trainer_section *t = &c->trainer;

    return (d9di_engine_how){
        .where = where,
        .mesh = &c->mesh,
        .provider = &c->model_provider,
        .source = t->model_stage_factory.source_checkpoint,
        .adapter = t->model_stage_factory.source_adapter,
        .data = data,
        .task = task,
        .initialise = true,
        .timeout_s = (double)t->timeout.init_timeout,
        .stopped_s = (double)t->timeout.step_timeout,
    };
}
