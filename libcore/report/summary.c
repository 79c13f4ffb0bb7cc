/* summary.c - summary of a run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/median.h"
#include "report/rows.h"
#include "report/text_table.h"

/* NaN if there is none. */
static d9d_status median_of_finite(const double *v, size_t n, double *out)
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
    *out = d9d_median(sorted, m);
    free(sorted);
    return D9D_OK;
}

static double last_finite(const double *v, size_t n)
{
    while (v != NULL && n > 0)
        if (!isnan(v[--n]))
            return v[n];
    return (double)NAN;
}

static double max_finite(const double *v, size_t n)
{
    double largest = (double)NAN;

    for (size_t i = 0; v != NULL && i < n; i++)
        largest = fmax(largest, v[i]);
    return largest;
}

static void summarise_steps(const d9d_run_reader *r, d9d_report_run_summary *s)
{
    const d9d_run_reader_column *losses = d9d_run_reader_find_column(r, "loss");
    const double *loss = d9d_run_reader_values(r, "loss");

    s->first_step = s->last_step = -1;
    s->first_loss = s->last_loss = s->min_loss = (double)NAN;
    for (size_t i = 0; i < r->n; i++)
        if ((r->sources[i] & D9D_RUN_READER_TRAINING) != 0) {
            s->first_step = s->first_step < 0 ? r->step[i] : s->first_step;
            s->last_step = r->step[i];
            if (d9d_run_reader_is_logged(losses, i))
                s->last_loss = losses->values[i];
            s->records++;
        }
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
}

static double total_step_seconds(const d9d_run_reader *r)
{
    const double *ms = d9d_run_reader_values(r, "step_ms");
    double sum = 0;
    int64_t from = r->begin;

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

d9d_status d9d_report_summarise_run(const d9d_run_reader *r, d9d_report_run_summary *out)
{
    d9d_report_run_summary s = {
        .tokens = last_finite(d9d_run_reader_values(r, "tokens"), r->n),
        .samples = last_finite(d9d_run_reader_values(r, "samples"), r->n),
        .seconds = total_step_seconds(r),
        .mem_bytes = max_finite(d9d_run_reader_values(r, "mem_bytes"), r->n),
        .restarts = r->restarts,
    };

    summarise_steps(r, &s);
    D9D_TRY(median_of_finite(d9d_run_reader_values(r, "tokens_per_s"), r->n, &s.tokens_per_s));
    D9D_TRY(median_of_finite(d9d_run_reader_values(r, "mfu"), r->n, &s.mfu));
    *out = s;
    return D9D_OK;
}

/* --- evaluations ------------------------------------------------------------------- */

typedef struct evaluation_best {
    double last, best; /* NaN if nothing was logged, or if neither direction is better */
    int64_t last_step, best_step;
} evaluation_best;

/* The metrics for which a direction is better. */
static const struct {
    const char *metric;
    int sign; /* 1: higher is better */
} betters[] = {{"loss", -1}, {"accuracy", 1}, {"precision", 1},    {"recall", 1},
               {"f1", 1},    {"fbeta", 1},    {"binary_auroc", 1}, {"multilabel_auroc", 1},
               {"mse", -1},  {"mae", -1},     {"r2", 1},           {"pearson", 1}};

/* The direction of a key such as "valid/f1" or "valid/f1[1]", or "valid/HEAD.f1" of a head. */
static int better_direction(const char *key)
{
    const char *own = strrchr(key, '/') + 1, *of_head = strrchr(own, '.');
    const char *metric = of_head != NULL ? of_head + 1 : own;
    const size_t n = strcspn(metric, "[");

    for (size_t i = 0; i < sizeof(betters) / sizeof(betters[0]); i++)
        if (strlen(betters[i].metric) == n && memcmp(betters[i].metric, metric, n) == 0)
            return betters[i].sign;
    return 0;
}

static void find_best(const d9d_run_reader *r, const char *key, evaluation_best *e)
{
    const d9d_run_reader_column *c = d9d_run_reader_find_column(r, key);
    const int sign = better_direction(key);

    *e = (evaluation_best){(double)NAN, (double)NAN, -1, -1};
    for (size_t i = 0; c != NULL && i < r->n; i++) {
        const double v = c->values[i];

        if (!d9d_run_reader_is_logged(c, i))
            continue;
        e->last = v;
        e->last_step = r->step[i];
        if (sign == 0 || isnan(v) || sign * v <= sign * e->best)
            continue;
        e->best = v;
        e->best_step = r->step[i];
    }
}

/* The losses and metrics of all runs' evaluations. */
static d9d_status evaluated_keys(const d9d_run_reader_list *r, d9d_arena *a,
                                 d9d_report_columns *out)
{
    return d9di_report_rows_columns(r, (d9d_report_columns){0}, (d9d_report_columns){0}, true, a,
                                    out);
}

static d9d_status fill_evaluation(d9di_text_table *g, const d9d_run_reader_list *r, const char *key,
                                  d9d_arena *a)
{
    static const struct {
        const char *before, *behind;
        size_t offset;
        bool is_step;
    } rows[] = {{"last_", "", offsetof(evaluation_best, last), false},
                {"last_", "_step", offsetof(evaluation_best, last_step), true},
                {"best_", "", offsetof(evaluation_best, best), false},
                {"best_", "_step", offsetof(evaluation_best, best_step), true}};

    for (size_t i = 0; i < (better_direction(key) != 0 ? 4 : 2); i++) {
        const char *name = d9d_arena_printf(a, "%s%s%s", rows[i].before, key, rows[i].behind);

        if (name == NULL)
            return D9D_FAIL(D9D_ENOMEM, "no memory for the summary of %s", key);
        D9D_TRY(d9di_text_table_add_text(g, name));
        for (size_t k = 0; k < r->n; k++) {
            evaluation_best e;
            const void *v = (const char *)&e + rows[i].offset;

            find_best(r->run[k], key, &e);
            D9D_TRY(rows[i].is_step ? d9di_text_table_add_int(g, *(const int64_t *)v)
                                    : d9di_text_table_add_real(g, *(const double *)v));
        }
    }
    return D9D_OK;
}

/* --- table and JSON from one list ----------------------------------------------- */

#define INT_FIELD(f)                                                                               \
    {                                                                                              \
#f, offsetof(d9d_report_run_summary, f), true                                              \
    }
#define REAL_FIELD(f)                                                                              \
    {                                                                                              \
#f, offsetof(d9d_report_run_summary, f), false                                             \
    }
static const struct field {
    const char *name;
    size_t offset;
    bool is_int;
} fields[] = {
    INT_FIELD(records),    INT_FIELD(first_step), INT_FIELD(last_step),     REAL_FIELD(first_loss),
    REAL_FIELD(last_loss), REAL_FIELD(min_loss),  INT_FIELD(min_loss_step), REAL_FIELD(tokens),
    REAL_FIELD(samples),   REAL_FIELD(seconds),   REAL_FIELD(tokens_per_s), REAL_FIELD(mfu),
    REAL_FIELD(mem_bytes), INT_FIELD(restarts),
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

static const void *field_value(const d9d_report_run_summary *s, const struct field *f)
{
    return (const char *)s + f->offset;
}

static d9d_status fill_table(d9di_text_table *g, const d9d_run_reader_list *r,
                             const d9d_report_run_summary *s, d9d_arena *a)
{
    d9d_report_columns keys;

    D9D_TRY(evaluated_keys(r, a, &keys));
    D9D_TRY(d9di_text_table_add_text(g, "run"));
    for (size_t k = 0; k < r->n; k++)
        D9D_TRY(d9di_text_table_add_text(g, r->run[k]->name));
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        D9D_TRY(d9di_text_table_add_text(g, f->name));
        for (size_t k = 0; k < r->n; k++)
            D9D_TRY(f->is_int
                        ? d9di_text_table_add_int(g, *(const int64_t *)field_value(&s[k], f))
                        : d9di_text_table_add_real(g, *(const double *)field_value(&s[k], f)));
    }
    for (size_t i = 0; i < keys.n; i++)
        D9D_TRY(fill_evaluation(g, r, keys.key[i], a));
    D9D_TRY(d9di_text_table_add_text(g, "end"));
    for (size_t k = 0; k < r->n; k++)
        D9D_TRY(d9di_text_table_add_text(g, r->run[k]->end != NULL ? r->run[k]->end : "-"));
    return D9D_OK;
}

d9d_status d9d_report_summary(const d9d_run_reader_list *r, d9d_buf *out)
{
    d9di_text_table g = {.columns = r->n + 1};
    d9d_arena a = {0};
    d9d_report_run_summary *s = calloc(r->n + 1, sizeof(*s));
    d9d_status st = D9D_OK, put;

    if (s == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu summaries", r->n);
    for (size_t k = 0; k < r->n && st == D9D_OK; k++)
        st = d9d_report_summarise_run(r->run[k], &s[k]);
    if (st == D9D_OK)
        st = fill_table(&g, r, s, &a);
    put = d9di_text_table_finish(&g, out);
    d9d_arena_release(&a);
    free(s);
    return st != D9D_OK ? st : put;
}

static json_t *evaluations_json(const d9d_run_reader *r, d9d_report_columns keys)
{
    json_t *all = json_object();

    for (size_t i = 0; i < keys.n; i++) {
        evaluation_best e;

        find_best(r, keys.key[i], &e);
        if (json_object_set_new(
                all, keys.key[i],
                json_pack("{s:o, s:I, s:o, s:I}", "last", d9di_report_rows_json(e.last),
                          "last_step", (json_int_t)e.last_step, "best",
                          d9di_report_rows_json(e.best), "best_step", (json_int_t)e.best_step)) !=
            0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *summary_json(const d9d_run_reader *r, const d9d_report_run_summary *s,
                            d9d_report_columns keys)
{
    json_t *obj =
        json_pack("{s:o, s:o}", "run", d9d_json_str(r->name), "path", d9d_json_str(r->path));
    int bad = 0;

    for (const struct field *f = fields; f < fields + N_FIELDS; f++)
        bad |= json_object_set_new(obj, f->name,
                                   f->is_int
                                       ? json_integer(*(const int64_t *)field_value(s, f))
                                       : d9di_report_rows_json(*(const double *)field_value(s, f)));
    if (keys.n > 0)
        bad |= json_object_set_new(obj, "evaluation", evaluations_json(r, keys));
    bad |= json_object_set_new(obj, "end", d9d_json_str(r->end));
    if (bad == 0)
        return obj;
    json_decref(obj);
    return NULL;
}

d9d_status d9d_report_summary_json(const d9d_run_reader_list *r, json_t **out)
{
    json_t *list = json_array();
    d9d_status st = D9D_OK;

    for (size_t k = 0; k < r->n && st == D9D_OK; k++) {
        const d9d_run_reader_list one = {&r->run[k], 1};
        d9d_report_run_summary s;
        d9d_arena a = {0};
        d9d_report_columns keys;

        st = d9d_report_summarise_run(r->run[k], &s);
        if (st == D9D_OK)
            st = evaluated_keys(&one, &a, &keys);
        if (st == D9D_OK && json_array_append_new(list, summary_json(r->run[k], &s, keys)) != 0)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its summary, or its name is no UTF-8",
                          r->run[k]->path);
        d9d_arena_release(&a);
    }
    if (st != D9D_OK) {
        json_decref(list);
        return st;
    }
    *out = list;
    return D9D_OK;
}
