/* spike_documents.c - see report/spike_documents.h. */
#include "report/spike_documents.h"

#include <math.h>
#include <stdlib.h>

#include "d9d/base/fs.h"
#include "d9d/base/sanitize_text.h"
#include "report/line_reader.h"
#include "report/rows.h"

enum { TEXT_BYTES = 60 }; /* limit of a document's text, in bytes */

void d9di_spike_documents_release(d9di_spike_documents *d)
{
    d9di_run_sources_release(&d->sources);
    d9d_arena_release(&d->arena);
}

/* --- reading the records ---------------------------------------------------------------------- */

struct steps_wanted {
    const d9d_run_reader *run;
    const int64_t *step; /* ascending */
    size_t n;
    json_t **line;
};

static int compare_steps(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* A later line for the same step, after a restart, replaces the earlier one. */
static d9d_status collect_line(void *arg, const d9d_buf *line, int64_t number, bool *enough)
{
    const struct steps_wanted *w = arg;
    const int64_t step = d9di_line_reader_number_after(line, "{\"documents\": ");
    const int64_t *found;
    size_t i;

    (void)number;
    (void)enough;
    found = step >= 0 && w->n > 0 ? bsearch(&step, w->step, w->n, sizeof(*w->step), compare_steps)
                                  : NULL;
    if (found == NULL)
        return D9D_OK;
    i = (size_t)(found - w->step);
    json_decref(w->line[i]);
    w->line[i] = NULL;
    return d9d_json_parse(w->run->path, line->data, line->len, &w->line[i]);
}

/* --- evaluating them -------------------------------------------------------------------------- */

/* The run's datasets; none if there is no config.json. */
static d9d_status read_sources(d9di_spike_documents *d)
{
    const char *path;

    D9D_TRY(d9di_run_sources_file_path(&d->arena, d->run->path, "config.json", &path));
    if (d->opts->n_datasets == 0 && !d9d_fs_exists(path))
        return D9D_OK;
    return d9di_run_sources_read(&d->arena, d->run->path, d->opts->datasets, d->opts->n_datasets,
                                 &d->sources);
}

/* The step's loss without this document. */
static double loss_without(const d9di_spike_documents *d, int64_t step, int64_t all, double loss,
                           int64_t targets)
{
    const double *losses = d9d_run_reader_values(d->run, "loss");

    for (size_t i = d->run->n; losses != NULL && i-- > 0;)
        if (d->run->step[i] == step && all > targets)
            return (losses[i] * (double)all - loss * (double)targets) / (double)(all - targets);
    return (double)NAN;
}

/* Adds the first words.  A missing dataset is an error only if the caller named it. */
static d9d_status add_document_text(d9di_spike_documents *d, d9di_run_source *s, int64_t sample,
                                    int64_t place, json_t *to)
{
    d9d_buf text = {0};
    d9d_status st = d9di_run_source_open(s);

    if (st == D9D_ENOTFOUND && d->opts->n_datasets == 0)
        return D9D_OK;
    if (st == D9D_OK)
        st = d9d_sample_print_excerpt(s->ds, sample, place, TEXT_BYTES, &text);
    if (st == D9D_OK && text.len > 0 &&
        json_object_set_new(to, "text", json_stringn(text.data, text.len)) != 0)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a document's words", s->dir);
    d9d_buf_release(&text);
    return st;
}

static d9d_status document_json(d9di_spike_documents *d, int64_t step, int64_t all,
                                const json_t *in, json_t *list)
{
    const char *path = d->run->path;
    int64_t sample, place, targets, dataset = 0;
    double loss;
    json_t *v;

    D9D_TRY(d9d_json_get_i64(in, path, "sample", 0, INT64_MAX, &sample));
    D9D_TRY(d9d_json_get_i64(in, path, "document", 0, INT64_MAX, &place));
    D9D_TRY(d9d_json_get_i64(in, path, "tokens", 0, all, &targets));
    if (json_object_get(in, "dataset") != NULL)
        D9D_TRY(d9d_json_get_i64(in, path, "dataset", 0, INT32_MAX, &dataset));
    loss = json_number_value(json_object_get(in, "mean_loss"));
    v = json_pack("{s:I, s:I, s:I, s:o, s:o}", "sample", (json_int_t)sample, "document",
                  (json_int_t)place, "tokens", (json_int_t)targets, "mean_loss",
                  d9di_report_rows_json(loss), "without",
                  d9di_report_rows_json(loss_without(d, step, all, loss, targets)));
    if (v == NULL || json_array_append_new(list, v) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the documents of a step", path);
    if ((uint64_t)dataset >= d->sources.n)
        return D9D_OK;
    if (json_object_set_new(v, "dataset", d9d_json_str(d->sources.sources[dataset].dir)) != 0 ||
        json_object_set_new(v, "split", d9d_json_str(d->sources.sources[dataset].split)) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the documents of a step", path);
    return add_document_text(d, &d->sources.sources[dataset], sample, place, v);
}

static d9d_status documents_json(d9di_spike_documents *d, int64_t step, const json_t *line,
                                 json_t **out)
{
    json_t *worst, *list = json_array();
    int64_t all;
    d9d_status st;

    D9D_TRY_OR(st, d9d_json_get_i64(line, d->run->path, "tokens", 0, INT64_MAX, &all), out);
    D9D_TRY_OR(st, d9d_json_get_arr(line, d->run->path, "worst", &worst), out);
    for (size_t i = 0; i < json_array_size(worst); i++)
        D9D_TRY_OR(st, document_json(d, step, all, json_array_get(worst, i), list), out);
    *out = list;
    return D9D_OK;
out:
    json_decref(list);
    return st;
}

d9d_status d9di_spike_documents_find(d9di_spike_documents *d, const int64_t *step, size_t n,
                                     json_t **out)
{
    struct steps_wanted w = {d->run, step, n,
                             d9d_arena_alloc(&d->arena, (n + 1) * sizeof(json_t *))};
    d9d_status st = D9D_OK;

    if (w.line == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the documents of its spikes", d->run->path);
    D9D_TRY_OR(st, d9di_line_reader_read(d->run->path, collect_line, &w), out);
    D9D_TRY_OR(st, read_sources(d), out);
    for (size_t i = 0; i < n; i++)
        if (w.line[i] != NULL)
            D9D_TRY_OR(st, documents_json(d, step[i], w.line[i], &out[i]), out);
out:
    for (size_t i = 0; i < n; i++)
        json_decref(w.line[i]);
    return st;
}

/* --- text ------------------------------------------------------------------------------------- */

static d9d_status append_real(const json_t *x, const char *key, d9d_buf *out)
{
    const json_t *v = json_object_get(x, key);

    return json_is_number(v) ? d9d_buf_printf(out, " %10.6g", json_number_value(v))
                             : d9d_buf_printf(out, " %10s", "-");
}

static d9d_status print_document(const json_t *x, d9d_buf *out)
{
    const char *dataset = json_string_value(json_object_get(x, "dataset"));
    const char *text = json_string_value(json_object_get(x, "text"));

    D9D_TRY(d9d_buf_printf(out, "%10lld %9lld %8lld",
                           (long long)json_integer_value(json_object_get(x, "sample")),
                           (long long)json_integer_value(json_object_get(x, "document")),
                           (long long)json_integer_value(json_object_get(x, "tokens"))));
    D9D_TRY(append_real(x, "mean_loss", out));
    D9D_TRY(append_real(x, "without", out));
    if (dataset != NULL) {
        D9D_TRY(d9d_buf_append(out, "  ", 2));
        D9D_TRY(d9d_text_sanitize(out, dataset));
        D9D_TRY(d9d_buf_append(out, ", ", 2));
        D9D_TRY(d9d_text_sanitize(out, json_string_value(json_object_get(x, "split"))));
    }
    if (text != NULL) {
        D9D_TRY(d9d_buf_append(out, ": ", 2));
        D9D_TRY(d9d_text_sanitize(out, text));
    }
    return d9d_buf_append(out, "\n", 1);
}

d9d_status d9di_spike_documents_print(const json_t *documents, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%10s %9s %8s %10s %10s\n", "sample", "document", "tokens", "loss",
                           "without"));
    for (size_t i = 0; i < json_array_size(documents); i++)
        D9D_TRY(print_document(json_array_get(documents, i), out));
    return D9D_OK;
}
