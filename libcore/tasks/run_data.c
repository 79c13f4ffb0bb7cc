/* run_data.c - see tasks/run_data.h. */
#include "tasks/run_data.h"

#include <stdio.h>
#include <stdlib.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/data/dataset/dataset_kind.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "d9d/model/hf/hf_config.h"

static d9d_loader_source data_source(const d9di_run_data *d, size_t i)
{
    const d9d_job_data_section *s = &d->sections[i];

    return (d9d_loader_source){.dataset = d->datasets[i],
                               .order = (d9d_loader_order)s->order,
                               .seed = (uint64_t)s->seed,
                               .epochs = s->epochs == D9D_INT_NULL ? 0 : s->epochs,
                               .weight = s->weight,
                               .skip = &d->skips[i]};
}

static d9d_status loader_open(const d9di_run_data *d, int order, const d9d_loader_opts *opts,
                              d9d_loader **out)
{
    d9d_loader_source *sources = calloc(d->n, sizeof(*sources));
    d9d_status st;

    if (sources == NULL)
        return D9D_FAIL(D9D_ENOMEM, "data: %zu datasets", d->n);
    for (size_t i = 0; i < d->n; i++) {
        sources[i] = data_source(d, i);
        sources[i].order = order < 0 ? sources[i].order : (d9d_loader_order)order;
    }
    st = d9d_loader_open(sources, d->n, opts, out);
    free(sources);
    return st;
}

/* The first dataset of which this is known; NULL: none. */
static const d9d_dataset *find_special(const d9di_run_data *d, d9d_dataset_special special)
{
    for (size_t i = 0; d != NULL && i < d->n; i++)
        if (d9d_dataset_get_special(d->datasets[i]) == special)
            return d->datasets[i];
    return NULL;
}

void d9di_run_data_warn_special(const d9di_run_data *d, const d9di_run_data *other,
                                const d9d_log *log)
{
    const d9d_dataset *with = find_special(d, D9D_DATASET_SPECIAL_ADDED),
                      *without = find_special(d, D9D_DATASET_SPECIAL_NONE);

    with = with != NULL || without == NULL ? with : find_special(other, D9D_DATASET_SPECIAL_ADDED);
    without =
        without != NULL || with == NULL ? without : find_special(other, D9D_DATASET_SPECIAL_NONE);
    if (with != NULL && without != NULL)
        d9d_log_warn(log,
                     "%s has the tokenizer's special tokens around its texts and %s has none; "
                     "d9d-shard --add-special-tokens makes them alike",
                     d9d_dataset_dir(with), d9d_dataset_dir(without));
}

/* How the dataset's tokenizer encodes a text, such as <s> $A; empty: as it is. */
static d9d_status explain_special(d9d_dataset *ds, d9d_buf *out)
{
    const d9d_tokenizer *tok;
    size_t n = 0;

    D9D_TRY(d9d_dataset_tokenizer(ds, &tok));
    if (tok != NULL)
        D9D_TRY(d9d_tokenizer_count_special(tok, false, &n));
    return n > 0 ? d9d_tokenizer_print_special(tok, false, out) : D9D_OK;
}

d9d_status d9di_run_data_warn_bare(const d9di_run_data *d, const d9d_log *log)
{
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < d->n && st == D9D_OK && text.len == 0; i++) {
        if (d9d_dataset_get_special(d->datasets[i]) != D9D_DATASET_SPECIAL_NONE)
            continue;
        st = explain_special(d->datasets[i], &text);
        if (st == D9D_OK && text.len > 0)
            d9d_log_warn(log,
                         "%s has texts as they are, and its tokenizer encodes a prompt as %s, here "
                         "as in transformers; d9d-shard --add-special-tokens yes adds them, "
                         "task.add_special_tokens false of d9d-infer leaves them out",
                         d9d_dataset_dir(d->datasets[i]), text.data);
    }
    d9d_buf_release(&text);
    return st;
}

/* Least common multiple. */
static int64_t lcm_i64(int64_t a, int64_t b)
{
    int64_t x = a, y = b;

    while (y != 0) {
        const int64_t rest = x % y;

        x = y;
        y = rest;
    }
    return a / x * b;
}

int64_t d9di_run_data_pad_multiple(const d9d_parallel_degrees *mesh, int64_t wanted)
{
    const int64_t cp = mesh->context_parallel_shard * mesh->context_parallel_replicate;

    return lcm_i64(wanted, mesh->tensor_parallel * (cp > 1 ? 2 * cp : 1));
}

/* A stream is read as it is: what chooses a part of it would do nothing. */
static d9d_status check_stream_split(const d9d_job_data_section *s, const d9d_dataset *ds)
{
    if (!d9d_dataset_is_stream(ds) || strcmp(s->split, "train") == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: is a stream, which has no split \"%s\": all of it is read; put the texts "
                    "of each split under a path of their own",
                    s->dataset, s->split);
}

d9d_status d9di_run_data_open(const d9d_list *sections,
                              const struct d9d_job_data_loading_section *c,
                              const d9d_parallel_degrees *mesh, int64_t pack, d9di_run_data *out)
{
    d9di_run_data d = {
        .n = sections->n,
        .sections = sections->items,
        .opts = {.pack = pack,
                 .pad_to_multiple_of = d9di_run_data_pad_multiple(mesh, c->pad_to_multiple_of)}};
    d9d_status st = D9D_OK;

    d.datasets = calloc(d.n, sizeof(*d.datasets));
    d.skips = calloc(d.n, sizeof(*d.skips));
    if (d.datasets == NULL || d.skips == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "data: %zu datasets", d.n);
    for (size_t i = 0; i < d.n && st == D9D_OK; i++) {
        const d9d_job_data_section *s = &d.sections[i];

        st = s->source.choice != NULL
                 ? d9d_dataset_synthesize(&s->source, s->dataset, &d.datasets[i])
                 : d9d_dataset_open(s->dataset, s->split, &d.datasets[i]);
        if (st == D9D_OK)
            st = check_stream_split(s, d.datasets[i]);
        if (st == D9D_OK && s->skip_samples != NULL)
            st = d9d_index_set_read(s->skip_samples, &d.skips[i]);
    }
    if (st == D9D_OK)
        st = loader_open(&d, -1, &d.opts, &d.loader);
    *out = d;
    return st;
}

void d9di_run_data_release(d9di_run_data *d)
{
    d9d_loader_close(d->loader);
    for (size_t i = 0; i < d->n; i++) {
        if (d->datasets != NULL)
            d9d_dataset_close(d->datasets[i]);
        if (d->skips != NULL)
            d9d_index_set_release(&d->skips[i]);
    }
    free(d->datasets);
    free(d->skips);
}

d9d_status d9di_run_data_set_no_targets(const d9di_run_data *d, bool single, bool labelled,
                                        const char *task)
{
    for (size_t i = 0; i < d->n; i++) {
        d9d_dataset *ds = d->datasets[i];

        if (single && d9d_dataset_is_packed(ds))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: its samples are packed, and task %s makes one row of a sample",
                            d9d_dataset_dir(ds), task);
        if (labelled && !d9d_dataset_has_labels(ds))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: has no labels, which task %s learns from; d9d-shard --label-key "
                            "takes them from the texts' lines",
                            d9d_dataset_dir(ds), task);
        d9d_dataset_set_no_targets(ds);
    }
    return D9D_OK;
}

d9d_status d9di_run_data_check(const d9di_run_data *d, int64_t vocab, int64_t positions)
{
    for (size_t i = 0; i < d->n; i++) {
        const d9d_dataset *ds = d->datasets[i];

        if (d9d_dataset_vocab(ds) > vocab)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: its ids are below %lld and the model's vocabulary has %lld; is it "
                            "another model's dataset?",
                            d9d_dataset_dir(ds), (long long)d9d_dataset_vocab(ds),
                            (long long)vocab);
        if (d9d_dataset_max_length(ds) > positions)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: its longest sample has %lld tokens and the model has %lld "
                            "positions",
                            d9d_dataset_dir(ds), (long long)d9d_dataset_max_length(ds),
                            (long long)positions);
    }
    return D9D_OK;
}

d9d_status d9di_run_data_add_prompt(const d9di_run_data *d, const d9d_model *m)
{
    for (size_t i = 0; i < d->n && m->virtual_tokens > 0; i++) {
        const int64_t longest = d9d_dataset_max_length(d->datasets[i]);

        if (longest + m->virtual_tokens > m->max_positions)
            return D9D_FAIL(
                D9D_EMISMATCH,
                "%s: its longest sample has %lld tokens, and behind %lld virtual tokens "
                "the model has %lld positions",
                d9d_dataset_dir(d->datasets[i]), (long long)longest, (long long)m->virtual_tokens,
                (long long)(m->max_positions - m->virtual_tokens));
    }
    return m->virtual_tokens > 0 && d->loader != NULL
               ? d9d_loader_set_virtual_tokens(d->loader, (int32_t)m->vocab, m->virtual_tokens)
               : D9D_OK;
}

/* `ours` is loaded when the first dataset was made with another file. */
static d9d_status check_tokenizer(d9d_dataset *ds, const char *path, d9d_tokenizer **ours)
{
    const d9d_tokenizer *theirs;

    if (d9d_dataset_check_tokenizer(ds, path) == D9D_OK)
        return D9D_OK;
    D9D_TRY(d9d_dataset_tokenizer(ds, &theirs));
    if (*ours == NULL)
        D9D_TRY(d9d_tokenizer_load(path, ours));
    return d9d_tokenizer_check_same_ids(theirs, d9d_dataset_dir(ds), *ours, path);
}

/* A folder that is NULL or has no tokenizer fits all. */
static d9d_status check_tokenizer_of(const d9di_run_data *d, const char *folder, d9d_arena *a)
{
    d9d_tokenizer *ours = NULL;
    const char *path = folder != NULL ? d9d_fs_join(a, folder, "tokenizer.json") : NULL;
    d9d_status st = D9D_OK;

    if (folder != NULL && path == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: the path of its tokenizer", folder);
    for (size_t i = 0; i < d->n && st == D9D_OK && path != NULL && d9d_fs_exists(path); i++)
        st = check_tokenizer(d->datasets[i], path, &ours);
    d9d_tokenizer_free(ours);
    return st;
}

d9d_status d9di_run_data_check_tokenizer(const d9di_run_data *d, const char *source,
                                         const char *hf_config)
{
    d9d_arena a = {0};
    const char *file, *beside = NULL;
    d9d_status st;

    D9D_TRY_OR(st, check_tokenizer_of(d, source, &a), out);
    if (hf_config != NULL)
        D9D_TRY_OR(st, d9d_hf_config_locate(hf_config, &a, &file, &beside), out);
    st = check_tokenizer_of(d, beside, &a);
out:
    d9d_arena_release(&a);
    return st;
}

/* The available memory is an estimate; this much is always assumed to be there. */
#define SMALL_BATCH_BYTES 64e6

d9d_status d9di_run_data_check_rows(const d9di_run_data *d, int64_t rows)
{
    const double least = d9d_loader_min_bytes(d->loader, rows), left = (double)d9d_mem_available();

    if (least <= left || least <= SMALL_BATCH_BYTES)
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "trainer.batching.microbatch_size %lld: so many rows take %.0f MB of host memory "
        "at least, and %.0f MB are left",
        (long long)rows, least * 1e-6, left * 1e-6);
}

d9d_prefetcher_opts d9di_run_data_prefetch_opts(const struct d9d_job_data_loading_section *c,
                                                int64_t first, int64_t global, int64_t rank,
                                                int64_t ranks, int64_t rows, int64_t end)
{
    const int threads = (int)c->num_workers;

    return (d9d_prefetcher_opts){.first = first,
                                 .global = global,
                                 .rank = rank,
                                 .ranks = ranks,
                                 .micro_batch_size = rows,
                                 .end = end,
                                 .threads = threads,
                                 .ahead = threads > 0 ? threads * (int)c->prefetch_factor : 1};
}

d9d_status d9di_run_data_check_end(const d9di_run_data *d)
{
    if (d9d_loader_stream(d->loader) != NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: is a stream, and inference needs an end; d9d-shard makes a dataset of "
                        "its files",
                        d->sections[0].dataset);
    return d9d_loader_last_source(d->loader) >= 0
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG, "data.epochs is null; inference needs an end");
}

d9d_status d9di_run_data_steps(const d9di_run_data *d, int64_t global, int64_t wanted, int64_t *out)
{
    const int64_t samples = d9d_loader_samples(d->loader), available = samples / global;
    const int32_t last = d9d_loader_last_source(d->loader);
    const d9d_job_data_section *s = &d->sections[last < 0 ? 0 : last];

    if (d9d_loader_stream(d->loader) != NULL && wanted == D9D_INT_NULL)
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s: is a stream, so trainer.run.steps must say how long the run is at most, "
            "and the learning rate's schedule with it",
            s->dataset);
    if (last < 0 && wanted == D9D_INT_NULL)
        return D9D_FAIL(D9D_ECONFIG, "data.epochs is null, so trainer.run.steps must say when "
                                     "the run ends");
    if (available == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: %lld sample%s in %lld epoch%s are less than one step of %lld",
                        s->dataset, (long long)samples, D9D_PLURAL(samples), (long long)s->epochs,
                        D9D_PLURAL(s->epochs), (long long)global);
    if (wanted != D9D_INT_NULL && wanted > available)
        return D9D_FAIL(
            D9D_ECONFIG,
            "trainer.run.steps is %lld, and %s has %lld step%s of %lld sample%s in %lld "
            "epoch%s%s; raise data.epochs",
            (long long)wanted, s->dataset, (long long)available, D9D_PLURAL(available),
            (long long)global, D9D_PLURAL(global), (long long)s->epochs, D9D_PLURAL(s->epochs),
            d->n > 1 ? " of its part in the blend" : "");
    *out = wanted != D9D_INT_NULL ? wanted : available;
    return D9D_OK;
}

/* The share of padding in percent. */
static d9d_status padding_percent(d9d_loader *l, int64_t n, int64_t rows, double *out)
{
    int64_t padded, positions;

    D9D_TRY(d9d_loader_measure_padding(l, 0, n, rows, &padded, &positions));
    *out = padded > 0 ? 100.0 * (double)(padded - positions) / (double)padded : 0;
    return D9D_OK;
}

d9d_status d9di_run_data_log_padding(const d9di_run_data *d, int64_t rows, const d9d_log *log)
{
    enum { MAX_MEASURED = 1 << 16 };
    const int64_t samples = d9d_loader_samples(d->loader),
                  n = samples < MAX_MEASURED ? samples : MAX_MEASURED;
    d9d_loader *other;
    double bucketed, shuffled;
    d9d_status st;

    if (d->sections[0].order != D9D_LOADER_BUCKETED || n < rows)
        return D9D_OK;
    D9D_TRY(loader_open(d, D9D_LOADER_SHUFFLED, &d->opts, &other));
    D9D_TRY_OR(st, padding_percent(d->loader, n, rows, &bucketed), out);
    D9D_TRY_OR(st, padding_percent(other, n, rows, &shuffled), out);
    d9d_log_info(log,
                 "padding of %lld sample%s in rows of %lld: %.1f %% bucketed, %.1f %% shuffled",
                 (long long)n, D9D_PLURAL(n), (long long)rows, bucketed, shuffled);
out:
    d9d_loader_close(other);
    return st;
}

d9di_run_data_samples_text d9di_run_data_describe_samples(const d9di_run_data *d, int64_t first,
                                                          int64_t n)
{
    enum { MAX_LISTED = 8 };
    d9di_run_data_samples_text s;
    int used = snprintf(s.text, sizeof(s.text), "sample%s", n > 1 ? "s" : "");

    for (int64_t i = 0; i < n && i < MAX_LISTED; i++) {
        d9d_sample_ref draw = {.sample = -1};

        if (d9d_loader_sample_ref(d->loader, first + i, &draw) != D9D_OK)
            draw.sample = -1;
        used += snprintf(s.text + used, sizeof(s.text) - (size_t)used, "%s %lld", i > 0 ? "," : "",
                         (long long)draw.sample);
        if (d->n > 1)
            used +=
                snprintf(s.text + used, sizeof(s.text) - (size_t)used, " of data[%d]", draw.source);
    }
    if (n > MAX_LISTED)
        used += snprintf(s.text + used, sizeof(s.text) - (size_t)used, " and %lld more",
                         (long long)(n - MAX_LISTED));
    if (d->n == 1)
        (void)d9d_num_format(s.text + used, sizeof(s.text) - (size_t)used, " of the split %.60s",
                             d->sections[0].split);
    return s;
}
