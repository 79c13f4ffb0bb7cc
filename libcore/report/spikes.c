/* spikes.c - steps that stand out.  See d9d/report/report.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/median.h"
#include "report/rows.h"
#include "report/spike_documents.h"
#include "report/text_table.h"

typedef struct spike {
    int64_t step;
    double value, usual, deviations;
    json_t *documents; /* NULL: none were recorded */
} spike;

typedef D9D_VEC(spike) spikes;

/* The newest values that did not stand out, oldest first, and room to sort them. */
typedef struct window {
    double *values, *sorted;
    size_t n, most;
} window;

static void usual(const window *w, double *median, double *deviation)
{
    memcpy(w->sorted, w->values, w->n * sizeof(double));
    *median = d9di_median(w->sorted, w->n);
    for (size_t i = 0; i < w->n; i++)
        w->sorted[i] = fabs(w->values[i] - *median);
    *deviation = fmax(1.4826 * d9di_median(w->sorted, w->n), 1e-3 * fabs(*median));
}

static void keep(window *w, double v)
{
    if (w->n == w->most)
        memmove(w->values, w->values + 1, --w->n * sizeof(double));
    w->values[w->n++] = v;
}

/* Does record i stand out? */
static d9d_status judge(const d9d_run *r, size_t i, double v, const d9d_spikes_how *how, window *w,
                        spikes *out)
{
    double median, deviation;

    if (w->n < D9D_SPIKES_LEAST) {
        if (isfinite(v))
            keep(w, v);
        return D9D_OK;
    }
    usual(w, &median, &deviation);
    if (isfinite(v) && !(v > median + how->deviations * deviation)) {
        keep(w, v);
        return D9D_OK;
    }
    if (D9D_VEC_PUSH(out, (spike){r->step[i], v, median, (v - median) / deviation, NULL}) != D9D_OK)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its spikes", r->path);
    return D9D_OK;
}

static d9d_status find_steps(const d9d_run *r, const d9d_spikes_how *how, spikes *out)
{
    const double *v = d9d_run_values(r, how->key);
    window w = {.most = how->window};
    d9d_status st = D9D_OK;

    if (how->window < D9D_SPIKES_LEAST)
        return D9D_FAIL(D9D_ECONFIG, "a window of %zu records, must be at least %d", how->window,
                        D9D_SPIKES_LEAST);
    if (v == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: no column %s", r->path, how->key);
    w.values = calloc(2 * how->window, sizeof(double));
    if (w.values == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a window of %zu records", how->window);
    w.sorted = w.values + how->window;
    for (size_t i = 0; i < r->n && st == D9D_OK; i++)
        if ((r->sources[i] & d9d_run_sources(r, how->key)) != 0)
            st = judge(r, i, v[i], how, &w, out);
    free(w.values);
    return st;
}

static d9d_status find_documents(const d9d_run *r, const d9d_spikes_how *how, spikes *found)
{
    d9di_spike_documents d = {.run = r, .how = how};
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

static d9d_status find(const d9d_run *r, const d9d_spikes_how *how, spikes *out)
{
    D9D_TRY(find_steps(r, how, out));
    return out->len > 0 ? find_documents(r, how, out) : D9D_OK;
}

static void spikes_release(spikes *found)
{
    for (size_t i = 0; i < found->len; i++)
        json_decref(found->data[i].documents);
    D9D_VEC_RELEASE(found);
}

static d9d_status fill(d9di_grid *g, const spikes *found, const char *key)
{
    const char *const heads[] = {"step", key, "usual", "deviations"};

    for (size_t k = 0; k < 4; k++)
        D9D_TRY(d9di_grid_text(g, heads[k]));
    for (size_t i = 0; i < found->len; i++) {
        D9D_TRY(d9di_grid_int(g, found->data[i].step));
        D9D_TRY(d9di_grid_real(g, found->data[i].value));
        D9D_TRY(d9di_grid_real(g, found->data[i].usual));
        D9D_TRY(d9di_grid_real(g, found->data[i].deviations));
    }
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

d9d_status d9d_report_spikes(const d9d_run *r, const d9d_spikes_how *how, d9d_buf *out)
{
    d9di_grid g = {.columns = 4};
    spikes found = {0};
    d9d_status st = find(r, how, &found), put;

    if (st == D9D_OK)
        st = fill(&g, &found, how->key);
    put = d9di_grid_finish(&g, out);
    if (st == D9D_OK && put == D9D_OK)
        put = print_documents(&found, out);
    spikes_release(&found);
    return st != D9D_OK ? st : put;
}

static json_t *spikes_json(const d9d_run *r, const d9d_spikes_how *how, const spikes *found)
{
    json_t *list = json_array();
    int bad = 0;

    for (size_t i = 0; i < found->len; i++)
        bad |= json_array_append_new(
            list, json_pack("{s:I, s:o, s:o, s:o, s:O*}", "step", (json_int_t)found->data[i].step,
                            "value", d9di_rows_json(found->data[i].value), "usual",
                            d9di_rows_json(found->data[i].usual), "deviations",
                            d9di_rows_json(found->data[i].deviations), "documents",
                            found->data[i].documents));
    if (bad == 0)
        return json_pack("{s:o, s:o, s:o}", "run", d9d_json_str(r->name), "key",
                         d9d_json_str(how->key), "spikes", list);
    json_decref(list);
    return NULL;
}

d9d_status d9d_report_spikes_json(const d9d_runs *r, const d9d_spikes_how *how, json_t **out)
{
    json_t *list = json_array();
    d9d_status st = D9D_OK;

    for (size_t k = 0; k < r->n && st == D9D_OK; k++) {
        spikes found = {0};

        st = find(r->run[k], how, &found);
        if (st == D9D_OK && json_array_append_new(list, spikes_json(r->run[k], how, &found)) != 0)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its spikes", r->run[k]->path);
        spikes_release(&found);
    }
    if (st == D9D_OK)
        *out = list;
    else
        json_decref(list);
    return st;
}
