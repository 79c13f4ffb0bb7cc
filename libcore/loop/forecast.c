/* forecast.c - see d9d/loop/forecast.h. */
#include "d9d/loop/forecast.h"

#include "d9d/device/imagined.h"
#include "loop/dry_run.h"
#include "loop/launch.h"

/* --- the data ------------------------------------------------------------------------------ */

enum { LOOK = 4096 }; /* samples whose lengths are looked at */

/* What the data say of rows. */
typedef struct rows {
    int64_t longest, mean; /* positions, padding and all */
    int64_t document;      /* of packed rows; 0: not packed */
    double tokens;         /* targets of a row, nearly */
    int64_t steps;         /* -1: nobody said */
} rows;

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t longest_of(const d9di_data *d)
{
    int64_t n = 1;

    for (size_t i = 0; i < d->n; i++)
        if (d9d_dataset_max_length(d->datasets[i]) > n)
            n = d9d_dataset_max_length(d->datasets[i]);
    return round_up(n, d->how.multiple);
}

/* Mean positions of a packed document. */
static d9d_status document_of(const d9di_data *d, int64_t *out)
{
    d9d_dataset *ds = d->datasets[0];
    int64_t positions = 0, documents = 0;
    d9d_sample s;

    *out = 0;
    if (!d9d_dataset_is_packed(ds))
        return D9D_OK;
    for (int64_t k = 0; k < d9d_dataset_count(ds) && k < LOOK; k++) {
        D9D_TRY(d9d_dataset_sample(ds, k, &s));
        positions += s.length;
        documents += s.n_segments;
    }
    *out = documents > 0 && positions > documents ? positions / documents : 1;
    return D9D_OK;
}

static d9d_status rows_of_data(const d9di_data *d, const d9d_train_config *c, rows *out)
{
    const struct d9d_batching_section *b = &c->trainer.batching;
    const int64_t samples = d9d_loader_samples(d->loader), n = samples < LOOK ? samples : LOOK;
    int64_t cells = 0, positions = 0;

    D9D_TRY(d9di_data_steps(d, b->global_batch_size, c->trainer.run.steps, &out->steps));
    D9D_TRY(document_of(d, &out->document));
    D9D_TRY(d9d_loader_measure(d->loader, 0, n, b->microbatch_size, &cells, &positions));
    out->longest = out->mean = longest_of(d);
    out->tokens = (double)out->longest;
    if (cells > 0) {
        const int64_t measured = n / b->microbatch_size * b->microbatch_size;

        out->mean = round_up((cells + measured - 1) / measured, d->how.multiple);
        out->tokens = (double)positions / (double)measured;
    }
    return D9D_OK;
}

/* `data` may be left without datasets. */
static d9d_status rows_find(const d9d_train_config *c, const d9d_forecast_how *how, d9di_data *data,
                            rows *out)
{
    const struct d9d_batching_section *b = &c->trainer.batching;

    *data = (d9di_data){0};
    if (how->length > 0) {
        const int64_t steps = c->trainer.run.steps;
        const int64_t length =
            round_up(how->length, d9di_data_multiple(&c->mesh, c->trainer.data_loading.multiple));

        *out = (rows){.longest = length,
                      .mean = length,
                      .tokens = (double)how->length,
                      .steps = steps != D9D_INT_NULL ? steps : -1};
        return D9D_OK;
    }
    D9D_TRY(
        d9di_data_open(&c->data, &c->trainer.data_loading, &c->mesh, b->global_batch_size, data));
    return rows_of_data(data, c, out);
}

/* --- ranks --------------------------------------------------------------------------------- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What is of the longest rows, and what of those of the mean length. */
static d9d_status stage_make(const d9di_dry_how *how, const rows *r, d9d_arena *a,
                             d9d_forecast_rank *stage, d9di_dry_run *dry)
{
    d9di_dry_how at = *how;
    d9di_dry_run mean;

    at.batch.length = r->longest;
    D9D_TRY(d9di_dry_run_make(&at, a, dry));
    mean = *dry;
    at.batch.length = r->mean;
    if (r->mean < r->longest)
        D9D_TRY(d9di_dry_run_make(&at, a, &mean));
    *stage = (d9d_forecast_rank){
        .rank = how->rank,
        .weights = dry->weights,
        .gradients = dry->gradients,
        .optimizer = dry->optimizer,
        .units = dry->units,
        .scratch = dry->scratch,
        .peak = dry->peak,
        .outside = d9d_paper_chip_find(how->chip)->outside,
        .step_s = mean.step_s,
        .tally = mean.tally,
    };
    stage->activations =
        less(dry->peak, dry->weights + dry->gradients + dry->optimizer + dry->units + dry->scratch);
    dry->model_flops = mean.model_flops;
    return D9D_OK;
}

static d9d_status stages_make(d9di_dry_how *how, const rows *r, d9d_arena *a, d9d_forecast *p)
{
    const int64_t n = p->mesh.pipeline_parallel;
    double flops = 0;

    p->stages = d9d_arena_alloc(a, (size_t)n * sizeof(*p->stages));
    if (p->stages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: %lld stages", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        d9d_forecast_rank *stage = &p->stages[p->n_stages];
        d9di_dry_run dry;

        how->rank = (int)(i * (p->ranks / n));
        D9D_TRY(stage_make(how, r, a, stage, &dry));
        stage->ranks = p->ranks / n;
        p->n_stages++;
        p->parameters += dry.parameters;
        p->checkpoint += dry.saved;
        p->exported += dry.exported;
        p->step_s = stage->step_s > p->step_s ? stage->step_s : p->step_s;
        flops += dry.model_flops;
    }
    p->mfu = p->tokens * flops / (p->step_s * (double)p->ranks * p->chip->flops);
    return D9D_OK;
}

/* --- the plan ------------------------------------------------------------------------------- */

d9d_status d9d_forecast_make(const d9d_train_config *c, const d9d_forecast_how *how, d9d_arena *a,
                             d9d_forecast *out)
{
    const struct d9d_batching_section *b = &c->trainer.batching;
    const int64_t replicas = c->mesh.data_parallel_replicate * c->mesh.data_parallel_shard;
    d9d_forecast p = {.mesh = c->mesh, .asked = how->memory > 0, .rows = b->microbatch_size};
    d9di_data data = {0};
    d9di_dry_how dry = {.config = c, .chip = how->chip, .data = &data};
    d9d_status st;
    rows r = {0};

    D9D_TRY(d9d_device_check_imagined(how->chip));
    p.chip = d9d_paper_chip_find(how->chip);
    p.memory = p.asked ? how->memory : p.chip->memory;
    p.ranks = d9d_degrees_ranks(&c->mesh);
    D9D_TRY(d9d_degrees_check(&c->mesh, p.ranks));
    (void)d9d_degrees_text(&c->mesh, p.mesh_text, sizeof(p.mesh_text));
    D9D_TRY(d9d_job_check_batching(&c->mesh, b));
    p.micro_batches = b->global_batch_size / replicas / b->microbatch_size;
    D9D_TRY_OR(st, d9di_launch_checked(rows_find(c, how, &data, &r)), out);
    p.longest = r.longest;
    p.length = r.mean;
    p.document = r.document;
    p.steps = r.steps;
    p.tokens = r.tokens * (double)b->global_batch_size;
    dry.batch = (d9di_dry_batch){b->microbatch_size, r.longest, r.document};
    D9D_TRY_OR(st, d9di_launch_checked(stages_make(&dry, &r, a, &p)), out);
    *out = p;
out:
    d9di_data_release(&data);
    return st;
}

/* --- what it says ----------------------------------------------------------------------------- */

uint64_t d9d_forecast_bytes(const d9d_forecast_rank *r)
{
    return r->peak + r->outside;
}

const d9d_forecast_rank *d9d_forecast_largest(const d9d_forecast *p)
{
    const d9d_forecast_rank *most = p->stages;

    for (size_t i = 1; i < p->n_stages; i++)
        if (d9d_forecast_bytes(&p->stages[i]) > d9d_forecast_bytes(most))
            most = &p->stages[i];
    return most;
}

bool d9d_forecast_fits(const d9d_forecast *p)
{
    return p->memory == 0 || d9d_forecast_bytes(d9d_forecast_largest(p)) <= p->memory;
}

d9d_status d9d_forecast_verdict(const d9d_forecast *p)
{
    const d9d_forecast_rank *most = d9d_forecast_largest(p);

    if (!p->asked || d9d_forecast_fits(p))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "rank %lld (%s) needs %.2f GB and may take %.2f GB: it does not fit",
                    (long long)most->rank, p->mesh_text, (double)d9d_forecast_bytes(most) * 1e-9,
                    (double)p->memory * 1e-9);
}

double d9d_forecast_tokens_per_hour(const d9d_forecast *p)
{
    return p->tokens / p->step_s * 3600;
}
