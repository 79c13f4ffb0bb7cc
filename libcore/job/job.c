/* job.c - checks of a job's configuration.  See d9d/job/job.h. */
#include "d9d/job/job.h"

#include <string.h>

#include "d9d/base/json.h"
#include "d9d/models/models.h"

/* --- what need not be said twice ------------------------------------------------- */

/* A plugin's models may know no config.json. */
static bool is_built_in(const json_t *provider)
{
    const char *name = json_string_value(json_object_get(provider, "name"));

    for (size_t i = 0; name != NULL && d9d_model_choices[i] != NULL; i++)
        if (strcmp(d9d_model_choices[i]->name, name) == 0)
            return true;
    return false;
}

d9d_status d9d_job_fill_hf_config(json_t *doc)
{
    json_t *provider = json_object_get(doc, "model_provider");
    const char *source = NULL;

    if (!is_built_in(provider) || json_object_get(provider, "hf_config") != NULL ||
        json_object_get(provider, "model") != NULL ||
        json_unpack(doc, "{s:{s:{s:s}}}", "trainer", "model_stage_factory", "source_checkpoint",
                    &source) != 0)
        return D9D_OK;
    return json_object_set_new(provider, "hf_config", d9d_json_str(source)) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "model_provider.hf_config: out of memory");
}

/* --- mesh and batch -------------------------------------------------------------- */

d9d_status d9d_job_check_batching(const d9d_parallel_degrees *m,
                                  const struct d9d_job_batching_section *b)
{
    const int64_t replicas = m->data_parallel_replicate * m->data_parallel_shard; /* each < 2^20 */
    int64_t once;

    if (__builtin_mul_overflow(replicas, b->microbatch_size, &once))
        once = INT64_MAX;
    if (b->global_batch_size % once != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.batching: global_batch_size %lld is not a multiple of %lld "
                        "(%lld data-parallel ranks x microbatch_size %lld)",
                        (long long)b->global_batch_size, (long long)once, (long long)replicas,
                        (long long)b->microbatch_size);
    return D9D_OK;
}

d9d_status d9d_job_check_optimizer_in_backward(const d9d_train_config *c)
{
    const d9d_job_trainer_section *t = &c->trainer;
    const int64_t replicas = c->mesh.data_parallel_replicate * c->mesh.data_parallel_shard,
                  n_micro = t->batching.global_batch_size / replicas / t->batching.microbatch_size;

    if (!t->optimizer_in_backward)
        return D9D_OK;
    if (t->gradient_clipping.max_norm > 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.optimizer_in_backward: a step's norm is known when its last "
                        "gradient is, and then none is left to be clipped to "
                        "trainer.gradient_clipping.max_norm %g; set one of both",
                        t->gradient_clipping.max_norm);
    if (n_micro > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.optimizer_in_backward: gradients of the %lld micro-batches of a "
                        "step are accumulated, so that they stay; trainer.batching.microbatch_size "
                        "%lld makes one of them",
                        (long long)n_micro, (long long)(n_micro * t->batching.microbatch_size));
    if (c->mesh.pipeline_parallel > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.optimizer_in_backward: needs the whole model in one stage, and "
                        "mesh.pipeline_parallel is %lld; set one of both",
                        (long long)c->mesh.pipeline_parallel);
    if (t->integrity.rerun_period_steps != D9D_PERIOD_DISABLE)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.optimizer_in_backward: trainer.integrity.rerun_period_steps %lld "
                        "computes a step twice, and the first time changes its weights; set one of "
                        "both",
                        (long long)t->integrity.rerun_period_steps);
    return D9D_OK;
}

d9d_status d9d_job_check_profiling(const d9d_job_profiling_section *p)
{
    if (p == NULL || p->active_steps <= p->period_steps)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "trainer.profiling: active_steps is %lld, of period_steps %lld at most as many "
                    "can be traced",
                    (long long)p->active_steps, (long long)p->period_steps);
}

/* --- the pipeline ------------------------------------------------------------------ */

d9d_pipe_schedule_opts d9d_job_pipe_schedule_opts(const struct d9d_job_pipelining_section *s)
{
    const d9d_job_stages_section *own = s->schedule.value;
    const d9d_pipe_schedule_kind *kind = s->schedule.choice->row;

    if (kind != NULL)
        return (d9d_pipe_schedule_opts){
            .custom = kind, .config = s->schedule.value, .kind = D9D_PIPE_1F1B};
    return (d9d_pipe_schedule_opts){.kind = (d9d_pipe_schedule)s->schedule.which,
                                    .stages_per_rank = (int)own->num_stages_per_rank,
                                    .zero_bubble = own->zero_bubble,
                                    .deep_warmup = own->deep_warmup};
}

json_t *d9d_job_pipelining_json(const d9d_pipe_schedule_opts *opts)
{
    json_t *own = json_pack("{s:s}", "schedule", d9d_pipe_schedule_name(opts->kind));

    if (opts->stages_per_rank > 1)
        d9d_json_set(&own, "num_stages_per_rank", json_integer(opts->stages_per_rank));
    if (opts->zero_bubble)
        d9d_json_set(&own, "zero_bubble", json_true());
    if (opts->deep_warmup)
        d9d_json_set(&own, "deep_warmup", json_true());
    return own != NULL ? json_pack("{s:o}", "schedule", own) : NULL;
}
