/* follow.c - prints a running job's records as they come. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"
#include "report/rows.h"

enum { POLL_NS = 250000000 };

static d9d_status append_heading(d9d_report_columns keys, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%8s", "step"));
    for (size_t k = 0; k < keys.n; k++)
        D9D_TRY(d9d_buf_printf(out, "  %12s", keys.key[k]));
    return d9d_buf_append(out, "\n", 1);
}

/* The sources of record i that are new. */
static uint32_t fresh_sources(const d9d_run_reader *r, size_t i)
{
    return i < r->first_new ? r->sources[i] & ~(uint32_t)D9D_RUN_READER_TRAINING : r->sources[i];
}

/* Whether record i has a value of the column that was not there before. */
static bool is_fresh(const d9d_run_reader *r, const char *key, size_t i)
{
    const d9d_run_reader_column *c = d9d_run_reader_find_column(r, key);

    return d9d_run_reader_is_logged(c, i) &&
           (i >= r->first_new || (c->sources & fresh_sources(r, i)) != 0);
}

static bool any_is_fresh(const d9d_run_reader *r, d9d_report_columns keys, size_t i)
{
    for (size_t k = 0; k < keys.n; k++)
        if (is_fresh(r, keys.key[k], i))
            return true;
    return false;
}

static d9d_status append_row(const d9d_run_reader *r, size_t i, d9d_report_columns keys,
                             d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%8" PRId64, r->step[i]));
    for (size_t k = 0; k < keys.n; k++) {
        const double v =
            is_fresh(r, keys.key[k], i) ? d9di_report_rows_value(r, keys.key[k], i) : (double)NAN;

        if (isnan(v))
            D9D_TRY(d9d_buf_printf(out, "  %12s", "-"));
        else
            D9D_TRY(d9d_buf_printf(out, "  %12.*g", v == floor(v) ? 15 : 6, v));
    }
    return d9d_buf_append(out, "\n", 1);
}

static d9d_status append_rows(const d9d_run_reader *r, d9d_report_columns keys, d9d_buf *out)
{
    for (size_t i = r->first_changed; i < r->n; i++)
        if (any_is_fresh(r, keys, i))
            D9D_TRY(append_row(r, i, keys, out));
    return D9D_OK;
}

static d9d_status append_json(const d9d_run_reader *r, d9d_buf *out)
{
    for (size_t i = r->first_changed; i < r->n; i++) {
        D9D_TRY(d9d_buf_printf(out, "{\"step\": %" PRId64, r->step[i]));
        for (size_t k = 0; k < r->n_columns; k++) {
            const char *name = r->columns[k].name;

            if (i < r->first_new && (r->columns[k].sources & fresh_sources(r, i)) == 0)
                continue;
            D9D_TRY(d9d_buf_printf(out, ", "));
            D9D_TRY(d9d_json_put_str(out, name, strlen(name)));
            D9D_TRY(d9d_buf_printf(out, ": "));
            D9D_TRY(d9di_report_rows_append_value(out, r->columns[k].values[i]));
        }
        D9D_TRY(d9d_buf_printf(out, "}\n"));
    }
    return D9D_OK;
}

/* Prints the fresh records, with a new heading if there are new columns. */
static d9d_status append_table(const d9d_report_follow_opts *f, d9d_run_reader *r, size_t *columns,
                               d9d_buf *out)
{
    const d9d_run_reader_list one = {&r, 1};
    d9d_arena a = {0};
    d9d_report_columns keys;
    d9d_status st =
        d9di_report_rows_columns(&one, f->keys, d9di_report_rows_default_columns, true, &a, &keys);

    if (st == D9D_OK && keys.n > *columns)
        st = append_heading(keys, out);
    if (st == D9D_OK) {
        *columns = keys.n;
        st = append_rows(r, keys, out);
    }
    d9d_arena_release(&a);
    return st;
}

/* Passes the fresh records to f->put(); *columns is the number of columns in the last heading. */
static d9d_status write_fresh_lines(const d9d_report_follow_opts *f, d9d_run_reader *r,
                                    size_t *columns)
{
    d9d_buf lines = {0};
    d9d_status st = f->json ? append_json(r, &lines) : append_table(f, r, columns, &lines);

    if (st == D9D_OK && lines.len > 0)
        st = f->put(f->arg, &lines);
    d9d_buf_release(&lines);
    return st;
}

static d9d_status follow_run(const d9d_report_follow_opts *f, d9d_run_reader *r,
                             const sigset_t *stop, const d9d_log *log)
{
    const struct timespec pause = {0, POLL_NS};
    int64_t last = d9d_clock_ns(), restarts = r->restarts;
    size_t columns = 0;

    for (;;) {
        if (r->restarts > restarts)
            d9d_log_info(log, "%s: restarted", r->name);
        restarts = r->restarts;
        if (r->first_changed < r->n)
            last = d9d_clock_ns();
        D9D_TRY(write_fresh_lines(f, r, &columns));
        if (r->end != NULL) {
            d9d_log_info(log, "%s: the run ended: %s", r->name, r->end);
            return D9D_OK;
        }
        if (f->idle_s == 0 || sigtimedwait(stop, NULL, &pause) > 0 ||
            (f->idle_s >= 0 && (d9d_clock_ns() - last) / 1000000000 >= f->idle_s))
            return D9D_OK;
        D9D_TRY(d9d_run_reader_poll(r));
    }
}

d9d_status d9d_report_follow(const char *path, const d9d_report_follow_opts *f, const d9d_log *log)
{
    d9d_run_reader *r;
    sigset_t stop;
    d9d_status st;

    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    D9D_TRY(d9d_run_reader_open(path, log, &r));
    r->first_changed = r->first_new = 0;
    d9d_run_reader_list_warn_left_out(&(d9d_run_reader_list){&r, 1}, log);
    st = follow_run(f, r, &stop, log);
    d9d_run_reader_close(r);
    return st;
}
