/* follow.c - a run that goes on, line by line. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"
#include "report/rows.h"

enum { POLL_NS = 250000000 };

static d9d_status put_heading(d9d_keys keys, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%8s", "step"));
    for (size_t k = 0; k < keys.n; k++)
        D9D_TRY(d9d_buf_printf(out, "  %12s", keys.key[k]));
    return d9d_buf_append(out, "\n", 1);
}

/* What of record i is new. */
static uint32_t news_of(const d9d_run *r, size_t i)
{
    return i < r->known ? r->sources[i] & ~(uint32_t)D9D_RUN_TRAINING : r->sources[i];
}

static d9d_status put_row(const d9d_run *r, size_t i, d9d_keys keys, uint32_t news, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%8" PRId64, r->step[i]));
    for (size_t k = 0; k < keys.n; k++) {
        const double v = (d9d_run_sources(r, keys.key[k]) & news) != 0
                             ? d9di_rows_value(r, keys.key[k], i)
                             : (double)NAN;

        if (isnan(v))
            D9D_TRY(d9d_buf_printf(out, "  %12s", "-"));
        else
            D9D_TRY(d9d_buf_printf(out, "  %12.*g", v == floor(v) ? 15 : 6, v));
    }
    return d9d_buf_append(out, "\n", 1);
}

static d9d_status put_rows(const d9d_run *r, d9d_keys keys, d9d_buf *out)
{
    for (size_t i = r->fresh; i < r->n; i++) {
        const uint32_t news = news_of(r, i);

        if ((news & d9di_rows_sources(r, keys)) != 0)
            D9D_TRY(put_row(r, i, keys, news, out));
    }
    return D9D_OK;
}

static d9d_status put_json(const d9d_run *r, d9d_buf *out)
{
    for (size_t i = r->fresh; i < r->n; i++) {
        D9D_TRY(d9d_buf_printf(out, "{\"step\": %" PRId64, r->step[i]));
        for (size_t k = 0; k < r->n_columns; k++) {
            const char *name = r->columns[k].name;

            if (i < r->known && (r->columns[k].sources & news_of(r, i)) == 0)
                continue;
            D9D_TRY(d9d_buf_printf(out, ", "));
            D9D_TRY(d9d_json_put_str(out, name, strlen(name)));
            D9D_TRY(d9d_buf_printf(out, ": "));
            D9D_TRY(d9di_rows_put(out, r->columns[k].values[i]));
        }
        D9D_TRY(d9d_buf_printf(out, "}\n"));
    }
    return D9D_OK;
}

/* The fresh records, under a heading where there is none with their columns. */
static d9d_status put_table(const d9d_follow *f, d9d_run *r, size_t *columns, d9d_buf *out)
{
    const d9d_runs one = {&r, 1};
    d9d_arena a = {0};
    d9d_keys keys;
    d9d_status st = d9di_rows_keys(&one, f->keys, d9di_rows_usual, true, &a, &keys);

    if (st == D9D_OK && keys.n > *columns)
        st = put_heading(keys, out);
    if (st == D9D_OK) {
        *columns = keys.n;
        st = put_rows(r, keys, out);
    }
    d9d_arena_release(&a);
    return st;
}

/* The fresh records, handed out; *columns are those of the newest heading. */
static d9d_status put_lines(const d9d_follow *f, d9d_run *r, size_t *columns)
{
    d9d_buf lines = {0};
    d9d_status st = f->json ? put_json(r, &lines) : put_table(f, r, columns, &lines);

    if (st == D9D_OK && lines.len > 0)
        st = f->put(f->arg, &lines);
    d9d_buf_release(&lines);
    return st;
}

static d9d_status follow(const d9d_follow *f, d9d_run *r, const sigset_t *stop, const d9d_log *log)
{
    const struct timespec pause = {0, POLL_NS};
    int64_t last = d9d_clock_ns(), restarts = r->restarts;
    size_t columns = 0;

    for (;;) {
        if (r->restarts > restarts)
            d9d_log_info(log, "%s: restarted", r->name);
        restarts = r->restarts;
        if (r->fresh < r->n)
            last = d9d_clock_ns();
        D9D_TRY(put_lines(f, r, &columns));
        if (r->end != NULL) {
            d9d_log_info(log, "%s: the run ended: %s", r->name, r->end);
            return D9D_OK;
        }
        if (f->idle_s == 0 || sigtimedwait(stop, NULL, &pause) > 0 ||
            (f->idle_s >= 0 && (d9d_clock_ns() - last) / 1000000000 >= f->idle_s))
            return D9D_OK;
        D9D_TRY(d9d_run_poll(r));
    }
}

d9d_status d9d_report_follow(const char *path, const d9d_follow *f, const d9d_log *log)
{
    d9d_run *r;
    sigset_t stop;
    d9d_status st;

    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    D9D_TRY(d9d_run_open(path, log, &r));
    r->fresh = r->known = 0;
    st = follow(f, r, &stop, log);
    d9d_run_close(r);
    return st;
}
