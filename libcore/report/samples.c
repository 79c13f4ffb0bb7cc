/* samples.c - see d9d/report/samples.h. */
#include "d9d/report/samples.h"

#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/sanitize_text.h"
#include "d9d/data/loader/blend.h"
#include "d9d/data/loader/sampler.h"
#include "report/line_reader.h"
#include "report/run_sources.h"

enum { MAX_SAMPLER_BYTES = 1 << 16 /* of a line with a sampler */, MAX_SAMPLES = 1 << 30 };

struct samples_report {
    const d9d_report_samples_opts *opts;
    d9d_arena arena;
    json_t *line;
    d9di_run_sources sources;
};

/* --- reading ------------------------------------------------------------------------------ */

struct step_search {
    const char *path;
    int64_t step, first, last; /* steps that are recorded; 0: none */
    json_t **out;
    d9d_buf rule; /* the last line with a sampler */
};

static d9d_status search_line(void *arg, const d9d_buf *line, int64_t number, bool *enough)
{
    struct step_search *s = arg;

    s->last = d9di_line_reader_number_after(line, "{\"step\": ");
    if (s->last < 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: line %lld is of no step", s->path, (long long)number);
    s->first = s->first > 0 ? s->first : s->last;
    if (line->len < MAX_SAMPLER_BYTES && strstr(line->data, "\"sampler\": [") != NULL) {
        s->rule.len = 0;
        D9D_TRY(d9d_buf_append(&s->rule, line->data, line->len));
    }
    *enough = s->last == s->step;
    return *enough ? d9d_json_parse(s->path, line->data, line->len, s->out) : D9D_OK;
}

static d9d_status parse_order(const char *path, const json_t *v, d9d_loader_order *out)
{
    static const char *const order_names[] = {"sequential", "shuffled"};
    const char *word;

    D9D_TRY(d9d_json_get_str(v, path, "order", &word));
    for (size_t i = 0; i < sizeof(order_names) / sizeof(order_names[0]); i++)
        if (strcmp(word, order_names[i]) == 0) {
            *out = (d9d_loader_order)i;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_EFORMAT, "%s: \"order\" is \"%.20s\"", path, word);
}

static d9d_status make_sampler(const char *path, const json_t *list, d9d_sampler **out)
{
    d9d_sampler_source from[D9D_BLEND_SOURCES];
    const size_t n = json_array_size(list);

    if (n < 1 || n > D9D_BLEND_SOURCES)
        return D9D_FAIL(D9D_EFORMAT, "%s: a sampler of %zu dataset%s; 1 to %d can be", path, n,
                        D9D_PLURAL(n), D9D_BLEND_SOURCES);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        int64_t seed;

        D9D_TRY(d9d_json_get_i64(v, path, "samples", 1, INT64_C(1) << 62, &from[i].samples));
        D9D_TRY(d9d_json_get_i64(v, path, "seed", 0, INT64_MAX, &seed));
        D9D_TRY(parse_order(path, v, &from[i].order));
        from[i].seed = (uint64_t)seed;
        from[i].weight = json_number_value(json_object_get(v, "weight"));
    }
    return d9d_sampler_create(from, n, out);
}

/* Expands the sampler of a line into lists of samples. */
static d9d_status make_sample_lists(json_t *line, const d9d_sampler *s, int64_t first,
                                    int64_t count)
{
    json_t *samples = json_array(), *datasets = json_array();
    bool blend = false, good = true;

    for (int64_t i = 0; i < count && good; i++) {
        const d9d_sample_ref draw = d9d_sampler_at(s, first + i);

        blend |= draw.source != 0;
        good = json_array_append_new(samples, json_integer(draw.sample)) == 0 &&
               json_array_append_new(datasets, json_integer(draw.source)) == 0;
    }
    good = good && json_object_set(line, "samples", samples) == 0 &&
           (!blend || json_object_set(line, "datasets", datasets) == 0);
    json_decref(samples);
    json_decref(datasets);
    return good ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for %lld samples", (long long)count);
}

static d9d_status expand_line(const struct step_search *s, json_t *line)
{
    json_t *has = NULL;
    d9d_sampler *sampler = NULL;
    int64_t first, count;
    d9d_status st;

    if (json_object_get(line, "samples") != NULL)
        return D9D_OK;
    if (s->rule.len == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: step %lld has neither samples nor a sampler", s->path,
                        (long long)s->step);
    D9D_TRY_OR(st, d9d_json_get_i64(line, s->path, "first", 0, INT64_C(1) << 62, &first), out);
    D9D_TRY_OR(st, d9d_json_get_i64(line, s->path, "count", 1, MAX_SAMPLES, &count), out);
    D9D_TRY_OR(st, d9d_json_parse(s->path, s->rule.data, s->rule.len, &has), out);
    D9D_TRY_OR(st, make_sampler(s->path, json_object_get(has, "sampler"), &sampler), out);
    st = make_sample_lists(line, sampler, first, count);
out:
    d9d_sampler_free(sampler);
    json_decref(has);
    return st;
}

static d9d_status find_step_line(struct samples_report *r)
{
    struct step_search s = {.step = r->opts->step, .out = &r->line};
    d9d_status st;

    D9D_TRY_OR(st, d9di_run_sources_file_path(&r->arena, r->opts->run, "samples.jsonl", &s.path),
               out);
    D9D_TRY_OR(st, d9di_line_reader_read(s.path, search_line, &s), out);
    if (r->line != NULL)
        st = expand_line(&s, r->line);
    else if (s.first == 0)
        st = D9D_FAIL(D9D_ENOTFOUND, "%s: has no step yet", s.path);
    else
        st = D9D_FAIL(D9D_ENOTFOUND, "%s: has no step %lld; it has %lld to %lld", s.path,
                      (long long)s.step, (long long)s.first, (long long)s.last);
out:
    d9d_buf_release(&s.rule);
    return st;
}

/* --- one sample --------------------------------------------------------------------------- */

static d9d_status add_sample_text(d9di_run_source *s, int64_t sample, json_t *to)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9di_run_source_open(s));
    st = d9d_sample_print_text(s->ds, sample, &text);
    if (st == D9D_OK && json_object_set_new(to, "text", json_stringn(text.data, text.len)) != 0)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a sample's text", s->dir);
    d9d_buf_release(&text);
    return st;
}

/* Element i of a list of the line, which must be below `end`. */
static d9d_status read_list_number(const json_t *list, size_t i, int64_t end, int64_t *out)
{
    const json_t *v = json_array_get(list, i);

    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= 0 && *out < end
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT, "samples.jsonl: \"%s\" has no number below %lld at %zu",
                          end == INT64_MAX ? "samples" : "datasets", (long long)end, i);
}

static d9d_status add_row(struct samples_report *r, size_t row, json_t *rows)
{
    const json_t *datasets = json_object_get(r->line, "datasets");
    int64_t sample, source = 0;
    d9di_run_source *s;
    json_t *v;

    D9D_TRY(read_list_number(json_object_get(r->line, "samples"), row, INT64_MAX, &sample));
    if (datasets != NULL)
        D9D_TRY(read_list_number(datasets, row, (int64_t)r->sources.n, &source));
    s = &r->sources.sources[source];
    v = json_pack("{s:o, s:o, s:I}", "dataset", d9d_json_str(s->dir), "split",
                  d9d_json_str(s->split), "sample", (json_int_t)sample);
    if (v == NULL || json_array_append_new(rows, v) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the samples of a step", r->opts->run);
    return r->opts->text ? add_sample_text(s, sample, v) : D9D_OK;
}

/* --- all samples -------------------------------------------------------------------------- */

static d9d_status make_report(struct samples_report *r, json_t **out)
{
    json_t *samples, *rows = json_array(), *skipped;
    int64_t first;
    d9d_status st;

    D9D_TRY_OR(st, find_step_line(r), out);
    D9D_TRY_OR(st,
               d9di_run_sources_read(&r->arena, r->opts->run, r->opts->datasets,
                                     r->opts->n_datasets, &r->sources),
               out);
    D9D_TRY_OR(st, d9d_json_get_i64(r->line, "samples.jsonl", "first", 0, INT64_MAX, &first), out);
    D9D_TRY_OR(st, d9d_json_get_arr(r->line, "samples.jsonl", "samples", &samples), out);
    for (size_t i = 0; i < json_array_size(samples); i++)
        D9D_TRY_OR(st, add_row(r, i, rows), out);
    *out = json_pack("{s:I, s:I, s:O}", "step", (json_int_t)r->opts->step, "first",
                     (json_int_t)first, "samples", rows);
    skipped = json_object_get(r->line, "skipped");
    if (*out == NULL || (skipped != NULL && json_object_set(*out, "skipped", skipped) != 0))
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the samples of a step", r->opts->run);
out:
    json_decref(rows);
    return st;
}

d9d_status d9d_report_samples_json(const d9d_report_samples_opts *opts, json_t **out)
{
    struct samples_report r = {.opts = opts};
    json_t *made = NULL;
    const d9d_status st = make_report(&r, &made);

    d9di_run_sources_release(&r.sources);
    json_decref(r.line);
    d9d_arena_release(&r.arena);
    if (st == D9D_OK)
        *out = made;
    else
        json_decref(made);
    return st;
}

static const char *json_text(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static long long json_int(const json_t *v, const char *key)
{
    return (long long)json_integer_value(json_object_get(v, key));
}

static d9d_status print_sample(const json_t *x, size_t row, d9d_buf *out)
{
    const json_t *text = json_object_get(x, "text");
    const long long sample = json_int(x, "sample");

    D9D_TRY(text ? d9d_buf_printf(out, "\n=== row %zu: sample %lld of ", row, sample)
                 : d9d_buf_printf(out, "%6zu %12lld  ", row, sample));
    D9D_TRY(d9d_text_sanitize(out, json_text(x, "dataset")));
    D9D_TRY(d9d_buf_append(out, ", ", 2));
    D9D_TRY(d9d_text_sanitize(out, json_text(x, "split")));
    D9D_TRY(d9d_buf_append(out, "\n", 1));
    if (text == NULL)
        return D9D_OK;
    return d9d_buf_append(out, json_string_value(text), json_string_length(text));
}

static d9d_status print_report(const json_t *v, d9d_buf *out)
{
    const json_t *rows = json_object_get(v, "samples"), *skipped = json_object_get(v, "skipped");
    const size_t n = json_array_size(rows);
    const long long first = json_int(v, "first");

    D9D_TRY(d9d_buf_printf(out, "step %lld: %zu sample%s, %lld to %lld of the stream\n",
                           json_int(v, "step"), n, D9D_PLURAL(n), first, first + (long long)n - 1));
    if (json_array_size(skipped) > 0) {
        D9D_TRY(d9d_buf_printf(out, "left out:"));
        for (size_t i = 0; i < json_array_size(skipped); i++)
            D9D_TRY(d9d_buf_printf(out, " %lld",
                                   (long long)json_integer_value(json_array_get(skipped, i))));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    if (n > 0 && json_text(json_array_get(rows, 0), "text") == NULL)
        D9D_TRY(d9d_buf_printf(out, "%6s %12s  dataset\n", "row", "sample"));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(print_sample(json_array_get(rows, i), i, out));
    return D9D_OK;
}

d9d_status d9d_report_samples(const d9d_report_samples_opts *opts, d9d_buf *out)
{
    json_t *v;
    d9d_status st;

    D9D_TRY(d9d_report_samples_json(opts, &v));
    st = print_report(v, out);
    json_decref(v);
    return st;
}
