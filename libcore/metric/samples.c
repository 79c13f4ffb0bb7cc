/* samples.c - see d9d/metric/samples.h. */
#include "d9d/metric/samples.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/fs.h"
#include "d9d/data/dataset.h"
#include "metric/plain.h"

#define MAX_LINE   (UINT64_C(1) << 30)
#define MAX_CONFIG (UINT64_C(16) << 20)

/* A dataset of the run; the names are borrowed from its configuration or the options. */
struct source {
    const char *dir, *split;
    d9d_dataset *ds; /* where text is asked for */
};

struct report {
    const d9d_samples_how *how;
    d9d_arena arena;
    json_t *config, *line;
    struct source *sources;
    size_t n_sources;
};

/* --- reading ------------------------------------------------------------------------------ */

/* A file of the run directory. */
static d9d_status path_of(struct report *r, const char *name, const char **out)
{
    const char *run = r->how->run, *slash = strrchr(run, '/');
    struct stat s;

    if (stat(run, &s) != 0 || S_ISDIR(s.st_mode))
        *out = d9d_fs_join(&r->arena, run, name);
    else
        *out = d9d_arena_printf(&r->arena, "%.*s%s", slash ? (int)(slash - run) + 1 : 0, run, name);
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", run);
}

/* The step of a line; -1 when it is of no step. */
static int64_t step_of(const d9d_buf *line)
{
    static const char begin[] = "{\"step\": ";
    const size_t n = sizeof(begin) - 1;

    return line->len > n && memcmp(line->data, begin, n) == 0 ? strtoll(line->data + n, NULL, 10)
                                                              : -1;
}

struct search {
    const char *path;
    int64_t step, first, last; /* steps that are there; 0: none */
    int64_t lines;
    d9d_buf line;
};

/* *found when a piece of the file ends the line of the step. */
static d9d_status search_piece(struct search *s, const char *piece, size_t n, bool *found)
{
    const char *end;

    while ((end = memchr(piece, '\n', n)) != NULL) {
        D9D_TRY(d9d_buf_append(&s->line, piece, (size_t)(end - piece)));
        s->lines++;
        s->last = step_of(&s->line);
        if (s->last < 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: line %lld is of no step", s->path,
                            (long long)s->lines);
        s->first = s->first > 0 ? s->first : s->last;
        *found = s->last == s->step;
        if (*found)
            return D9D_OK;
        s->line.len = 0;
        n -= (size_t)(end + 1 - piece);
        piece = end + 1;
    }
    D9D_TRY(d9d_buf_append(&s->line, piece, n));
    return s->line.len <= MAX_LINE
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "%s: line %lld is longer than %llu bytes", s->path,
                          (long long)s->lines + 1, (unsigned long long)MAX_LINE);
}

static d9d_status search_file(struct search *s)
{
    char piece[1 << 16];
    d9d_file f = {.fd = -1};
    uint64_t size, at, n;
    bool found = false;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_file_open(s->path, &f));
    D9D_TRY_OR(st, d9d_fs_size(s->path, &size), out);
    for (at = 0; at < size && !found; at += n) {
        n = size - at < sizeof(piece) ? size - at : sizeof(piece);
        D9D_TRY_OR(st, d9d_file_read_at(&f, piece, n, at), out);
        D9D_TRY_OR(st, search_piece(s, piece, n, &found), out);
    }
    if (!found)
        st = s->first > 0
                 ? D9D_FAIL(D9D_ENOTFOUND, "%s: has no step %lld; it has %lld to %lld", s->path,
                            (long long)s->step, (long long)s->first, (long long)s->last)
                 : D9D_FAIL(D9D_ENOTFOUND, "%s: has no step yet", s->path);
out:
    d9d_file_release(&f);
    return st;
}

static d9d_status read_line(struct report *r)
{
    struct search s = {.step = r->how->step};
    d9d_status st;

    D9D_TRY(path_of(r, "samples.jsonl", &s.path));
    st = search_file(&s);
    if (st == D9D_OK)
        st = d9d_json_parse(s.path, s.line.data, s.line.len, &r->line);
    d9d_buf_release(&s.line);
    return st;
}

/* "data" of a configuration is one dataset or a list of them. */
static d9d_status read_sources(struct report *r)
{
    const char *path;
    json_t *data;

    D9D_TRY(path_of(r, "config.json", &path));
    D9D_TRY(d9d_json_read(path, MAX_CONFIG, &r->config));
    data = json_object_get(r->config, "data");
    r->n_sources = json_is_array(data) ? json_array_size(data) : 1;
    if (r->how->n_datasets > 0 && r->how->n_datasets != r->n_sources)
        return D9D_FAIL(D9D_ECONFIG, "%s: has %zu datasets; %zu are given in their place", path,
                        r->n_sources, r->how->n_datasets);
    r->sources = calloc(r->n_sources + 1, sizeof(*r->sources));
    if (r->sources == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu datasets", path, r->n_sources);
    for (size_t i = 0; i < r->n_sources; i++) {
        const json_t *v = json_is_array(data) ? json_array_get(data, i) : data;

        D9D_TRY(d9d_json_get_str(v, path, "dataset", &r->sources[i].dir));
        D9D_TRY(d9d_json_get_str(v, path, "split", &r->sources[i].split));
        if (r->how->n_datasets > 0)
            r->sources[i].dir = r->how->datasets[i];
    }
    return D9D_OK;
}

/* --- one sample --------------------------------------------------------------------------- */

static d9d_status open_source(struct source *s)
{
    const d9d_status st = d9d_dataset_open(s->dir, s->split, &s->ds);

    return st != D9D_ENOTFOUND
               ? st
               : D9D_FAIL(st, "%s; --dataset DIR says where a dataset is now", d9d_err_message());
}

static d9d_status put_text(struct source *s, int64_t sample, json_t *to)
{
    d9d_buf text = {0};
    d9d_status st;

    if (s->ds == NULL)
        D9D_TRY(open_source(s));
    st = d9d_sample_print_text(s->ds, sample, &text);
    if (st == D9D_OK && json_object_set_new(to, "text", json_stringn(text.data, text.len)) != 0)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a sample's text", s->dir);
    d9d_buf_release(&text);
    return st;
}

/* Element i of a list of the line that must be below `end`. */
static d9d_status number_at(const json_t *list, size_t i, int64_t end, int64_t *out)
{
    const json_t *v = json_array_get(list, i);

    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= 0 && *out < end
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "samples.jsonl: \"%s\" has no number below %lld at %zu",
                          end == INT64_MAX ? "samples" : "datasets", (long long)end, i);
}

static d9d_status put_row(struct report *r, size_t row, json_t *rows)
{
    const json_t *datasets = json_object_get(r->line, "datasets");
    int64_t sample, source = 0;
    struct source *s;
    json_t *v;

    D9D_TRY(number_at(json_object_get(r->line, "samples"), row, INT64_MAX, &sample));
    if (datasets != NULL)
        D9D_TRY(number_at(datasets, row, (int64_t)r->n_sources, &source));
    s = &r->sources[source];
    v = json_pack("{s:s, s:s, s:I}", "dataset", s->dir, "split", s->split, "sample",
                  (json_int_t)sample);
    if (v == NULL || json_array_append_new(rows, v) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the samples of a step", r->how->run);
    return r->how->text ? put_text(s, sample, v) : D9D_OK;
}

/* --- all of them -------------------------------------------------------------------------- */

static d9d_status make(struct report *r, json_t **out)
{
    json_t *samples, *rows = json_array(), *skipped;
    int64_t first;
    d9d_status st;

    D9D_TRY_OR(st, read_line(r), out);
    D9D_TRY_OR(st, read_sources(r), out);
    D9D_TRY_OR(st, d9d_json_get_i64(r->line, "samples.jsonl", "first", 0, INT64_MAX, &first), out);
    D9D_TRY_OR(st, d9d_json_get_arr(r->line, "samples.jsonl", "samples", &samples), out);
    for (size_t i = 0; i < json_array_size(samples); i++)
        D9D_TRY_OR(st, put_row(r, i, rows), out);
    *out = json_pack("{s:I, s:I, s:O}", "step", (json_int_t)r->how->step, "first",
                     (json_int_t)first, "samples", rows);
    skipped = json_object_get(r->line, "skipped");
    if (*out == NULL || (skipped != NULL && json_object_set(*out, "skipped", skipped) != 0))
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the samples of a step", r->how->run);
out:
    json_decref(rows);
    return st;
}

d9d_status d9d_report_samples_json(const d9d_samples_how *how, json_t **out)
{
    struct report r = {.how = how};
    json_t *made = NULL;
    const d9d_status st = make(&r, &made);

    for (size_t i = 0; r.sources != NULL && i < r.n_sources; i++)
        d9d_dataset_close(r.sources[i].ds);
    free(r.sources);
    json_decref(r.config);
    json_decref(r.line);
    d9d_arena_release(&r.arena);
    if (st == D9D_OK)
        *out = made;
    else
        json_decref(made);
    return st;
}

static const char *text_at(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static long long number_of(const json_t *v, const char *key)
{
    return (long long)json_integer_value(json_object_get(v, key));
}

static d9d_status print_row(const json_t *x, size_t row, d9d_buf *out)
{
    const json_t *text = json_object_get(x, "text");
    const long long sample = number_of(x, "sample");

    D9D_TRY(text ? d9d_buf_printf(out, "\n=== row %zu: sample %lld of ", row, sample)
                 : d9d_buf_printf(out, "%6zu %12lld  ", row, sample));
    D9D_TRY(d9di_plain_put(out, text_at(x, "dataset")));
    D9D_TRY(d9d_buf_append(out, ", ", 2));
    D9D_TRY(d9di_plain_put(out, text_at(x, "split")));
    D9D_TRY(d9d_buf_append(out, "\n", 1));
    if (text == NULL)
        return D9D_OK;
    return d9d_buf_append(out, json_string_value(text), json_string_length(text));
}

static d9d_status print(const json_t *v, d9d_buf *out)
{
    const json_t *rows = json_object_get(v, "samples"), *skipped = json_object_get(v, "skipped");
    const size_t n = json_array_size(rows);
    const long long first = number_of(v, "first");

    D9D_TRY(d9d_buf_printf(out, "step %lld: %zu samples, %lld to %lld of the stream\n",
                           number_of(v, "step"), n, first, first + (long long)n - 1));
    if (json_array_size(skipped) > 0) {
        D9D_TRY(d9d_buf_printf(out, "left out:"));
        for (size_t i = 0; i < json_array_size(skipped); i++)
            D9D_TRY(d9d_buf_printf(out, " %lld",
                                   (long long)json_integer_value(json_array_get(skipped, i))));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    if (n > 0 && text_at(json_array_get(rows, 0), "text") == NULL)
        D9D_TRY(d9d_buf_printf(out, "%6s %12s  dataset\n", "row", "sample"));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(print_row(json_array_get(rows, i), i, out));
    return D9D_OK;
}

d9d_status d9d_report_samples(const d9d_samples_how *how, d9d_buf *out)
{
    json_t *v;
    d9d_status st;

    D9D_TRY(d9d_report_samples_json(how, &v));
    st = print(v, out);
    json_decref(v);
    return st;
}
