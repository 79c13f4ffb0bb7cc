/* html_chart_data.c - the data that report.js draws.
 *
 *     "axes": [{"rows": 1000, "step": [1, 500, 500], "seconds": [0, 60, 125], "tokens": [...]}],
 *     "charts": [{"title": "Loss", "unit": "number", "log": false, "smooth": true,
 *                 "series": [{"run": 0, "name": "loss", "evaluation": false, "axis": 0,
 *                             "mean": [...], "low": [...], "high": [...]}]}]
 *
 * An axis belongs to the columns of one run that are in the same records: `rows` records in as many
 * buckets as it has entries.  `step` and `tokens` are differences from the entry before.  `low` and
 * `high` are there where a bucket has several records.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "report/html/downsample.h"
#include "report/html/html_charts.h"
#include "report/rows.h"

/* Bytes of data to aim at; of a bucket in a series, and in an axis. */
enum { DATA_BYTES = 620000, SERIES_BYTES = 30, AXIS_BYTES = 24 };
enum { BUCKETS_MIN = 24, BUCKETS_MAX = 2000 };

typedef struct axis {
    size_t run;
    const d9d_run_reader_column *column; /* the first of them */
    d9di_report_rows rows;
    size_t buckets;
} axis;

typedef struct axes {
    const d9d_run_reader_list *runs;
    d9d_arena arena;
    D9D_VEC(axis) list;
    size_t n_series;
} axes;

/* Whether the same of n records have two columns. */
static bool in_same_records(const d9d_run_reader_column *a, const d9d_run_reader_column *b,
                            size_t n)
{
    if (a->logged == NULL || b->logged == NULL)
        return a->logged == b->logged;
    return memcmp(a->logged, b->logged, n * sizeof(*a->logged)) == 0;
}

static size_t find_axis(const axes *a, const d9di_html_series *s)
{
    const size_t n = a->runs->run[s->run]->n;
    size_t i = 0;

    while (i < a->list.len && (a->list.data[i].run != s->run ||
                               !in_same_records(a->list.data[i].column, s->column, n)))
        i++;
    return i;
}

static d9d_status add_axis(axes *a, const d9di_html_series *s)
{
    const char *const key = s->column->name;
    axis x = {.run = s->run, .column = s->column};

    if (find_axis(a, s) < a->list.len)
        return D9D_OK;
    D9D_TRY(d9di_report_rows_select(a->runs->run[s->run], (d9d_report_columns){&key, 1}, 0,
                                    &a->arena, &x.rows));
    return D9D_VEC_PUSH(&a->list, x);
}

static d9d_status collect_axes(const d9di_html_charts *c, axes *a)
{
    const d9d_run_reader_list *r = a->runs;

    for (size_t i = 0; i < c->list.len; i++)
        for (size_t k = 0; k < c->list.data[i].series.len; k++) {
            const d9di_html_series *s = &c->list.data[i].series.data[k];

            a->n_series++;
            if (add_axis(a, s) != D9D_OK)
                return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its charts", r->run[s->run]->path);
        }
    return D9D_OK;
}

/* As many buckets in each series as fit the page. */
static void share_buckets(axes *a)
{
    const size_t each = a->n_series * SERIES_BYTES + a->list.len * AXIS_BYTES;
    size_t max = each > 0 ? DATA_BYTES / each : 1;

    max = max < BUCKETS_MIN ? BUCKETS_MIN : max > BUCKETS_MAX ? BUCKETS_MAX : max;
    for (size_t i = 0; i < a->list.len; i++)
        a->list.data[i].buckets = d9di_downsample_count(a->list.data[i].rows.n, max);
}

/* --- axes ------------------------------------------------------------------------------------- */

/* The record in the middle of bucket i. */
static size_t middle_record(const axis *x, size_t i)
{
    const size_t begin = d9di_downsample_begin(i, x->buckets, x->rows.n);
    const size_t end = d9di_downsample_begin(i + 1, x->buckets, x->rows.n);

    return x->rows.indices[begin + (end - 1 - begin) / 2];
}

static void put_steps(d9di_html_writer *w, const d9d_run_reader *r, const axis *x)
{
    int64_t before = 0;

    d9di_html_put(w, "\"step\":[");
    for (size_t i = 0; i < x->buckets; i++) {
        const int64_t step = r->step[middle_record(x, i)];

        d9di_html_put(w, "%s%" PRId64, i > 0 ? "," : "", step - before);
        before = step;
    }
    d9di_html_put(w, "],");
}

/* The training seconds of each record: the sum of the steps before it and its own. */
static d9d_status sum_seconds(const d9d_run_reader *r, d9d_arena *a, double **out)
{
    const double *ms = d9d_run_reader_values(r, "step_ms");
    double *s = d9d_arena_alloc(a, (r->n + 1) * sizeof(*s)), sum = 0;
    int64_t from = r->begin;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its times", r->path);
    for (size_t i = 0; i < r->n; i++) {
        if (ms != NULL && isfinite(ms[i])) {
            sum += 1e-3 * ms[i] * (double)(r->step[i] - from);
            from = r->step[i];
        }
        s[i] = sum;
    }
    *out = s;
    return D9D_OK;
}

static void put_seconds(d9di_html_writer *w, const axis *x, const double *seconds)
{
    d9di_html_put(w, "\"seconds\":[");
    for (size_t i = 0; i < x->buckets; i++) {
        d9di_html_put(w, "%s", i > 0 ? "," : "");
        d9di_html_json_number(w, seconds[middle_record(x, i)]);
    }
    d9di_html_put(w, "]");
}

/* The tokens learned until then; a record without them has those of the one before. */
static void put_tokens(d9di_html_writer *w, const d9d_run_reader *r, const axis *x)
{
    const double *tokens = d9d_run_reader_values(r, "tokens");
    double before = 0;

    if (tokens == NULL)
        return;
    d9di_html_put(w, ",\"tokens\":[");
    for (size_t i = 0; i < x->buckets; i++) {
        size_t at = middle_record(x, i);
        double now;

        while (at > 0 && !isfinite(tokens[at]))
            at--;
        now = isfinite(tokens[at]) ? tokens[at] : 0;
        d9di_html_put(w, "%s%.0f", i > 0 ? "," : "", now - before);
        before = now;
    }
    d9di_html_put(w, "]");
}

static void put_axes(d9di_html_writer *w, axes *a, const d9d_run_reader_list *r)
{
    double *seconds = NULL;
    size_t run = SIZE_MAX;

    d9di_html_put(w, "\"axes\":[");
    for (size_t i = 0; i < a->list.len && w->st == D9D_OK; i++) {
        const axis *x = &a->list.data[i];

        if (run != x->run)
            w->st = sum_seconds(r->run[x->run], &a->arena, &seconds);
        run = x->run;
        d9di_html_put(w, "%s\n{\"rows\":%zu,", i > 0 ? "," : "", x->rows.n);
        put_steps(w, r->run[x->run], x);
        if (w->st == D9D_OK)
            put_seconds(w, x, seconds);
        put_tokens(w, r->run[x->run], x);
        d9di_html_put(w, "}");
    }
    d9di_html_put(w, "],\n");
}

/* --- series ----------------------------------------------------------------------------------- */

/* One member of the buckets: "mean", "low" or "high". */
static void put_values(d9di_html_writer *w, const char *name, size_t offset,
                       const d9d_run_reader_column *c, const axis *x)
{
    d9di_html_put(w, ",\"%s\":[", name);
    for (size_t i = 0; i < x->buckets; i++) {
        const d9di_downsample_bucket b =
            d9di_downsample_take(c->values, x->rows.indices, i, x->buckets, x->rows.n);

        d9di_html_put(w, "%s", i > 0 ? "," : "");
        d9di_html_json_number(w, *(const double *)((const char *)&b + offset));
    }
    d9di_html_put(w, "]");
}

static void put_series(d9di_html_writer *w, const d9di_html_series *s, const axes *a)
{
    const size_t i = find_axis(a, s);
    const axis *x = &a->list.data[i];

    d9di_html_put(w, "{\"run\":%zu,\"name\":", s->run);
    d9di_html_json_text(w, s->column->name);
    d9di_html_put(w, ",\"evaluation\":%s,\"axis\":%zu", s->evaluation ? "true" : "false", i);
    put_values(w, "mean", offsetof(d9di_downsample_bucket, mean), s->column, x);
    if (x->buckets < x->rows.n) {
        put_values(w, "low", offsetof(d9di_downsample_bucket, low), s->column, x);
        put_values(w, "high", offsetof(d9di_downsample_bucket, high), s->column, x);
    }
    d9di_html_put(w, "}");
}

static void put_chart(d9di_html_writer *w, const d9di_html_chart *c, const axes *a)
{
    d9di_html_put(w, "{\"title\":");
    d9di_html_json_text(w, c->title);
    d9di_html_put(w, ",\"unit\":\"%s\",\"log\":%s,\"smooth\":%s,\"series\":[", c->unit,
                  c->log ? "true" : "false", c->smooth ? "true" : "false");
    for (size_t k = 0; k < c->series.len; k++) {
        d9di_html_put(w, "%s\n", k > 0 ? "," : "");
        put_series(w, &c->series.data[k], a);
    }
    d9di_html_put(w, "]}");
}

static void put_data(d9di_html_writer *w, const d9di_html_charts *c, const d9d_run_reader_list *r,
                     axes *a)
{
    share_buckets(a);
    put_axes(w, a, r);
    d9di_html_put(w, "\"charts\":[");
    for (size_t i = 0; i < c->list.len && w->st == D9D_OK; i++) {
        d9di_html_put(w, "%s\n", i > 0 ? "," : "");
        put_chart(w, &c->list.data[i], a);
    }
    d9di_html_put(w, "]");
}

void d9di_html_charts_put_data(d9di_html_writer *w, const d9di_html_charts *c,
                               const d9d_run_reader_list *r)
{
    axes a = {.runs = r, .n_series = 0};

    if (w->st == D9D_OK)
        w->st = collect_axes(c, &a);
    if (w->st == D9D_OK)
        put_data(w, c, r, &a);
    D9D_VEC_RELEASE(&a.list);
    d9d_arena_release(&a.arena);
}
