/* plan_lengths.c - see plan/plan_lengths.h. */
#include "plan/plan_lengths.h"

#include "d9d/model/lora/peft.h"

enum { MAX_SAMPLES = 4096 }; /* samples whose lengths are read */

/* Mean positions of a packed document. */
static d9d_status mean_document_length(const d9di_run_data *d, int64_t *out)
{
    d9d_dataset *ds = d->datasets[0];
    int64_t positions = 0, documents = 0;
    d9d_sample s;

    *out = 0;
    if (!d9d_dataset_is_packed(ds) || d9d_dataset_is_stream(ds))
        return D9D_OK;
    for (int64_t k = 0; k < d9d_dataset_count(ds) && k < MAX_SAMPLES; k++) {
        D9D_TRY(d9d_dataset_sample(ds, k, &s));
        positions += s.length;
        documents += s.n_segments;
    }
    *out = documents > 0 && positions > documents ? positions / documents : 1;
    return D9D_OK;
}

/* Of sequences that begin with so many virtual tokens. */
static int64_t longest_sample(const d9di_run_data *d, int64_t virtual_tokens)
{
    int64_t longest = 1;

    for (size_t i = 0; i < d->n; i++)
        if (d9d_dataset_max_length(d->datasets[i]) > longest)
            longest = d9d_dataset_max_length(d->datasets[i]);
    return longest + virtual_tokens;
}

/* Keeps the evaluation's batch if it is the largest so far. */
static void add_evaluation(const d9di_evaluation *v, d9di_plan_data *out)
{
    const int64_t wanted = v->c->samples != D9D_INT_NULL ? v->c->samples : INT64_MAX;
    const int64_t samples = out->length == 0 ? v->samples : wanted;
    const int64_t longest =
        out->length == 0 ? longest_sample(&v->data, out->virtual_tokens) : out->length;
    const int64_t rows = v->micro < samples ? v->micro : samples;

    if (rows * longest > out->evaluated_rows * out->evaluated_longest) {
        out->evaluated_rows = rows;
        out->evaluated_longest = longest;
        out->evaluated_batches = (samples - 1) / rows + 1;
    }
}

static d9d_status check_metrics(const d9d_train_config *c, const d9d_head *head, d9di_plan_data *d)
{
    d9di_run_metrics m = {0};
    d9d_status st = d9di_task_open_metrics(&d->task, &c->metrics, "metrics", &d->arena, &m);

    if (st == D9D_OK)
        st = d9di_run_metrics_check_head(&m, head);
    d9di_run_metrics_release(&m);
    return st;
}

/* The task's head; if the task leaves its size open, the size in the model's configuration. */
static d9d_status find_head(const d9d_train_config *c, d9di_plan_data *d, d9d_head *out)
{
    const d9d_head wanted = d9di_task_head(&d->task);
    d9d_model_spec spec;

    D9D_TRY(d9d_model_spec_read(&c->model_provider, &d->arena, &spec));
    D9D_TRY(d9d_model_spec_set_head(&spec, &d->arena, &wanted));
    *out = spec.opts.head;
    return D9D_OK;
}

static d9d_status check_schedule(const d9d_train_config *c, const d9di_plan_data *d)
{
    d9d_lr_schedule *lr;

    if (d->steps < 0)
        return D9D_OK;
    D9D_TRY(d9d_lr_schedule_create(&c->lr_scheduler, "lr_scheduler", d->steps, &lr));
    d9d_lr_schedule_free(lr);
    return D9D_OK;
}

static d9d_status dataset_open(const d9d_train_config *c, const d9d_parallel_degrees *mesh,
                               d9di_plan_data *d)
{
    const d9d_status st = d9di_run_data_open(&c->data, &c->trainer.data_loading, mesh,
                                             c->trainer.batching.global_batch_size, &d->data);

    return st != D9D_ENOTFOUND
               ? st
               : D9D_FAIL(st, "%s; --length plans rows of so many tokens without data",
                          d9d_err_message());
}

/* In the order of train_open.c. */
static d9d_status data_open(const d9d_train_config *c, d9di_plan_data *d)
{
    const int64_t g = c->trainer.batching.global_batch_size, steps = c->trainer.run.steps;
    const d9d_parallel_degrees one = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    d9d_head head;

    D9D_TRY(d9di_task_open(&c->task, &d->task));
    if (d->length == 0) {
        D9D_TRY(dataset_open(c, &one, d));
        if (d->virtual_tokens > 0)
            D9D_TRY(d9d_loader_set_virtual_tokens(d->data.loader, 0, d->virtual_tokens));
        D9D_TRY(d9di_run_data_steps(&d->data, g, steps, &d->steps));
        D9D_TRY(d9di_task_set_data(&d->task, &d->data, d->steps * g));
        D9D_TRY(mean_document_length(&d->data, &d->document));
    }
    D9D_TRY(find_head(c, d, &head));
    D9D_TRY(check_metrics(c, &head, d));
    D9D_TRY(d9di_evaluations_open(c, &d->task, d->length == 0 ? &one : NULL, &d->arena,
                                  &d->evaluations));
    D9D_TRY(d9di_evaluations_check_head(&d->evaluations, &head));
    return check_schedule(c, d);
}

d9d_status d9di_plan_data_open(const d9d_train_config *c, int64_t length, d9di_plan_data *out)
{
    const d9d_peft_prompt *prompt = d9d_peft_prompt_of(&c->peft);
    const int64_t steps = c->trainer.run.steps;
    d9d_status st;

    *out = (d9di_plan_data){.length = length,
                            .steps = steps != D9D_INT_NULL ? steps : -1,
                            .virtual_tokens = prompt != NULL ? prompt->num_virtual_tokens : 0};
    st = data_open(c, out);
    if (st != D9D_OK) {
        d9di_plan_data_release(out);
        return st;
    }
    for (size_t i = 0; i < out->evaluations.n; i++)
        add_evaluation(&out->evaluations.v[i], out);
    return D9D_OK;
}

void d9di_plan_data_release(d9di_plan_data *d)
{
    d9di_evaluations_release(&d->evaluations);
    d9di_run_data_release(&d->data);
    d9di_task_close(&d->task);
    d9d_arena_release(&d->arena);
    *d = (d9di_plan_data){0};
}

/* Samples are prompts, and completions follow, as long as they may be. */
static void add_completions(const d9di_plan_data *d, d9di_plan_lengths *r)
{
    const d9d_grpo_section *c = d9di_task_generation(&d->task);
    const int64_t more = c != NULL ? c->max_completion_length : 0;

    r->longest += more;
    r->mean += more;
    r->tokens += (double)more;
}

static d9d_status measure_samples(const d9di_plan_data *d, int64_t rows, d9di_plan_lengths *out)
{
    const bool known = d->length == 0 && d9d_loader_stream(d->data.loader) == NULL;
    const int64_t samples = known ? d9d_loader_samples(d->data.loader) : 0;
    const int64_t n = (samples < MAX_SAMPLES ? samples : MAX_SAMPLES) / rows * rows;
    const int64_t longest = d->length > 0 ? d->length : longest_sample(&d->data, d->virtual_tokens);
    int64_t padded, positions;

    *out = (d9di_plan_lengths){longest, longest, (double)longest};
    if (n == 0)
        return D9D_OK;
    D9D_TRY(d9d_loader_measure_padding(d->data.loader, 0, n, rows, &padded, &positions));
    out->mean = (padded + n - 1) / n;
    out->tokens = (double)positions / (double)n;
    return D9D_OK;
}

d9d_status d9di_plan_lengths_measure(const d9di_plan_data *d, int64_t rows, d9di_plan_lengths *out)
{
    D9D_TRY(measure_samples(d, rows, out));
    add_completions(d, out);
    return D9D_OK;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t d9di_plan_lengths_round(int64_t positions, const d9d_train_config *c)
{
    return round_up(positions, d9di_run_data_pad_multiple(
                                   &c->mesh, c->trainer.data_loading.pad_to_multiple_of));
}

d9di_plan_lengths d9di_plan_lengths_pad(const d9di_plan_lengths *r, const d9d_train_config *c)
{
    return (d9di_plan_lengths){d9di_plan_lengths_round(r->longest, c),
                               d9di_plan_lengths_round(r->mean, c), r->tokens};
}
