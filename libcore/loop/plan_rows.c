/* plan_rows.c - see loop/plan_rows.h. */
#include "loop/plan_rows.h"

enum { LOOK = 4096 }; /* samples whose lengths are looked at */

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

static int64_t longest_of(const d9di_data *d)
{
    int64_t longest = 1;

    for (size_t i = 0; i < d->n; i++)
        if (d9d_dataset_max_length(d->datasets[i]) > longest)
            longest = d9d_dataset_max_length(d->datasets[i]);
    return longest;
}

/* The batch of an evaluation, if it is larger than that of those before. */
static d9d_status evaluation_add(const d9d_train_config *c, const d9d_evaluation_section *v,
                                 d9di_plan_data *out)
{
    const d9d_degrees one = {1, 1, 1, 1, 1, 1, 1};
    const int64_t micro = v->microbatch_size != D9D_INT_NULL ? v->microbatch_size
                                                             : c->trainer.batching.microbatch_size;
    int64_t longest = out->length, samples = INT64_MAX, rows;
    d9di_data data = {0};
    d9d_status st = D9D_OK;

    if (longest == 0) {
        st = d9di_data_open(&v->data, &c->trainer.data_loading, &one, micro, &data);
        longest = st == D9D_OK ? longest_of(&data) : 0;
        samples = st == D9D_OK ? d9d_loader_samples(data.loader) : samples;
        d9di_data_release(&data);
    }
    if (v->samples != D9D_INT_NULL && v->samples < samples)
        samples = v->samples;
    rows = micro < samples ? micro : samples;
    if (rows * longest > out->evaluated_rows * out->evaluated_longest) {
        out->evaluated_rows = rows;
        out->evaluated_longest = longest;
        out->evaluated_batches = (samples - 1) / rows + 1;
    }
    return st;
}

static d9d_status evaluations_add(const d9d_train_config *c, d9di_plan_data *out)
{
    const d9d_evaluation_section *sections = c->evaluation.items;

    for (size_t i = 0; i < c->evaluation.n; i++)
        D9D_TRY(evaluation_add(c, &sections[i], out));
    return D9D_OK;
}

d9d_status d9di_plan_data_open(const d9d_train_config *c, int64_t length, d9di_plan_data *out)
{
    const int64_t g = c->trainer.batching.global_batch_size, steps = c->trainer.run.steps;
    const d9d_degrees one = {1, 1, 1, 1, 1, 1, 1};
    d9d_status st;

    *out = (d9di_plan_data){.length = length, .steps = steps != D9D_INT_NULL ? steps : -1};
    D9D_TRY(evaluations_add(c, out));
    if (length > 0)
        return D9D_OK;
    st = d9di_data_open(&c->data, &c->trainer.data_loading, &one, g, &out->data);
    if (st == D9D_OK)
        st = d9di_data_steps(&out->data, g, steps, &out->steps);
    if (st == D9D_OK)
        st = document_of(&out->data, &out->document);
    if (st != D9D_OK)
        d9di_plan_data_release(out);
    return st;
}

void d9di_plan_data_release(d9di_plan_data *d)
{
    d9di_data_release(&d->data);
    d->data = (d9di_data){0};
}

d9d_status d9di_rows_measure(const d9di_plan_data *d, int64_t rows, d9di_rows *out)
{
    const int64_t samples = d->length == 0 ? d9d_loader_samples(d->data.loader) : 0;
    const int64_t n = (samples < LOOK ? samples : LOOK) / rows * rows;
    const int64_t longest = d->length > 0 ? d->length : longest_of(&d->data);
    int64_t cells, positions;

    *out = (d9di_rows){longest, longest, (double)longest};
    if (n == 0)
        return D9D_OK;
    D9D_TRY(d9d_loader_measure(d->data.loader, 0, n, rows, &cells, &positions));
    out->mean = (cells + n - 1) / n;
    out->tokens = (double)positions / (double)n;
    return D9D_OK;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t d9di_rows_round(int64_t positions, const d9d_train_config *c)
{
    return round_up(positions, d9di_data_multiple(&c->mesh, c->trainer.data_loading.multiple));
}

d9di_rows d9di_rows_padded(const d9di_rows *r, const d9d_train_config *c)
{
    return (d9di_rows){d9di_rows_round(r->longest, c), d9di_rows_round(r->mean, c), r->tokens};
}
