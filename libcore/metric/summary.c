/* summary.c - a run in a dozen numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "metric/grid.h"
#include "metric/median.h"
#include "metric/rows.h"

/* NaN of none. */
static d9d_status median(const double *v, size_t n, double *out)
{
    double *sorted;
    size_t m = 0;

    *out = (double)NAN;
    if (v == NULL || n == 0)
        return D9D_OK;
    sorted = calloc(n, sizeof(*sorted));
    if (sorted == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the median of %zu values", n);
    for (size_t i = 0; i < n; i++)
        if (!isnan(v[i]))
            sorted[m++] = v[i];
    *out = d9di_median(sorted, m);
    free(sorted);
    return D9D_OK;
}

static double last_of(const double *v, size_t n)
{
    while (v != NULL && n > 0)
        if (!isnan(v[--n]))
            return v[n];
    return (double)NAN;
}

static double highest_of(const double *v, size_t n)
{
    double most = (double)NAN;

    for (size_t i = 0; v != NULL && i < n; i++)
        most = fmax(most, v[i]);
    return most;
}

static void summarise_loss(const d9d_run *r, d9d_run_summary *s)
{
    const double *loss = d9d_run_values(r, "loss");

    s->first_loss = s->min_loss = (double)NAN;
    s->min_loss_step = -1;
    for (size_t i = 0; loss != NULL && i < r->n; i++) {
        if (isnan(loss[i]))
            continue;
        if (isnan(s->first_loss))
            s->first_loss = loss[i];
        if (!(s->min_loss <= loss[i])) {
            s->min_loss = loss[i];
            s->min_loss_step = r->step[i];
        }
    }
    s->last_loss = last_of(loss, r->n);
}

static double seconds_of(const d9d_run *r)
{
    const double *ms = d9d_run_values(r, "step_ms");
    double sum = 0;
    int64_t from = 0;

    if (ms == NULL)
        return (double)NAN;
    for (size_t i = 0; i < r->n; i++) {
        if (!isfinite(ms[i]))
            continue;
        sum += ms[i] * 1e-3 * (double)(r->step[i] - from);
        from = r->step[i];
    }
    return sum;
}

d9d_status d9d_run_summarise(const d9d_run *r, d9d_run_summary *out)
{
    d9d_run_summary s = {
        .records = (int64_t)r->n,
        .first_step = r->n > 0 ? r->step[0] : -1,
        .last_step = r->n > 0 ? r->step[r->n - 1] : -1,
        .tokens = last_of(d9d_run_values(r, "tokens"), r->n),
        .samples = last_of(d9d_run_values(r, "samples"), r->n),
        .seconds = seconds_of(r),
        .mem_bytes = highest_of(d9d_run_values(r, "mem_bytes"), r->n),
        .restarts = r->restarts,
    };

    summarise_loss(r, &s);
    D9D_TRY(median(d9d_run_values(r, "tokens_per_s"), r->n, &s.tokens_per_s));
    D9D_TRY(median(d9d_run_values(r, "mfu"), r->n, &s.mfu));
    *out = s;
    return D9D_OK;
}

/* --- table and JSON from one list ----------------------------------------------- */

#define INT(f)                                                                                     \
    {                                                                                              \
#f, offsetof(d9d_run_summary, f), true                                                     \
    }
#define REAL(f)                                                                                    \
    {                                                                                              \
#f, offsetof(d9d_run_summary, f), false                                                    \
    }
static const struct field {
    const char *name;
    size_t offset;
    bool is_int;
} fields[] = {
    INT(records),       INT(first_step),    INT(last_step),  REAL(first_loss), REAL(last_loss),
    REAL(min_loss),     INT(min_loss_step), REAL(tokens),    REAL(samples),    REAL(seconds),
    REAL(tokens_per_s), REAL(mfu),          REAL(mem_bytes), INT(restarts),
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

static const void *field_of(const d9d_run_summary *s, const struct field *f)
{
    return (const char *)s + f->offset;
}

static d9d_status fill(d9di_grid *g, const d9d_runs *r, const d9d_run_summary *s)
{
    D9D_TRY(d9di_grid_text(g, "run"));
    for (size_t k = 0; k < r->n; k++)
        D9D_TRY(d9di_grid_text(g, r->run[k]->name));
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        D9D_TRY(d9di_grid_text(g, f->name));
        for (size_t k = 0; k < r->n; k++)
            D9D_TRY(f->is_int ? d9di_grid_int(g, *(const int64_t *)field_of(&s[k], f))
                              : d9di_grid_real(g, *(const double *)field_of(&s[k], f)));
    }
    D9D_TRY(d9di_grid_text(g, "end"));
    for (size_t k = 0; k < r->n; k++)
        D9D_TRY(d9di_grid_text(g, r->run[k]->end != NULL ? r->run[k]->end : "-"));
    return D9D_OK;
}

d9d_status d9d_report_summary(const d9d_runs *r, d9d_buf *out)
{
    d9di_grid g = {.columns = r->n + 1};
    d9d_run_summary *s = calloc(r->n + 1, sizeof(*s));
    d9d_status st = D9D_OK, put;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu summaries", r->n);
    for (size_t k = 0; k < r->n && st == D9D_OK; k++)
        st = d9d_run_summarise(r->run[k], &s[k]);
    if (st == D9D_OK)
        st = fill(&g, r, s);
    put = d9di_grid_finish(&g, out);
    free(s);
    return st != D9D_OK ? st : put;
}

static json_t *summary_json(const d9d_run *r, const d9d_run_summary *s)
{
    json_t *obj =
        json_pack("{s:o, s:o}", "run", d9d_json_str(r->name), "path", d9d_json_str(r->path));
    int bad = 0;

    for (const struct field *f = fields; f < fields + N_FIELDS; f++)
        bad |= json_object_set_new(obj, f->name,
                                   f->is_int ? json_integer(*(const int64_t *)field_of(s, f))
                                             : d9di_rows_json(*(const double *)field_of(s, f)));
    bad |= json_object_set_new(obj, "end", d9d_json_str(r->end));
    if (bad == 0)
        return obj;
    json_decref(obj);
    return NULL;
}

d9d_status d9d_report_summary_json(const d9d_runs *r, json_t **out)
{
    json_t *list = json_array();
    d9d_status st = D9D_OK;

    for (size_t k = 0; k < r->n && st == D9D_OK; k++) {
        d9d_run_summary s;

        st = d9d_run_summarise(r->run[k], &s);
        if (st == D9D_OK && json_array_append_new(list, summary_json(r->run[k], &s)) != 0)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its summary, or its name is no UTF-8",
                          r->run[k]->path);
    }
    if (st != D9D_OK) {
        json_decref(list);
        return st;
    }
    *out = list;
    return D9D_OK;
}
