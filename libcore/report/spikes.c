/* spikes.c - finds the steps that are spikes.  See d9d/report/report.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "report/rows.h"
#include "report/spike_documents.h"
#include "report/text_table.h"

typedef struct spike {
    int64_t step;
    double value, baseline, deviations;
    int64_t records;   /* that stand out in a row: D9D_REPORT_SPIKES_MIN_WINDOW or more, or 1 */
    json_t *documents; /* NULL: none were recorded */
} spike;

typedef D9D_VEC(spike) spikes;

/* The newest values that were no spikes, oldest first, and the same in ascending order. */
typedef struct spike_window {
    double *values, *sorted;
    size_t n, capacity;
} spike_window;

/* The first index in `sorted` whose value is at least v. */
static size_t window_find(const spike_window *w, double v)
{
    size_t lo = 0, hi = w->n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (w->sorted[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static double window_median(const spike_window *w)
{
    const size_t half = w->n / 2;

    return w->n % 2 == 1 ? w->sorted[half] : 0.5 * (w->sorted[half - 1] + w->sorted[half]);
}

/* 1.4826 times the median distance from the median.  Distances ascend to both sides of it, so they
 * are merged up to the middle one. */
static double window_deviation(const spike_window *w, double median)
{
    size_t hi = window_find(w, median), lo = hi;
    double before = 0, distance = 0;

    for (size_t k = 0; k <= w->n / 2; k++) {
        const double left = lo > 0 ? median - w->sorted[lo - 1] : (double)INFINITY;
        const double right = hi < w->n ? w->sorted[hi] - median : (double)INFINITY;

        before = distance;
        distance = fmin(left, right);
        lo -= left <= right;
        hi += left > right;
    }
    return fmax(1.4826 * (w->n % 2 == 1 ? distance : 0.5 * (before + distance)),
                1e-3 * fabs(median));
}

static void window_push(spike_window *w, double v)
{
    size_t at;

    if (w->n == w->capacity) {
        at = window_find(w, w->values[0]);
        memmove(w->sorted + at, w->sorted + at + 1, (w->n - at - 1) * sizeof(double));
        memmove(w->values, w->values + 1, --w->n * sizeof(double));
    }
    at = window_find(w, v);
    memmove(w->sorted + at + 1, w->sorted + at, (w->n - at) * sizeof(double));
    w->sorted[at] = v;
    w->values[w->n++] = v;
}

/* A walk over the records of a run. */
typedef struct spike_search {
    double deviations;
    spike_window usual;
    spike_window rise; /* the finite ones of the newest records, if these stand out in a row */
    int64_t in_a_row;  /* records that do */
    size_t first;      /* the spike that they began with */
    spikes *out;
} spike_search;

static void end_rise(spike_search *s)
{
    s->rise.n = 0;
    s->in_a_row = 0;
}

/* Adds a record that stands out.  The first of many in a row stands for all of them, and these are
 * what is usual from then on. */
static d9d_status add_spike(spike_search *s, const spike *x)
{
    if (s->in_a_row++ == 0)
        s->first = s->out->len;
    if (isfinite(x->value))
        window_push(&s->rise, x->value);
    if (s->in_a_row < D9D_REPORT_SPIKES_MIN_WINDOW)
        return D9D_VEC_PUSH(s->out, *x);
    s->out->len = s->first + 1;
    s->out->data[s->first].records = s->in_a_row;
    if (s->rise.n == D9D_REPORT_SPIKES_MIN_WINDOW) {
        const spike_window before = s->usual;

        s->usual = s->rise;
        s->rise = before;
        end_rise(s);
    }
    return D9D_OK;
}

/* Checks whether the record of a step is a spike. */
static d9d_status check_record(spike_search *s, int64_t step, double v)
{
    const bool judged = s->usual.n >= D9D_REPORT_SPIKES_MIN_WINDOW;
    const double median = judged ? window_median(&s->usual) : (double)NAN;
    double deviation;

    if (!judged && !isfinite(v))
        return D9D_OK;
    if (judged && !(v <= median)) {
        deviation = window_deviation(&s->usual, median);
        if (!isfinite(v) || v > median + s->deviations * deviation)
            return add_spike(s, &(spike){step, v, median, (v - median) / deviation, 1, NULL});
    }
    end_rise(s);
    window_push(&s->usual, v);
    return D9D_OK;
}

static d9d_status find_steps(const d9d_run_reader *r, const d9d_report_spikes_opts *opts,
                             spikes *out)
{
    const d9d_run_reader_column *c = d9d_run_reader_find_column(r, opts->key);
    spike_search s = {.deviations = opts->deviations,
                      .usual.capacity = opts->window,
                      .rise.capacity = opts->window,
                      .out = out};
    double *values;
    d9d_status st = D9D_OK;

    if (opts->window < D9D_REPORT_SPIKES_MIN_WINDOW)
        return D9D_FAIL(D9D_ECONFIG, "a window of %zu records, must be at least %d", opts->window,
                        D9D_REPORT_SPIKES_MIN_WINDOW);
    if (c == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: no column %s", r->path, opts->key);
    values = calloc(4 * opts->window, sizeof(double));
    if (values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a window of %zu records", opts->window);
    s.usual.values = values;
    s.usual.sorted = values + opts->window;
    s.rise.values = values + 2 * opts->window;
    s.rise.sorted = values + 3 * opts->window;
    for (size_t i = 0; i < r->n && st == D9D_OK; i++)
        if (d9d_run_reader_is_logged(c, i))
            st = check_record(&s, r->step[i], c->values[i]);
    free(values);
    return st == D9D_OK ? D9D_OK : D9D_FAIL(st, "%s: no memory for its spikes", r->path);
}

static d9d_status find_documents(const d9d_run_reader *r, const d9d_report_spikes_opts *opts,
                                 spikes *found)
{
    d9di_spike_documents d = {.run = r, .opts = opts};
    int64_t *step = d9d_arena_alloc(&d.arena, (found->len + 1) * sizeof(*step));
    json_t **documents = d9d_arena_alloc(&d.arena, (found->len + 1) * sizeof(json_t *));
    d9d_status st = D9D_OK;

    if (step == NULL || documents == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its spikes", r->path);
    for (size_t i = 0; i < found->len && st == D9D_OK; i++)
        step[i] = found->data[i].step;
    if (st == D9D_OK)
        st = d9di_spike_documents_find(&d, step, found->len, documents);
    for (size_t i = 0; i < found->len && documents != NULL; i++)
        found->data[i].documents = documents[i];
    d9di_spike_documents_release(&d);
    return st;
}

static d9d_status find_spikes(const d9d_run_reader *r, const d9d_report_spikes_opts *opts,
                              spikes *out)
{
    D9D_TRY(find_steps(r, opts, out));
    return out->len > 0 ? find_documents(r, opts, out) : D9D_OK;
}

static void spikes_release(spikes *found)
{
    for (size_t i = 0; i < found->len; i++)
        json_decref(found->data[i].documents);
    D9D_VEC_RELEASE(found);
}

static d9d_status fill_table(d9di_text_table *g, const spikes *found, const char *key)
{
    const char *const heads[] = {"step", key, "usual", "deviations"};

    for (size_t k = 0; k < 4; k++)
        D9D_TRY(d9di_text_table_add_text(g, heads[k]));
    for (size_t i = 0; i < found->len; i++) {
        D9D_TRY(d9di_text_table_add_int(g, found->data[i].step));
        D9D_TRY(d9di_text_table_add_real(g, found->data[i].value));
        D9D_TRY(d9di_text_table_add_real(g, found->data[i].baseline));
        D9D_TRY(d9di_text_table_add_real(g, found->data[i].deviations));
    }
    return D9D_OK;
}

static d9d_status print_rises(const spikes *found, d9d_buf *out)
{
    for (size_t i = 0; i < found->len; i++)
        if (found->data[i].records > 1)
            D9D_TRY(d9d_buf_printf(out,
                                   "from step %lld on %lld records in a row stand out, and the "
                                   "first is named for all\n",
                                   (long long)found->data[i].step,
                                   (long long)found->data[i].records));
    return D9D_OK;
}

static d9d_status print_documents(const spikes *found, d9d_buf *out)
{
    for (size_t i = 0; i < found->len; i++) {
        const spike *s = &found->data[i];

        if (s->documents == NULL)
            continue;
        D9D_TRY(d9d_buf_printf(out, "\nstep %lld:\n", (long long)s->step));
        D9D_TRY(d9di_spike_documents_print(s->documents, out));
    }
    return D9D_OK;
}

static d9d_status print_none(const d9d_run_reader *r, const d9d_report_spikes_opts *opts,
                             d9d_buf *out)
{
    if (r->n <= D9D_REPORT_SPIKES_MIN_WINDOW)
        return d9d_buf_printf(out, "no spikes: %zu record%s, the first %d are not judged\n", r->n,
                              D9D_PLURAL(r->n), D9D_REPORT_SPIKES_MIN_WINDOW);
    return d9d_buf_printf(
        out, "no spikes: no %s of %zu record%s is %g deviations above the %zu before it\n",
        opts->key, r->n, D9D_PLURAL(r->n), opts->deviations, opts->window);
}

d9d_status d9d_report_spikes(const d9d_run_reader *r, const d9d_report_spikes_opts *opts,
                             d9d_buf *out)
{
    d9di_text_table g = {.columns = 4};
    spikes found = {0};
    d9d_status st = find_spikes(r, opts, &found), put;

    if (st == D9D_OK && found.len == 0) {
        spikes_release(&found);
        return print_none(r, opts, out);
    }
    if (st == D9D_OK)
        st = fill_table(&g, &found, opts->key);
    put = d9di_text_table_finish(&g, out);
    if (st == D9D_OK && put == D9D_OK)
        put = print_rises(&found, out);
    if (st == D9D_OK && put == D9D_OK)
        put = print_documents(&found, out);
    spikes_release(&found);
    return st != D9D_OK ? st : put;
}

static json_t *spikes_json(const d9d_run_reader *r, const d9d_report_spikes_opts *opts,
                           const spikes *found)
{
    json_t *list = json_array();
    int bad = 0;

    for (size_t i = 0; i < found->len; i++)
        bad |= json_array_append_new(
            list,
            json_pack("{s:I, s:o, s:o, s:o, s:I, s:O*}", "step", (json_int_t)found->data[i].step,
                      "value", d9di_report_rows_json(found->data[i].value), "usual",
                      d9di_report_rows_json(found->data[i].baseline), "deviations",
                      d9di_report_rows_json(found->data[i].deviations), "records",
                      (json_int_t)found->data[i].records, "documents", found->data[i].documents));
    if (bad == 0)
        return json_pack("{s:o, s:o, s:o}", "run", d9d_json_str(r->name), "key",
                         d9d_json_str(opts->key), "spikes", list);
    json_decref(list);
    return NULL;
}

d9d_status d9d_report_spikes_json(const d9d_run_reader_list *r, const d9d_report_spikes_opts *opts,
                                  json_t **out)
{
    json_t *list = json_array();
    d9d_status st = D9D_OK;

    for (size_t k = 0; k < r->n && st == D9D_OK; k++) {
        spikes found = {0};

        st = find_spikes(r->run[k], opts, &found);
        if (st == D9D_OK && json_array_append_new(list, spikes_json(r->run[k], opts, &found)) != 0)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its spikes", r->run[k]->path);
        spikes_release(&found);
    }
    if (st == D9D_OK)
        *out = list;
    else
        json_decref(list);
    return st;
}
