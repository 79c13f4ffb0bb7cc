/* frozen_model.c - see engine/frozen_model.h. */
#include "engine/frozen_model.h"

#include "d9d/base/plugin_call.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/parallel/parallel_plan.h"
#include "d9d/parallel/tied_weights.h"

/* --- which weights --------------------------------------------------------------------------- */

/* True if all trained parameters are adapters. */
static bool trains_adapters_alone(const d9di_engine *e)
{
    bool any = false;

    for (size_t i = 0; i < e->whole.params.n; i++) {
        const d9d_param *p = e->whole.params.p[i];

        if (p->spec.trainable && p->peft.adapts == NULL)
            return false;
        any = any || p->peft.adapts != NULL;
    }
    return any;
}

/* "start": the trained model without its adapters, or a copy of what it begins with. */
static d9d_status start_open(d9di_engine *e, const d9di_engine_opts *opts)
{
    d9di_frozen_model *f = &e->frozen;

    f->without_adapters = trains_adapters_alone(e);
    if (e->whole.adapters.n > 0 && (!f->without_adapters || opts->adapter != NULL))
        return D9D_FAIL(D9D_ECONFIG,
                        "task %s: its reference \"start\" is the model without its adapters, and "
                        "this run begins with %s; name a {\"checkpoint\": ...}",
                        f->task_name,
                        opts->adapter != NULL ? "a source_adapter" : "other trained parameters");
    if (opts->adapter != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "task %s: its reference \"start\" has a source_adapter merged; merge it "
                        "with d9d-map before, or name a {\"checkpoint\": ...}",
                        f->task_name);
    f->spec = e->spec;
    f->source = opts->source;
    return D9D_OK;
}

static d9d_status checkpoint_open(d9di_engine *e, const d9di_engine_opts *opts,
                                  const char *checkpoint)
{
    d9di_frozen_model *f = &e->frozen;
    const d9d_head head = d9di_task_head(opts->task);
    json_t *doc;
    d9d_status st;

    f->source = checkpoint;
    D9D_TRY(d9d_hf_config_load(checkpoint, &doc));
    st = d9d_model_spec_of(opts->provider->choices, doc, checkpoint, &e->arena, &f->spec);
    json_decref(doc);
    D9D_TRY(st);
    D9D_TRY(d9d_model_spec_set_head(&f->spec, &e->arena, &head));
    f->spec.opts.dtype = e->spec.opts.dtype;
    f->spec.opts.recompute = D9D_RECOMPUTE_OFF;
    return D9D_OK;
}

/* --- opening --------------------------------------------------------------------------------- */

static d9d_status model_create(d9di_engine *e, d9d_stage stage, d9d_model **model,
                               d9d_params *params)
{
    const d9d_model_spec *s = &e->frozen.spec;

    D9D_TRY(D9D_PLUGIN_CALL(s->provider->table->name, s->provider, create, s->config, stage,
                            &s->opts, model));
    D9D_TRY(d9d_module_bind((*model)->module));
    D9D_TRY(d9d_module_params((*model)->module, &e->arena, params));
    for (size_t i = 0; i < params->n; i++) {
        params->p[i]->spec.trainable = false;
        params->p[i]->shard.data =
            (d9d_tensor){.dtype = params->p[i]->spec.dtype, .shape = params->p[i]->shard.shape};
    }
    return D9D_OK;
}

/* The two models take the same tokens and masks. */
static d9d_status check_model(const d9di_engine *e, const d9di_engine_opts *opts)
{
    const d9d_model *m = e->frozen.whole, *own = e->whole.model;
    const char *task = e->frozen.task_name, *from = e->frozen.source;

    if (m->vocab != own->vocab)
        return D9D_FAIL(D9D_ECONFIG, "task %s: %s has a vocabulary of %lld, the model %lld", task,
                        from, (long long)m->vocab, (long long)own->vocab);
    if (m->bidirectional != own->bidirectional ||
        e->frozen.spec.opts.prefix_mask != e->spec.opts.prefix_mask)
        return D9D_FAIL(D9D_ECONFIG, "task %s: %s has another attention mask than the model", task,
                        from);
    return opts->data != NULL ? d9di_run_data_check(opts->data, m->vocab, m->max_positions)
                              : D9D_OK;
}

/* The data's tokenizer is the folder's, where both have one. */
static d9d_status check_tokenizer(d9di_engine *e, const d9di_engine_opts *opts)
{
    const char *path = d9d_fs_join(&e->arena, e->frozen.source, "tokenizer.json");

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a name in it", e->frozen.source);
    if (!d9d_fs_exists(path) || opts->data == NULL)
        return D9D_OK;
    for (size_t i = 0; i < opts->data->n; i++)
        D9D_TRY(d9d_dataset_check_tokenizer(opts->data->datasets[i], path));
    return D9D_OK;
}

static d9d_status stage_open(d9di_engine *e, size_t k)
{
    d9di_frozen_model *f = &e->frozen;
    const d9d_stage stage = e->stages[k].model->stage;
    d9di_frozen_model_stage *s = &f->stages[k];
    d9d_model_spec spec = f->spec;

    f->n_stages++;
    if (stage.count == 1) {
        s->model = f->whole;
        s->params = f->params;
    } else {
        D9D_TRY(model_create(e, stage, &s->model, &s->params));
    }
    spec.params = &s->params;
    return f->source != NULL ? d9d_weights_open(&spec, stage, f->source, NULL, &s->weights)
                             : D9D_OK;
}

d9d_status d9di_frozen_model_open(d9di_engine *e, const d9di_engine_opts *opts)
{
    const d9d_task_reference r = d9di_task_reference(opts->task);
    d9di_frozen_model *f = &e->frozen;

    if (!r.wanted)
        return D9D_OK;
    f->wants_losses = r.losses;
    f->task_name = opts->task->kind->table->name;
    D9D_TRY(r.checkpoint != NULL ? checkpoint_open(e, opts, r.checkpoint) : start_open(e, opts));
    f->is_on = true;
    if (f->without_adapters)
        return D9D_OK;
    D9D_TRY(d9d_parallel_plan_check(&f->spec, opts->mesh));
    D9D_TRY(model_create(e, D9D_WHOLE_MODEL, &f->whole, &f->params));
    f->spec.params = &f->params;
    D9D_TRY(check_model(e, opts));
    if (r.checkpoint != NULL)
        D9D_TRY(check_tokenizer(e, opts));
    if (f->source != NULL && e->exec.program.stages > 1)
        D9D_TRY(d9d_weights_check(&f->spec, f->source, NULL));
    f->stages = d9d_arena_alloc(&e->arena, e->n_stages * sizeof(*f->stages));
    if (f->stages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu stages", e->n_stages);
    for (size_t k = 0; k < e->n_stages; k++)
        D9D_TRY(stage_open(e, k));
    return D9D_OK;
}

/* --- memory ---------------------------------------------------------------------------------- */

static const d9d_fsdp_opts frozen_fsdp = {.with_grads = false};

d9d_status d9di_frozen_model_place(d9di_engine *e, uint64_t *group_bytes)
{
    d9di_frozen_model *f = &e->frozen;

    for (size_t k = 0; k < f->n_stages; k++) {
        uint64_t bytes;

        D9D_TRY(d9d_parallel_plan_apply(&f->spec, e->mesh, f->stages[k].model));
        d9d_tied_weights_set_primary(f->stages[k].model);
        D9D_TRY(d9d_fsdp_bytes(f->stages[k].model, &frozen_fsdp, &bytes));
        *group_bytes = bytes > *group_bytes ? bytes : *group_bytes;
    }
    return D9D_OK;
}

uint64_t d9di_frozen_model_bytes(const d9di_engine *e)
{
    uint64_t sum = 0;

    for (size_t k = 0; k < e->frozen.n_stages; k++)
        for (size_t i = 0; i < e->frozen.stages[k].params.n; i++) {
            const d9d_param *p = e->frozen.stages[k].params.p[i];

            sum += (uint64_t)d9d_shape_numel(&p->shard.shape) * d9d_dtype_size(p->spec.dtype);
        }
    return sum;
}

int64_t d9di_frozen_model_param_count(const d9di_engine *e)
{
    int64_t n = 0;

    for (size_t k = 0; k < e->frozen.n_stages; k++)
        for (size_t i = 0; i < e->frozen.stages[k].params.n; i++) {
            const d9d_param *p = e->frozen.stages[k].params.p[i];

            n += p->placement.is_primary ? d9d_shape_numel(&p->spec.shape) : 0;
        }
    return n;
}

d9d_status d9di_frozen_model_create(d9di_engine *e)
{
    for (size_t k = 0; k < e->frozen.n_stages; k++)
        D9D_TRY(d9d_fsdp_create(e->frozen.stages[k].model, e->dev, &frozen_fsdp,
                                &e->frozen.stages[k].sharded));
    return D9D_OK;
}

d9d_status d9di_frozen_model_materialize(d9di_engine *e, const d9di_engine_opts *opts)
{
    for (size_t k = 0; k < e->frozen.n_stages; k++) {
        d9di_frozen_model_stage *s = &e->frozen.stages[k];

        D9D_TRY(d9d_module_materialise(s->model->module, e->dev, false));
        for (size_t i = 0; s->weights == NULL && i < s->params.n; i++)
            D9D_TRY(d9d_module_reset_param(s->params.p[i], opts->seed));
        if (s->weights != NULL)
            D9D_TRY(d9d_weights_read(s->weights, &s->params, opts->where->log));
        d9d_weights_close(s->weights);
        s->weights = NULL;
    }
    if (e->frozen.is_on)
        d9d_log_info(opts->where->log, "task %s: its reference is %s", e->frozen.task_name,
                     e->frozen.without_adapters ? "the model without its adapters"
                     : e->frozen.source != NULL ? e->frozen.source
                                                : "the model as it is initialised");
    return D9D_OK;
}

void d9di_frozen_model_invalidate(d9di_engine *e)
{
    for (size_t k = 0; k < e->frozen.n_stages; k++)
        d9d_fsdp_invalidate(e->frozen.stages[k].sharded);
}

void d9di_frozen_model_release(d9di_engine *e)
{
    d9di_frozen_model *f = &e->frozen;

    for (size_t k = 0; k < f->n_stages; k++) {
        d9d_weights_close(f->stages[k].weights);
        d9d_fsdp_free(f->stages[k].sharded);
        if (f->stages[k].model != f->whole)
            d9d_model_free(f->stages[k].model);
    }
    d9d_model_free(f->whole);
    *f = (d9di_frozen_model){.is_on = false};
}

/* --- forward --------------------------------------------------------------------------------- */

d9d_model *d9di_frozen_model_stage_model(const d9di_engine *e, size_t k)
{
    return e->frozen.without_adapters ? e->stages[k].model : e->frozen.stages[k].model;
}

/* Keeps of the forward what the task or the next stage reads. */
static d9d_status run_reference(const d9di_engine *e, d9d_tape *t, const d9d_model_in *in,
                                d9d_model_reference *out)
{
    const bool last = d9d_stage_is_last(out->model->stage), losses = e->frozen.wants_losses;
    const size_t mark = d9d_tape_mark(t);
    d9d_var *keep[1 + D9D_STAGE_TENSORS_MAX];
    size_t n = 0;

    D9D_TRY(D9D_PLUGIN_CALL(out->model->ops->name, out->model->ops, forward, out->model, t, in,
                            &out->out));
    if (last && losses)
        out->out.hidden = NULL;
    if (out->out.hidden != NULL)
        keep[n++] = out->out.hidden;
    else if (out->out.loss != NULL)
        keep[n++] = out->out.loss;
    for (size_t i = 0; i < out->out.n_passed; i++)
        keep[n++] = out->out.passed[i].v;
    d9d_tape_release_since(t, mark, keep, n);
    return D9D_OK;
}

d9d_status d9di_frozen_model_forward(d9di_engine *e, size_t k, d9d_tape *t, const d9d_model_in *in,
                                     d9d_model_reference *out)
{
    d9d_fsdp *sharded =
        e->frozen.without_adapters ? e->stages[k].sharded : e->frozen.stages[k].sharded;
    d9d_model_in plain = *in;
    d9d_status st;

    *out = (d9d_model_reference){.model = d9di_frozen_model_stage_model(e, k)};
    plain.loss_is_root = false;
    plain.pool = NULL;
    plain.labels = e->frozen.wants_losses ? in->labels : NULL;
    d9d_fsdp_pre_forward(sharded, false, false);
    d9d_tape_begin_reference(t);
    st = run_reference(e, t, &plain, out);
    d9d_tape_end_reference(t);
    return st;
}
