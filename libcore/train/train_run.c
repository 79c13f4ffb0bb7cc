/* train_run.c - see train/train_run.h. */
#include "train/train_run.h"

#include "checkpointer/checkpointer_private.h"
#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/ckpt/dir/manifest.h"
#include "d9d/model/lora/peft.h"
#include "engine/job_start.h"

static d9d_status data_open(d9di_train_run *run, const d9di_task *task)
{
    const d9d_train_config *c = run->c;
    const int64_t g = c->trainer.batching.global_batch_size, steps = c->trainer.run.steps;
    const int64_t wanted =
        steps != D9D_INT_NULL ? (steps + run->iterations - 1) / run->iterations : D9D_INT_NULL;
    int64_t rounds;

    D9D_TRY(d9di_run_data_open(&c->data, &c->trainer.data_loading, &c->mesh, g, &run->data));
    D9D_TRY(d9di_run_data_steps(&run->data, g, wanted, &rounds));
    run->total_steps = steps != D9D_INT_NULL ? steps : rounds * run->iterations;
    return d9di_task_set_data(task, &run->data, rounds * g);
}

d9d_status d9di_train_run_open(d9di_train_run *run, const d9di_task *task, d9d_arena *a)
{
    const d9d_train_config *c = run->c;
    const struct d9d_job_batching_section *b = &c->trainer.batching;
    const d9d_grpo_section *generation = d9di_task_generation(task);

    D9D_TRY(d9di_job_start_open_events(run->where, &c->model_provider, task, a, &run->events));
    D9D_TRY(d9di_train_run_trigger(run, "train.configuration.start",
                                   (d9d_job_event){.bootstrap = run->where->bootstrap}));
    D9D_TRY(d9d_parallel_degrees_check(&c->mesh, d9d_bootstrap_size(run->where->bootstrap)));
    D9D_TRY(d9di_job_start_check_device(run->where->bootstrap, run->where->device));
    D9D_TRY(d9di_task_check_config(task, c));
    D9D_TRY(d9di_run_dir_set_paths(&c->trainer, a, &run->dir));
    D9D_TRY(d9di_run_dir_check(c, &run->dir));
    D9D_TRY(d9d_values_create(run->rank == 0, run->dir.path, &run->values));
    run->n_micro = b->global_batch_size / d9di_train_run_dp_size(run) / b->microbatch_size;
    run->micro_batch_term = d9di_task_micro_batch_term(task);
    run->iterations = generation != NULL ? generation->num_iterations : 1;
    D9D_TRY(data_open(run, task));
    D9D_TRY(d9di_run_data_check_rows(&run->data, b->microbatch_size));
    return d9di_train_run_trigger(run, "train.configuration.data_loader",
                                  (d9d_job_event){.loader = run->data.loader});
}

d9d_status d9di_train_run_open_schedule(d9di_train_run *run)
{
    d9d_lr_schedule_free(run->lr);
    run->lr = NULL;
    D9D_TRY(
        d9d_lr_schedule_create(&run->c->lr_scheduler, "lr_scheduler", run->total_steps, &run->lr));
    if (run->where->trial > 0 && run->total_steps > run->where->trial)
        run->total_steps = run->where->trial;
    return D9D_OK;
}

d9d_status d9di_train_run_go_on(d9di_train_run *run, int64_t step, int64_t samples)
{
    const int64_t g = run->c->trainer.batching.global_batch_size,
                  wanted = run->c->trainer.run.steps;
    const int64_t unread = d9d_loader_samples(run->data.loader) - samples;
    const int64_t left = unread > 0 ? unread / g * run->iterations : 0;

    if (run->where->trial > 0)
        return D9D_OK;
    if (wanted != D9D_INT_NULL && wanted - step > left)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.run.steps is %lld, and after step %lld and %lld sample%s %s has "
                        "%lld further step%s of %lld sample%s; raise data.epochs",
                        (long long)wanted, (long long)step, (long long)samples, D9D_PLURAL(samples),
                        run->data.sections[0].dataset, (long long)left, D9D_PLURAL(left),
                        (long long)g, D9D_PLURAL(g));
    if (wanted != D9D_INT_NULL || run->total_steps == step + left)
        return D9D_OK;
    run->total_steps = step + left;
    return d9di_train_run_open_schedule(run);
}

d9d_status d9di_train_run_check_dir(d9di_train_run *run)
{
    const struct d9d_job_checkpointing_section *c = &run->c->trainer.checkpointing;

    run->resumes = d9d_fs_exists(run->dir.metrics);
    D9D_TRY(d9di_run_dir_check_foreign(&run->dir));
    if (c->resume || (!run->resumes && d9d_fs_is_empty(run->dir.checkpoints)))
        return D9D_OK;
    if (!run->resumes && c->save_dir != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: holds checkpoints already; set trainer.checkpointing.resume or "
                        "another trainer.checkpointing.save_dir",
                        run->dir.checkpoints);
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: holds a run already; set trainer.checkpointing.resume or another "
                    "trainer.run.dir",
                    run->dir.path);
}

/* Rank 0 creates the run directory later, checkpoints after that, and the finished model last. */
d9d_status d9di_train_run_check_paths(const d9di_train_run *run)
{
    const char *const places[] = {run->dir.path, run->dir.checkpoints,
                                  d9di_train_run_export_dir(run)};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        D9D_TRY(d9d_fs_check_creatable(places[i]));
    return d9di_checkpointer_check_names(run->dir.checkpoints);
}

void d9di_train_run_close(d9di_train_run *run)
{
    d9d_lr_schedule_free(run->lr);
    d9di_run_data_release(&run->data);
    d9d_job_events_free(run->events);
}

d9d_status d9di_train_run_trigger(const d9di_train_run *run, const char *id, d9d_job_event e)
{
    e.size = sizeof(e);
    e.id = id;
    e.values = run->values;
    return d9d_job_events_trigger(run->events, &e);
}

d9d_status d9di_train_run_trigger_step(const d9di_train_run *run, const char *id, int64_t step)
{
    return d9di_train_run_trigger(run, id,
                                  (d9d_job_event){.step = step, .total_steps = run->total_steps});
}

bool d9di_train_run_is_at_round(const d9di_train_run *run, int64_t step)
{
    return step % run->iterations == 0;
}

bool d9di_train_run_is_done(const d9di_train_run *run, int64_t step)
{
    return step >= run->total_steps;
}

const char *d9di_train_run_export_dir(const d9di_train_run *run)
{
    if (d9di_train_run_exports_adapters(run))
        return run->dir.adapter;
    return run->c->export_to != NULL ? run->c->export_to : run->dir.export;
}

bool d9di_train_run_exports_adapters(const d9di_train_run *run)
{
    return run->c->trainer.model_stage_factory.quantization != D9D_QUANT_NONE ||
           d9d_peft_prompt_of(&run->c->peft) != NULL;
}

bool d9di_train_run_is_exported(const d9di_train_run *run)
{
    static const char *const names[] = {D9D_MANIFEST_NAME, "config.json", "adapter_config.json"};
    const char *dir = d9di_train_run_export_dir(run);
    d9d_arena a = {0};
    bool found = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !found; i++) {
        const char *path = d9d_fs_join(&a, dir, names[i]);

        found = path != NULL && d9d_fs_exists(path);
    }
    d9d_arena_release(&a);
    return found;
}

bool d9di_train_run_is_complete(const d9di_train_run *run, int64_t step)
{
    return d9di_train_run_is_done(run, step) && d9di_train_run_is_exported(run);
}

int64_t d9di_train_run_dp_size(const d9di_train_run *run)
{
    return run->c->mesh.data_parallel_replicate * run->c->mesh.data_parallel_shard;
}

d9di_run_data_samples_text d9di_train_run_describe_step(const d9di_train_run *run, int64_t first)
{
    return d9di_run_data_describe_samples(&run->data, first,
                                          run->c->trainer.batching.global_batch_size);
}
