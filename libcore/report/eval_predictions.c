/* eval_predictions.c - computes metrics of prediction files.  See d9d/report/eval_predictions.h. */
#include "d9d/report/eval_predictions.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/metric/metric.h"
#include "report/text_table.h"

enum { BATCH_ROWS = 4096, READ_BYTES = 1 << 16, MAX_LINE = 1 << 26 };

typedef D9D_VEC(double) number_vec;

/* One key of the lines, and the values read. */
typedef struct column {
    const char *key;
    number_vec values; /* [rows, width] of the batch */
    int64_t width;     /* of the first row; 0: not yet known */
} column;

typedef struct evaluator {
    const d9d_eval_predictions_opts *opts;
    d9d_arena arena;
    json_t *metric_specs; /* {"metrics": [...]} */
    json_t *resolved;
    d9d_metric **metrics;
    column prediction, target, weight;
    int64_t rows; /* in the current batch */
    int64_t all;  /* in the batches before */
    int64_t none; /* lines with a null column, which are left out */
    d9d_progress progress;
} evaluator;

/* --- metrics ----------------------------------------------------------------------------- */

static const d9d_key metric_elem = {.kind = D9D_KIND_UNION,
                                    .names = d9d_metric_tag,
                                    .choices = d9d_metric_choices,
                                    .doc = "a metric"};

typedef struct metric_specs {
    d9d_list metrics; /* d9d_union */
} metric_specs;
static const d9d_key spec_keys[] = {
    D9D_KEY_LIST(metric_specs, metrics, D9D_REQUIRED, &metric_elem, "what to compute"),
    D9D_KEY_END};
static const d9d_table specs_table = D9D_TABLE(metric_specs, "metrics", spec_keys, "metrics");

/* Parses "f1,problem=multiclass,num_classes=3" into an object. */
static d9d_status parse_spec(const char *spec, d9d_arena *a, json_t **out)
{
    char *pairs = d9d_arena_strdup(a, spec), *rest = pairs, *word;
    d9d_status st = D9D_OK;

    if (pairs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", spec);
    word = strsep(&rest, ",");
    *out = json_pack("{s:s}", "name", word);
    if (*out == NULL)
        return D9D_FAIL(D9D_ECONFIG, "\"%s\" is no name of a metric", spec);
    while (st == D9D_OK && (word = strsep(&rest, ",")) != NULL)
        st = strchr(word, '=') != NULL && *word != '='
                 ? d9d_config_set(NULL, *out, word)
                 : D9D_FAIL(D9D_ECONFIG, "metric \"%s\": \"%s\" is not KEY=VALUE", spec, word);
    if (st != D9D_OK)
        json_decref(*out);
    return st;
}

static d9d_status parse_specs(evaluator *e)
{
    json_t *list = json_array();

    e->metric_specs = json_pack("{s:o}", "metrics", list);
    if (e->metric_specs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: out of memory");
    for (size_t i = 0; i < e->opts->n_metrics; i++) {
        const char *spec = e->opts->metrics[i];
        json_t *v;

        if (spec[0] != '{')
            D9D_TRY(parse_spec(spec, &e->arena, &v));
        else if (d9d_json_parse("a metric", spec, strlen(spec), &v) != D9D_OK)
            return D9D_FAIL(D9D_ECONFIG, "%s", d9d_err_message());
        if (json_array_append_new(list, v) != 0)
            return D9D_FAIL(D9D_ENOMEM, "metrics: out of memory");
    }
    return D9D_OK;
}

static d9d_status metrics_open(evaluator *e)
{
    metric_specs s;

    D9D_TRY(parse_specs(e));
    D9D_TRY(
        d9d_config_resolve(&specs_table, e->metric_specs, "metrics", e->opts->log, &e->resolved));
    D9D_TRY(d9d_config_bind(&specs_table, e->resolved, "metrics", e->opts->log, &e->arena, &s));
    e->metrics = d9d_arena_alloc(&e->arena, s.metrics.n * sizeof(d9d_metric *));
    if (e->metrics == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: out of memory");
    memset(e->metrics, 0, s.metrics.n * sizeof(d9d_metric *));
    for (size_t i = 0; i < s.metrics.n; i++) {
        D9D_TRY(
            d9d_metric_create((const d9d_union *)s.metrics.items + i, "metrics", &e->metrics[i]));
        if (e->weight.key != NULL && !d9d_metric_is_weighted(e->metrics[i]))
            return D9D_FAIL(D9D_ECONFIG,
                            "metrics: %s counts all rows alike and takes no weights, here \"%s\"; "
                            "sum and mean do",
                            d9d_metric_name(e->metrics[i]), e->weight.key);
    }
    return D9D_OK;
}

/* --- rows ---------------------------------------------------------------------------------- */

static d9d_status read_number(const char *where, const char *key, const json_t *v, number_vec *out)
{
    if (!json_is_number(v) && !json_is_boolean(v))
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" must be a number or a list of numbers", where,
                        key);
    if (D9D_VEC_PUSH(out, json_is_boolean(v) ? json_is_true(v) : json_number_value(v)) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for predictions", where);
    return D9D_OK;
}

static d9d_status read_column(const char *where, const json_t *row, column *c)
{
    const json_t *v = json_object_get(row, c->key);
    const int64_t n = json_is_array(v) ? (int64_t)json_array_size(v) : 1;

    if (v == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: no \"%s\"", where, c->key);
    if (n == 0 || (c->width != 0 && n != c->width))
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" has %lld numbers, %s %lld", where, c->key,
                        (long long)n,
                        c->width != 0 ? "and in the first line" : "must have at least",
                        (long long)(c->width != 0 ? c->width : 1));
    c->width = n;
    if (!json_is_array(v))
        return read_number(where, c->key, v, &c->values);
    for (int64_t i = 0; i < n; i++)
        D9D_TRY(read_number(where, c->key, json_array_get(v, (size_t)i), &c->values));
    return D9D_OK;
}

/* Updates all metrics with the batch. */
static d9d_status flush_batch(evaluator *e, const char *path)
{
    const d9d_predictions b = {
        .rows = e->rows,
        .prediction = e->prediction.values.data,
        .prediction_columns = e->prediction.width,
        .target = e->target.values.data,
        .target_columns = e->target.width,
        .weight = e->weight.values.data,
    };

    if (e->rows == 0)
        return D9D_OK;
    for (size_t i = 0; i < e->opts->n_metrics; i++) {
        const d9d_status st = d9d_metric_update(e->metrics[i], &b);

        if (st == D9D_EINVAL)
            return D9D_FAIL(D9D_EFORMAT, "%s: behind %lld rows: %s", path, (long long)e->all,
                            d9d_err_message());
        D9D_TRY(st);
    }
    d9d_progress_add(&e->progress, (uint64_t)e->rows);
    e->all += e->rows;
    e->rows = 0;
    e->prediction.values.len = e->target.values.len = e->weight.values.len = 0;
    return D9D_OK;
}

/* Reads all columns of a row; if one of them is null, the row is left out. */
static d9d_status read_row(evaluator *e, const char *where, const json_t *row)
{
    column *const columns[] = {&e->prediction, &e->target, &e->weight};

    if (!json_is_object(row))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be a JSON object", where);
    for (size_t i = 0; i < 3; i++)
        if (columns[i]->key != NULL && json_is_null(json_object_get(row, columns[i]->key))) {
            e->none++;
            return D9D_OK;
        }
    for (size_t i = 0; i < 3; i++)
        if (columns[i]->key != NULL)
            D9D_TRY(read_column(where, row, columns[i]));
    e->rows++;
    return D9D_OK;
}

static d9d_status read_line(evaluator *e, const char *path, int64_t line, const char *text,
                            size_t n)
{
    char where[4200];
    json_t *row;
    d9d_status st;

    (void)snprintf(where, sizeof(where), "%s:%lld", path, (long long)line);
    D9D_TRY(d9d_json_parse(where, text, n, &row));
    st = read_row(e, where, row);
    json_decref(row);
    D9D_TRY(st);
    return e->rows == BATCH_ROWS ? flush_batch(e, path) : D9D_OK;
}

static bool is_blank(const char *p, size_t n)
{
    return strspn(p, " \t\r") >= n;
}

/* Reads the complete lines of `text`; at the end of the file also one without a newline. */
static d9d_status read_lines(evaluator *e, const char *path, d9d_buf *text, bool end, int64_t *line)
{
    size_t at = 0;

    while (at < text->len) {
        const char *p = text->data + at, *stop = memchr(p, '\n', text->len - at);
        const size_t n = stop != NULL ? (size_t)(stop - p) : text->len - at;

        if (stop == NULL && !end)
            break;
        ++*line;
        if (!is_blank(p, n))
            D9D_TRY(read_line(e, path, *line, p, n));
        at += n + (stop != NULL);
    }
    text->len -= at;
    memmove(text->data, text->data + at, text->len);
    return text->len < MAX_LINE ? D9D_OK
                                : D9D_FAIL(D9D_EFORMAT, "%s:%lld: a line of more than %d MiB", path,
                                           (long long)(*line + 1), MAX_LINE >> 20);
}

static d9d_status read_fd(evaluator *e, int fd, const char *path)
{
    d9d_buf text = {0};
    int64_t line = 0;
    ssize_t n = 1;
    d9d_status st = D9D_OK;

    while (st == D9D_OK && n > 0) {
        D9D_TRY_OR(st, d9d_buf_reserve(&text, READ_BYTES + 1), out);
        n = read(fd, text.data + text.len, READ_BYTES);
        if (n < 0 && errno == EINTR) {
            n = 1;
            continue;
        }
        if (n < 0)
            st = D9D_FAIL(D9D_EIO, "%s: cannot be read: %s", path, strerror(errno));
        text.len += n > 0 ? (size_t)n : 0;
        text.data[text.len] = '\0';
        if (st == D9D_OK)
            st = read_lines(e, path, &text, n == 0, &line);
    }
    if (st == D9D_OK)
        st = flush_batch(e, path);
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status read_path(evaluator *e, const char *path)
{
    d9d_file f;
    d9d_status st;

    if (strcmp(path, "-") == 0)
        return read_fd(e, STDIN_FILENO, "standard input");
    if (d9d_fs_is_dir(path))
        return D9D_FAIL(D9D_EPATH, "%s: is a directory, must be a file", path);
    D9D_TRY(d9d_file_open_stream(path, &f));
    st = read_fd(e, f.fd, path);
    d9d_file_release(&f);
    return st;
}

/* --- results -------------------------------------------------------------------------------- */

static json_t *number_json(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* Adds {"values": [...], "labels": [...]}, or {"value": v}, to `o`. */
static int metric_values_json(json_t *o, const d9d_metric *m, const double *values)
{
    const size_t n = d9d_metric_width(m);
    json_t *list = json_array(), *labels = json_array();
    char label[96];
    int bad = 0;

    if (d9d_metric_label(m, 0, label, sizeof(label))[0] == '\0') {
        json_decref(list);
        json_decref(labels);
        return json_object_set_new(o, "value", number_json(values[0]));
    }
    for (size_t i = 0; i < n; i++) {
        bad |= json_array_append_new(list, number_json(values[i]));
        bad |= json_array_append_new(labels,
                                     json_string(d9d_metric_label(m, i, label, sizeof(label)) + 1));
    }
    return bad | json_object_set_new(o, "values", list) | json_object_set_new(o, "labels", labels);
}

static d9d_status metric_json(const evaluator *e, size_t i, json_t *list)
{
    const d9d_metric *m = e->metrics[i];
    json_t *config = json_array_get(json_object_get(e->resolved, "metrics"), i);
    double *values = calloc(d9d_metric_width(m), sizeof(double));
    json_t *o = json_pack("{s:O, s:O}", "name", json_object_get(config, "name"), "config", config);
    int bad = values == NULL || o == NULL;

    if (!bad) {
        d9d_metric_compute(m, values);
        bad = metric_values_json(o, m, values);
    }
    free(values);
    if (bad != 0)
        json_decref(o);
    else
        bad = json_array_append_new(list, o);
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "metrics: no memory for their values");
}

static d9d_status make_result(const evaluator *e, json_t **out)
{
    json_t *list = json_array();
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < e->opts->n_metrics && st == D9D_OK; i++)
        st = metric_json(e, i, list);
    if (st == D9D_OK)
        *out = json_pack("{s:I, s:I, s:o}", "rows", (json_int_t)e->all, "left_out",
                         (json_int_t)e->none, "metrics", list);
    else
        json_decref(list);
    return st;
}

static void eval_close(evaluator *e)
{
    for (size_t i = 0; e->metrics != NULL && i < e->opts->n_metrics; i++)
        d9d_metric_free(e->metrics[i]);
    D9D_VEC_RELEASE(&e->prediction.values);
    D9D_VEC_RELEASE(&e->target.values);
    D9D_VEC_RELEASE(&e->weight.values);
    json_decref(e->resolved);
    json_decref(e->metric_specs);
    d9d_arena_release(&e->arena);
}

static void log_skipped_rows(const evaluator *e)
{
    const char *message = "have null for their prediction, target or weight, and are left out";

    if (e->none > 0 && e->all == 0)
        d9d_log_warn(e->opts->log, "all %lld lines %s", (long long)e->none, message);
    else if (e->none > 0)
        d9d_log_info(e->opts->log, "%lld of %lld lines %s", (long long)e->none,
                     (long long)(e->none + e->all), message);
}

d9d_status d9d_eval_predictions(const d9d_eval_predictions_opts *opts, json_t **out)
{
    evaluator e = {.opts = opts,
                   .prediction = {.key = opts->prediction},
                   .target = {.key = opts->target},
                   .weight = {.key = opts->weight}};
    d9d_status st = metrics_open(&e);

    if (st == D9D_OK) {
        d9d_progress_start(&e.progress, opts->log, "eval", "rows", 0);
        for (size_t i = 0; i < opts->n_paths && st == D9D_OK; i++)
            st = read_path(&e, opts->paths[i]);
        d9d_progress_end(&e.progress);
    }
    if (st == D9D_OK) {
        log_skipped_rows(&e);
        st = make_result(&e, out);
    }
    eval_close(&e);
    return st;
}

/* --- text ---------------------------------------------------------------------------------- */

static d9d_status append_value(d9di_text_table *g, const char *name, const char *label,
                               const json_t *v)
{
    char text[160];

    (void)snprintf(text, sizeof(text), "%s%s%s", name, label != NULL ? "/" : "",
                   label != NULL ? label : "");
    D9D_TRY(d9di_text_table_add_text(g, text));
    return d9di_text_table_add_real(g, json_is_number(v) ? json_number_value(v) : NAN);
}

static d9d_status append_values(const json_t *result, d9di_text_table *g)
{
    const json_t *m;
    size_t i;

    D9D_TRY(d9di_text_table_add_text(g, "metric"));
    D9D_TRY(d9di_text_table_add_text(g, "value"));
    json_array_foreach(json_object_get(result, "metrics"), i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        const json_t *values = json_object_get(m, "values"), *labels = json_object_get(m, "labels");

        if (values == NULL)
            D9D_TRY(append_value(g, name, NULL, json_object_get(m, "value")));
        for (size_t k = 0; k < json_array_size(values); k++)
            D9D_TRY(append_value(g, name, json_string_value(json_array_get(labels, k)),
                                 json_array_get(values, k)));
    }
    return D9D_OK;
}

d9d_status d9d_eval_predictions_text(const json_t *result, d9d_buf *out)
{
    d9di_text_table g = {.columns = 2};
    const d9d_status st = append_values(result, &g), put = d9di_text_table_finish(&g, out);

    return st != D9D_OK ? st : put;
}
