/* curves.c - charts of runs. */
#include "d9d/metric/report.h"

static const char *const watched[] = {"loss"};
static const char *const drawn[] = {"loss", "grad_norm", "lr", "tokens_per_s"};

/* Steps as numbers, shared by all charts of a run. */
static double *steps_of(const d9d_run *r, d9d_arena *a)
{
    double *x = d9d_arena_alloc(a, (r->n + 1) * sizeof(*x));

    for (size_t i = 0; x != NULL && i < r->n; i++)
        x[i] = (double)r->step[i];
    return x;
}

static bool any_has(const d9d_runs *r, const char *key)
{
    for (size_t k = 0; k < r->n; k++)
        if (d9d_run_values(r->run[k], key) != NULL)
            return true;
    return false;
}

static bool make_chart(const d9d_runs *r, const char *key, bool log_y, double *const *x,
                       d9d_arena *a, d9d_chart *out)
{
    d9d_series *s = d9d_arena_alloc(a, r->n * sizeof(*s));
    char *title = d9d_arena_strdup(a, key);

    if (s == NULL || title == NULL)
        return false;
    for (size_t k = 0; k < r->n; k++) {
        const double *v = d9d_run_values(r->run[k], key);

        s[k] = (d9d_series){r->run[k]->name, x[k], v, v != NULL ? r->run[k]->n : 0};
    }
    *out = (d9d_chart){
        .title = title, .x_label = "step", .series = s, .n_series = r->n, .log_y = log_y};
    return true;
}

/* `usual` are the keys where the caller named none: those that were logged are drawn. */
static d9d_status make_charts(const d9d_runs *r, d9d_keys keys, d9d_keys usual, bool log_y,
                              d9d_arena *a, d9d_chart **out, size_t *n)
{
    const d9d_keys shown = keys.n > 0 ? keys : usual;
    d9d_chart *charts = d9d_arena_alloc(a, shown.n * sizeof(*charts));
    double **x = d9d_arena_alloc(a, r->n * sizeof(*x));
    bool ok = charts != NULL && x != NULL;
    size_t made = 0;

    for (size_t k = 0; ok && k < r->n; k++)
        ok = (x[k] = steps_of(r->run[k], a)) != NULL;
    for (size_t i = 0; ok && i < shown.n; i++)
        if (keys.n > 0 || any_has(r, shown.key[i]))
            ok = make_chart(r, shown.key[i], log_y, x, a, &charts[made++]);
    if (!ok)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu charts", shown.n);
    *out = charts;
    *n = made;
    return D9D_OK;
}

static d9d_status put_curves(const d9d_chart *charts, size_t n, const d9d_text_style *style,
                             d9d_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9d_chart_text(&charts[i], style, out));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return D9D_OK;
}

d9d_status d9d_report_curves(const d9d_runs *r, d9d_keys keys, bool log_y,
                             const d9d_text_style *style, d9d_buf *out)
{
    const d9d_keys usual = {watched, sizeof(watched) / sizeof(watched[0])};
    d9d_arena a = {0};
    d9d_chart *charts;
    size_t n;
    d9d_status st = make_charts(r, keys, usual, log_y, &a, &charts, &n);

    if (st == D9D_OK)
        st = put_curves(charts, n, style, out);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_report_plot(const d9d_runs *r, d9d_keys keys, bool log_y, const char *path)
{
    const d9d_keys usual = {drawn, sizeof(drawn) / sizeof(drawn[0])};
    d9d_figure f = {.width = 640, .height = 340};
    d9d_arena a = {0};
    d9d_chart *charts;
    d9d_status st = make_charts(r, keys, usual, log_y, &a, &charts, &f.n);

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
