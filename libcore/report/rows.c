/* rows.c - selects the records and columns of a report. */
#include "report/rows.h"

#include <string.h>

size_t d9di_report_rows_count(size_t rows, size_t n)
{
    return rows == 0 || rows > n ? n : rows;
}

size_t d9di_report_rows_spread(size_t i, size_t rows, size_t n)
{
    if (rows == 0 || rows >= n)
        return i;
    return rows > 1 ? (size_t)((double)i * (double)(n - 1) / (double)(rows - 1) + 0.5) : n - 1;
}

double d9di_report_rows_value(const d9d_run_reader *r, const char *key, size_t i)
{
    const double *v = d9d_run_reader_values(r, key);

    return v != NULL ? v[i] : (double)NAN;
}

static bool is_integer(double v)
{
    return v == floor(v) && fabs(v) < 0x1p53;
}

json_t *d9di_report_rows_json(double v)
{
    if (!isfinite(v))
        return json_null();
    return is_integer(v) ? json_integer((json_int_t)v) : json_real(v);
}

d9d_status d9di_report_rows_append_value(d9d_buf *out, double v)
{
    return is_integer(v) ? d9d_buf_printf(out, "%.0f", v) : d9d_json_put_f64(out, v);
}

/* --- keys ------------------------------------------------------------------------------------- */

static const char *const default_columns[] = {"loss",   "grad_norm",    "lr",
                                              "tokens", "tokens_per_s", "step_ms"};
const d9d_report_columns d9di_report_rows_default_columns = {
    default_columns, sizeof(default_columns) / sizeof(default_columns[0])};

static bool has_key(const char *const *keys, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool is_loss(const char *name)
{
    const char *slash = strrchr(name, '/');

    return slash != NULL && strcmp(slash, "/loss") == 0;
}

d9d_status d9di_report_rows_columns(const d9d_run_reader_list *r, d9d_report_columns keys,
                                    d9d_report_columns usual, bool all, d9d_arena *a,
                                    d9d_report_columns *out)
{
    size_t n = 0, max_rows = usual.n;
    const char **list;

    *out = keys;
    if (keys.n > 0)
        return D9D_OK;
    for (size_t k = 0; k < r->n; k++)
        max_rows += r->run[k]->n_columns;
    list = d9d_arena_alloc(a, max_rows * sizeof(*list));
    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the names of %zu columns", max_rows);
    for (; n < usual.n; n++)
        list[n] = usual.key[n];
    for (size_t k = 0; k < r->n; k++)
        for (size_t i = 0; i < r->run[k]->n_columns; i++) {
            const d9d_run_reader_column *c = &r->run[k]->columns[i];

            if (d9d_run_reader_evaluation_of(r->run[k], c) >= 0 && (all || is_loss(c->name)) &&
                !has_key(list, n, c->name))
                list[n++] = c->name;
        }
    *out = (d9d_report_columns){list, n};
    return D9D_OK;
}

/* --- records ---------------------------------------------------------------------------------- */

/* Marks the records that log one of the keys; returns the mask of these columns' sources. */
static uint32_t mark_logged(const d9d_run_reader *r, d9d_report_columns keys, bool *logged)
{
    uint32_t sources = 0;

    memset(logged, 0, r->n * sizeof(*logged));
    for (size_t k = 0; k < keys.n; k++) {
        const d9d_run_reader_column *c = d9d_run_reader_find_column(r, keys.key[k]);

        sources |= c != NULL ? c->sources : 0;
        for (size_t i = 0; c != NULL && i < r->n; i++)
            logged[i] = logged[i] || d9d_run_reader_is_logged(c, i);
    }
    return sources;
}

/* The index in [lo, hi) of the record with an evaluation that is nearest to `at`; without any,
 * `at`. */
static size_t nearest_evaluation(const d9d_run_reader *r, const size_t *list, size_t lo, size_t hi,
                                 size_t at, uint32_t evaluations)
{
    for (size_t distance = 0; at + distance < hi || (distance <= at && at - distance >= lo);
         distance++) {
        if (at + distance < hi && (r->sources[list[at + distance]] & evaluations) != 0)
            return at + distance;
        if (distance <= at && at - distance >= lo &&
            (r->sources[list[at - distance]] & evaluations) != 0)
            return at - distance;
    }
    return at;
}

d9d_status d9di_report_rows_select(const d9d_run_reader *r, d9d_report_columns keys, size_t rows,
                                   d9d_arena *a, d9di_report_rows *out)
{
    size_t *list = d9d_arena_alloc(a, (r->n + 1) * sizeof(*list)), n = 0, count, before = 0;
    bool *logged = d9d_arena_alloc(a, (r->n + 1) * sizeof(*logged));
    uint32_t evaluations;

    if (list == NULL || logged == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the numbers of %zu records", r->path, r->n);
    evaluations = mark_logged(r, keys, logged) & ~(uint32_t)D9D_RUN_READER_TRAINING;
    for (size_t i = 0; i < r->n; i++)
        if (logged[i])
            list[n++] = i;
    count = d9di_report_rows_count(rows, n);
    for (size_t i = 0; count < n && i < count; i++) { /* in place: reads before it writes */
        const size_t at = d9di_report_rows_spread(i, count, n);
        const size_t next = i + 1 < count ? d9di_report_rows_spread(i + 1, count, n) : n;
        const size_t end = at + (next - at + 1) / 2;
        const bool inner = i > 0 && i + 1 < count;

        list[i] = list[inner ? nearest_evaluation(r, list, before, end, at, evaluations) : at];
        before = end;
    }
    *out = (d9di_report_rows){list, count};
    return D9D_OK;
}
