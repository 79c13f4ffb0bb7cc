/* compare.c - compares one key over several runs. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "report/rows.h"
#include "report/text_table.h"

/* The steps at which all runs log the key, with the record's index in every run. */
struct common_steps {
    d9d_arena arena;
    d9di_report_rows *rows; /* [runs]: records that log the key */
    size_t n;               /* steps */
    size_t runs;
    size_t *at; /* [n][runs], indices into `rows` */
};

static size_t shortest_run(const struct common_steps *c)
{
    size_t n = c->rows[0].n;

    for (size_t k = 1; k < c->runs; k++)
        n = c->rows[k].n < n ? c->rows[k].n : n;
    return n;
}

static void intersect_steps(const d9d_run_reader_list *r, struct common_steps *c)
{
    size_t *at = c->at; /* the entry being filled; always in bounds, as n + 1 are allocated */

    memset(at, 0, r->n * sizeof(*at));
    for (size_t k = 0; k < r->n;) {
        const d9di_report_rows *first = &c->rows[0], *rows = &c->rows[k];
        int64_t step, other;

        if (at[0] >= first->n || at[k] >= rows->n)
            return;
        step = r->run[0]->step[first->indices[at[0]]];
        other = r->run[k]->step[rows->indices[at[k]]];
        if (other < step)
            at[k]++;
        else if (other > step) {
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

static d9d_status fill_common(const d9d_run_reader_list *r, const char *key, struct common_steps *c)
{
    uint64_t bytes;

    c->rows = d9d_arena_alloc(&c->arena, r->n * sizeof(*c->rows));
    if (c->rows == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %zu runs", r->n);
    for (size_t k = 0; k < r->n; k++)
        D9D_TRY(d9di_report_rows_select(r->run[k], (d9d_report_columns){&key, 1}, 0, &c->arena,
                                        &c->rows[k]));
    if (!d9d_checked_mul_u64(shortest_run(c) + 1, r->n * sizeof(*c->at), &bytes) ||
        (c->at = d9d_arena_alloc(&c->arena, (size_t)bytes)) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %zu runs", r->n);
    intersect_steps(r, c);
    if (c->n == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: no step was logged by all of the %zu runs", key, r->n);
    return D9D_OK;
}

static d9d_status find_common_steps(const d9d_run_reader_list *r, const char *key,
                                    struct common_steps *out)
{
    d9d_status st;

    *out = (struct common_steps){.runs = r->n};
    st = fill_common(r, key, out);
    if (st != D9D_OK)
        d9d_arena_release(&out->arena);
    return st;
}

static double common_value(const d9d_run_reader_list *r, const struct common_steps *c,
                           const char *key, size_t i, size_t k)
{
    return d9di_report_rows_value(r->run[k], key, c->rows[k].indices[c->at[i * c->runs + k]]);
}

static int64_t common_step(const d9d_run_reader_list *r, const struct common_steps *c, size_t i)
{
    return r->run[0]->step[c->rows[0].indices[c->at[i * c->runs]]];
}

static d9d_status fill_table(d9di_text_table *g, const d9d_run_reader_list *r,
                             const struct common_steps *c, const char *key, size_t rows)
{
    D9D_TRY(d9di_text_table_add_text(g, "step"));
    for (size_t k = 0; k < r->n; k++) {
        D9D_TRY(d9di_text_table_add_text(g, r->run[k]->name));
        if (k > 0)
            D9D_TRY(d9di_text_table_add_text(g, "difference"));
    }
    for (size_t i = 0; i < d9di_report_rows_count(rows, c->n); i++) {
        const size_t at = d9di_report_rows_spread(i, rows, c->n);
        const double first = common_value(r, c, key, at, 0);

        D9D_TRY(d9di_text_table_add_int(g, common_step(r, c, at)));
        D9D_TRY(d9di_text_table_add_real(g, first));
        for (size_t k = 1; k < r->n; k++) {
            const double v = common_value(r, c, key, at, k);

            D9D_TRY(d9di_text_table_add_real(g, v));
            D9D_TRY(d9di_text_table_add_real(g, v - first));
        }
    }
    return D9D_OK;
}

/* The step with the largest difference between run k and the first run; NaN if none is
 * comparable. */
static double max_difference(const d9d_run_reader_list *r, const struct common_steps *c,
                             const char *key, size_t k, int64_t *step)
{
    double max_rows = (double)NAN;

    *step = -1;
    for (size_t i = 0; i < c->n; i++) {
        const double d = fabs(common_value(r, c, key, i, k) - common_value(r, c, key, i, 0));

        if (!isnan(d) && !(d <= max_rows)) {
            max_rows = d;
            *step = common_step(r, c, i);
        }
    }
    return max_rows;
}

static d9d_status append_max_difference(const d9d_run_reader_list *r, const struct common_steps *c,
                                        const char *key, d9d_buf *out)
{
    for (size_t k = 1; k < r->n; k++) {
        int64_t step;
        const double max_rows = max_difference(r, c, key, k, &step);

        if (isnan(max_rows))
            D9D_TRY(d9d_buf_printf(out, "%s: nothing to compare with %s\n", r->run[k]->name,
                                   r->run[0]->name));
        else
            D9D_TRY(d9d_buf_printf(
                out,
                "%s: largest difference from %s is %.6g, at step %" PRId64 " (%zu common step%s)\n",
                r->run[k]->name, r->run[0]->name, max_rows, step, c->n, D9D_PLURAL(c->n)));
    }
    return D9D_OK;
}

d9d_status d9d_report_compare(const d9d_run_reader_list *r, const char *key, size_t rows,
                              d9d_buf *out)
{
    d9di_text_table g = {.columns = 2 * r->n};
    struct common_steps c;
    d9d_status st, put;

    D9D_TRY(find_common_steps(r, key, &c));
    st = fill_table(&g, r, &c, key, rows);
    put = d9di_text_table_finish(&g, out);
    if (st == D9D_OK)
        st = put;
    if (st == D9D_OK)
        st = append_max_difference(r, &c, key, out);
    d9d_arena_release(&c.arena);
    return st;
}

static json_t *compare_json(const d9d_run_reader_list *r, const struct common_steps *c,
                            const char *key)
{
    json_t *runs = json_array(), *steps = json_array();
    int bad = 0;

    for (size_t k = 0; k < r->n; k++) {
        int64_t step;
        const double max_rows = max_difference(r, c, key, k, &step);

        bad |= json_array_append_new(
            runs,
            json_pack("{s:o, s:o, s:I}", "run", d9d_json_str(r->run[k]->name), "largest_difference",
                      d9di_report_rows_json(max_rows), "at_step", (json_int_t)step));
    }
    for (size_t i = 0; i < c->n; i++) {
        json_t *values = json_array();

        for (size_t k = 0; k < r->n; k++)
            bad |=
                json_array_append_new(values, d9di_report_rows_json(common_value(r, c, key, i, k)));
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

d9d_status d9d_report_compare_json(const d9d_run_reader_list *r, const char *key, json_t **out)
{
    struct common_steps c;
    json_t *v;

    D9D_TRY(find_common_steps(r, key, &c));
    v = compare_json(r, &c, key);
    d9d_arena_release(&c.arena);
    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to compare %zu runs, or a name is no UTF-8", r->n);
    *out = v;
    return D9D_OK;
}
