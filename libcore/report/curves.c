/* curves.c - charts of runs. */
#include "report/rows.h"

static const char *const terminal_keys[] = {"loss"};
static const char *const file_keys[] = {"loss", "grad_norm", "lr", "tokens_per_s"};

/* The series of a key: only records that log it, so that other records cause no gaps. */
static bool chart_series_make(const d9d_run_reader *r, const char *key, d9d_arena *a,
                              d9d_chart_series *out)
{
    const double *v = d9d_run_reader_values(r, key);
    double *x, *y;
    d9di_report_rows rows = {0};

    *out = (d9d_chart_series){.name = r->name};
    if (v == NULL)
        return true;
    if (d9di_report_rows_select(r, (d9d_report_columns){&key, 1}, 0, a, &rows) != D9D_OK)
        return false;
    x = d9d_arena_alloc(a, (rows.n + 1) * sizeof(*x));
    y = d9d_arena_alloc(a, (rows.n + 1) * sizeof(*y));
    for (size_t i = 0; x != NULL && y != NULL && i < rows.n; i++) {
        x[i] = (double)r->step[rows.indices[i]];
        y[i] = v[rows.indices[i]];
    }
    out->x = x;
    out->y = y;
    out->n = rows.n;
    return x != NULL && y != NULL;
}

static bool any_run_has(const d9d_run_reader_list *r, const char *key)
{
    for (size_t k = 0; k < r->n; k++)
        if (d9d_run_reader_values(r->run[k], key) != NULL)
            return true;
    return false;
}

static bool chart_make(const d9d_run_reader_list *r, const char *key, bool log_y, d9d_arena *a,
                       d9d_chart *out)
{
    d9d_chart_series *s = d9d_arena_alloc(a, r->n * sizeof(*s));
    char *title = d9d_arena_strdup(a, key);

    if (s == NULL || title == NULL)
        return false;
    for (size_t k = 0; k < r->n; k++)
        if (!chart_series_make(r->run[k], key, a, &s[k]))
            return false;
    *out = (d9d_chart){
        .title = title, .x_label = "step", .series = s, .n_series = r->n, .log_y = log_y};
    return true;
}

/* The keys if the caller names none: those that were logged. */
typedef struct default_keys {
    d9d_report_columns usual;
    bool all; /* metrics of evaluations as well as losses */
} default_keys;

static d9d_status charts_make(const d9d_run_reader_list *r, d9d_report_columns keys,
                              const default_keys *w, bool log_y, d9d_arena *a, d9d_chart **out,
                              size_t *n)
{
    d9d_report_columns shown;
    d9d_chart *charts;
    bool ok;
    size_t made = 0;

    D9D_TRY(d9di_report_rows_columns(r, keys, w->usual, w->all, a, &shown));
    charts = d9d_arena_alloc(a, shown.n * sizeof(*charts));
    ok = charts != NULL;
    for (size_t i = 0; ok && i < shown.n; i++)
        if (keys.n > 0 || any_run_has(r, shown.key[i]))
            ok = chart_make(r, shown.key[i], log_y, a, &charts[made++]);
    if (!ok)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu charts", shown.n);
    *out = charts;
    *n = made;
    return D9D_OK;
}

static d9d_status append_curves(const d9d_chart *charts, size_t n,
                                const d9d_chart_text_style *style, d9d_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9d_chart_text(&charts[i], style, out));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return D9D_OK;
}

d9d_status d9d_report_curves(const d9d_run_reader_list *r, d9d_report_columns keys, bool log_y,
                             const d9d_chart_text_style *style, d9d_buf *out)
{
    const default_keys w = {{terminal_keys, sizeof(terminal_keys) / sizeof(terminal_keys[0])},
                            false};
    d9d_arena a = {0};
    d9d_chart *charts;
    size_t n;
    d9d_status st = charts_make(r, keys, &w, log_y, &a, &charts, &n);

    if (st == D9D_OK)
        st = append_curves(charts, n, style, out);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_report_plot(const d9d_run_reader_list *r, d9d_report_columns keys, bool log_y,
                           const char *path)
{
    const default_keys w = {{file_keys, sizeof(file_keys) / sizeof(file_keys[0])}, true};
    d9d_figure f = {.width = 640, .height = 340};
    d9d_arena a = {0};
    d9d_chart *charts;
    d9d_status st = d9d_run_reader_list_check_output(r, path);

    if (st == D9D_OK)
        st = charts_make(r, keys, &w, log_y, &a, &charts, &f.n);
    if (st == D9D_OK && f.n == 0)
        st = D9D_FAIL(D9D_ECONFIG, "nothing to draw: no run has loss, grad_norm, lr or "
                                   "tokens_per_s");
    if (st == D9D_OK) {
        f.charts = charts;
        f.columns = f.n > 1 ? 2 : 1;
        st = d9d_figure_write(&f, path);
    }
    d9d_arena_release(&a);
    return st;
}
