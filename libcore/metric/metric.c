/* metric.c - the state of a metric, and its reduction over ranks.  See d9d/metric/metric.h. */
#include "d9d/metric/metric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/device/async_host_reduce.h"

struct d9d_metric {
    const d9d_metric_kind *kind;
    const void *config;
    d9d_metric_form form;
    uint64_t bytes;
    void *local;  /* state of this rank's rows */
    void *global; /* reduced state of all ranks */
    bool synced;  /* `global` is the current state */
    bool syncing; /* a reduction is in flight */
    d9d_async_host_reduce reduce;
};

static void state_clear(const d9d_metric_form *f, void *state)
{
    int64_t *counts = state;
    double *sums = state;

    for (int64_t i = 0; i < f->state_size; i++)
        if (f->dtype == D9D_I64)
            counts[i] = f->reduce_op == D9D_COMM_MAX ? INT64_MIN : 0;
        else
            sums[i] = f->reduce_op == D9D_COMM_MAX ? -INFINITY : 0;
}

enum { MAX_COUNT = INT32_MAX }; /* elements of a state, or values */

static d9d_status check_form(const d9d_metric *m, const char *where)
{
    const d9d_metric_form *f = &m->form;

    if ((f->dtype != D9D_F64 && f->dtype != D9D_I64) || f->state_size < 1 ||
        f->state_size > MAX_COUNT || f->width < 1 || f->width > MAX_COUNT ||
        (f->reduce_op != D9D_COMM_SUM && f->reduce_op != D9D_COMM_MAX))
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s: form() of %s gave a state of %lld elements of type %d, reduced by %d, and %zu "
            "values; 1 to %d of both are possible, float64 or int64, by sum or maximum",
            where, m->kind->table->name, (long long)f->state_size, (int)f->dtype, (int)f->reduce_op,
            f->width, MAX_COUNT);
    return D9D_OK;
}

d9d_status d9d_metric_create(const d9d_union *section, const char *where, d9d_metric **out)
{
    d9d_metric *m = calloc(1, sizeof(*m));
    d9d_status st = D9D_OK;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a metric", where);
    m->kind = section->choice->row;
    m->config = section->value;
    D9D_TRY_OR(st, D9D_PLUGIN_CALL(m->kind->table->name, m->kind, form, m->config, where, &m->form),
               out);
    D9D_TRY_OR(st, check_form(m, where), out);
    m->bytes = (uint64_t)m->form.state_size * d9d_dtype_size(m->form.dtype);
    m->local = calloc(2, m->bytes);
    if (m->local == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for a state of %lld elements", where,
                      (long long)m->form.state_size);
        goto out;
    }
    m->global = (char *)m->local + m->bytes;
    d9d_metric_reset(m);
    *out = m;
    m = NULL;
out:
    d9d_metric_free(m);
    return st;
}

void d9d_metric_free(d9d_metric *m)
{
    if (m == NULL)
        return;
    d9d_async_host_reduce_release(&m->reduce);
    free(m->local);
    free(m);
}

d9d_status d9d_metric_update(d9d_metric *m, const d9d_predictions *b)
{
    D9D_TRY(D9D_PLUGIN_CALL(m->kind->table->name, m->kind, update, m->config, b, m->local));
    m->synced = false;
    return D9D_OK;
}

static void counts_merge(const d9d_metric_form *f, int64_t *n, const int64_t *more)
{
    for (int64_t i = 0; i < f->state_size; i++)
        if (f->reduce_op != D9D_COMM_MAX)
            n[i] += more[i];
        else if (more[i] > n[i])
            n[i] = more[i];
}

static void sums_merge(const d9d_metric_form *f, double *x, const double *more)
{
    for (int64_t i = 0; i < f->state_size; i++)
        if (f->reduce_op != D9D_COMM_MAX)
            x[i] += more[i];
        else if (!(more[i] <= x[i])) /* a NaN is kept */
            x[i] = isnan(x[i]) ? x[i] : more[i];
}

void d9d_metric_merge(d9d_metric *m, const d9d_metric *other)
{
    if (m->form.dtype == D9D_I64)
        counts_merge(&m->form, m->local, other->local);
    else
        sums_merge(&m->form, m->local, other->local);
    m->synced = false;
}

void d9d_metric_reset(d9d_metric *m)
{
    state_clear(&m->form, m->local);
    m->synced = false;
}

/* --- reduction over ranks ------------------------------------------------------------ */

d9d_status d9d_metric_sync_begin(d9d_metric *m, d9d_device *dev, d9d_comm *world)
{
    if (world == NULL) {
        memcpy(m->global, m->local, m->bytes);
        return D9D_OK;
    }
    D9D_TRY(d9d_async_host_reduce_start(&m->reduce, dev, world, m->kind->table->name, m->form.dtype,
                                        m->local, m->form.state_size, m->form.reduce_op));
    m->syncing = true;
    return D9D_OK;
}

d9d_status d9d_metric_sync_end(d9d_metric *m)
{
    if (m->syncing)
        D9D_TRY(d9d_async_host_reduce_wait(&m->reduce, m->global));
    m->syncing = false;
    m->synced = true;
    return D9D_OK;
}

d9d_status d9d_metric_sync(d9d_metric *m, d9d_device *dev, d9d_comm *world)
{
    D9D_TRY(d9d_metric_sync_begin(m, dev, world));
    return d9d_metric_sync_end(m);
}

/* --- values ---------------------------------------------------------------------------- */

static const void *current_state(const d9d_metric *m)
{
    return m->synced ? m->global : m->local;
}

void d9d_metric_compute(const d9d_metric *m, double *values)
{
    m->kind->compute(m->config, current_state(m), values);
}

size_t d9d_metric_width(const d9d_metric *m)
{
    return m->form.width;
}

const char *d9d_metric_name(const d9d_metric *m)
{
    return m->kind->table->name;
}

bool d9d_metric_is_weighted(const d9d_metric *m)
{
    return m->kind->weighted;
}

d9d_metric_input d9d_metric_input_of(const d9d_metric *m)
{
    return m->kind->input != NULL ? m->kind->input(m->config) : D9D_METRIC_SCORES;
}

char *d9d_metric_label(const d9d_metric *m, size_t i, char *out, size_t n)
{
    char own[64];

    if (m->kind->label != NULL) {
        m->kind->label(m->config, i, own, sizeof(own));
        (void)snprintf(out, n, "%s%s", own[0] != '\0' ? "/" : "", own);
    } else if (m->form.width > 1) {
        (void)snprintf(out, n, "/%zu", i);
    } else if (n > 0) {
        out[0] = '\0';
    }
    return out;
}

const d9d_metric_form *d9d_metric_form_of(const d9d_metric *m)
{
    return &m->form;
}

void d9d_metric_save_state(const d9d_metric *m, void *state)
{
    memcpy(state, current_state(m), m->bytes);
}

void *d9d_metric_local_state(const d9d_metric *m)
{
    return m->local;
}

void d9d_metric_load_state(d9d_metric *m, const void *state)
{
    memcpy(m->local, state, m->bytes);
    m->synced = false;
}
