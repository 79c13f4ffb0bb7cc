/* compare.c - one key of several runs, side by side. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "metric/grid.h"
#include "metric/rows.h"

/* Steps that all runs have, each with the record's number in every run. */
struct common {
    size_t n; /* steps */
    size_t runs;
    size_t *at; /* [n][runs] */
};

static size_t shortest(const d9d_runs *r)
{
    size_t n = r->run[0]->n;

    for (size_t k = 1; k < r->n; k++)
        n = r->run[k]->n < n ? r->run[k]->n : n;
    return n;
}

static void merge(const d9d_runs *r, struct common *c)
{
    size_t *at = c->at; /* the row that is being filled, always within bounds: n + 1 of them */

    memset(at, 0, r->n * sizeof(*at));
    for (size_t k = 0; k < r->n;) {
        const d9d_run *first = r->run[0], *run = r->run[k];

        if (at[0] >= first->n || at[k] >= run->n)
            return;
        if (run->step[at[k]] < first->step[at[0]])
            at[k]++;
        else if (run->step[at[k]] > first->step[at[0]]) {
            at[0]++;
            k = 0;
        } else if (++k == r->n) {
            for (size_t i = 0; i < r->n; i++)
                at[r->n + i] = at[i] + 1;
            at += r->n;
            c->n++;
            k = 0;
        }
    }
}

static d9d_status find_common(const d9d_runs *r, struct common *out)
{
    struct common c = {.runs = r->n};
    uint64_t cells;

    if (!d9d_mul_u64(shortest(r) + 1, r->n, &cells) ||
        (c.at = calloc((size_t)cells, sizeof(*c.at))) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %zu runs", r->n);
    merge(r, &c);
    if (c.n == 0) {
        free(c.at);
        return D9D_FAIL(D9D_ECONFIG, "no step was logged by all of the %zu runs", r->n);
    }
    *out = c;
    return D9D_OK;
}

static double common_value(const d9d_runs *r, const struct common *c, const char *key, size_t i,
                           size_t k)
{
    return d9di_rows_value(r->run[k], key, c->at[i * c->runs + k]);
}

static int64_t common_step(const d9d_runs *r, const struct common *c, size_t i)
{
    return r->run[0]->step[c->at[i * c->runs]];
}

static d9d_status fill_compare(d9di_grid *g, const d9d_runs *r, const struct common *c,
                               const char *key, size_t rows)
{
    D9D_TRY(d9di_grid_text(g, "step"));
    for (size_t k = 0; k < r->n; k++) {
        D9D_TRY(d9di_grid_text(g, r->run[k]->name));
        if (k > 0)
            D9D_TRY(d9di_grid_text(g, "difference"));
    }
    for (size_t i = 0; i < d9di_rows_count(rows, c->n); i++) {
        const size_t at = d9di_rows_spread(i, rows, c->n);
        const double first = common_value(r, c, key, at, 0);

        D9D_TRY(d9di_grid_int(g, common_step(r, c, at)));
        D9D_TRY(d9di_grid_real(g, first));
        for (size_t k = 1; k < r->n; k++) {
            const double v = common_value(r, c, key, at, k);

            D9D_TRY(d9di_grid_real(g, v));
            D9D_TRY(d9di_grid_real(g, v - first));
        }
    }
    return D9D_OK;
}

/* The step at which run k is farthest from the first one; NaN when none can be compared. */
static double farthest(const d9d_runs *r, const struct common *c, const char *key, size_t k,
                       int64_t *step)
{
    double most = (double)NAN;

    *step = -1;
    for (size_t i = 0; i < c->n; i++) {
        const double d = fabs(common_value(r, c, key, i, k) - common_value(r, c, key, i, 0));

        if (!isnan(d) && !(d <= most)) {
            most = d;
            *step = common_step(r, c, i);
        }
    }
    return most;
}

static d9d_status put_farthest(const d9d_runs *r, const struct common *c, const char *key,
                               d9d_buf *out)
{
    for (size_t k = 1; k < r->n; k++) {
        int64_t step;
        const double most = farthest(r, c, key, k, &step);

        if (isnan(most))
            D9D_TRY(d9d_buf_printf(out, "%s: nothing to compare with %s\n", r->run[k]->name,
                                   r->run[0]->name));
        else
            D9D_TRY(d9d_buf_printf(out,
                                   "%s: largest difference from %s is %.6g, at step %" PRId64
                                   " (%zu common steps)\n",
                                   r->run[k]->name, r->run[0]->name, most, step, c->n));
    }
    return D9D_OK;
}

d9d_status d9d_report_compare(const d9d_runs *r, const char *key, size_t rows, d9d_buf *out)
{
    d9di_grid g = {.columns = 2 * r->n};
    struct common c;
    d9d_status st, put;

    D9D_TRY(find_common(r, &c));
    st = fill_compare(&g, r, &c, key, rows);
    put = d9di_grid_finish(&g, out);
    if (st == D9D_OK)
        st = put;
    if (st == D9D_OK)
        st = put_farthest(r, &c, key, out);
    free(c.at);
    return st;
}

static json_t *compare_json(const d9d_runs *r, const struct common *c, const char *key)
{
    json_t *runs = json_array(), *steps = json_array();
    int bad = 0;

    for (size_t k = 0; k < r->n; k++) {
        int64_t step;
        const double most = farthest(r, c, key, k, &step);

        bad |= json_array_append_new(runs,
                                     json_pack("{s:o, s:o, s:I}", "run",
                                               d9d_json_str(r->run[k]->name), "largest_difference",
                                               d9di_rows_json(most), "at_step", (json_int_t)step));
    }
    for (size_t i = 0; i < c->n; i++) {
        json_t *values = json_array();

        for (size_t k = 0; k < r->n; k++)
            bad |= json_array_append_new(values, d9di_rows_json(common_value(r, c, key, i, k)));
        bad |= json_array_append_new(
            steps,
            json_pack("{s:I, s:o}", "step", (json_int_t)common_step(r, c, i), "values", values));
    }
    if (bad == 0)
        return json_pack("{s:o, s:o, s:o}", "key", d9d_json_str(key), "runs", runs, "steps", steps);
    json_decref(runs);
    json_decref(steps);
    return NULL;
}

d9d_status d9d_report_compare_json(const d9d_runs *r, const char *key, json_t **out)
{
    struct common c;
    json_t *v;

    D9D_TRY(find_common(r, &c));
    v = compare_json(r, &c, key);
    free(c.at);
    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %zu runs, or a name is no UTF-8", r->n);
    *out = v;
    return D9D_OK;
}
