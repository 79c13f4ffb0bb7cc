/* train_trace.c - see train/train_trace.h. */
#include "train/train_trace.h"

/* True if step k is to be traced. */
static bool is_traced_step(const d9d_job_profiling_section *c, int64_t k)
{
    return c != NULL && c->enabled &&
           (k - 1) % c->period_steps >= c->period_steps - c->active_steps;
}

/* True if step k ends a trace.  A trace ends with its period even if the next period begins traced,
 * since a trace is held in memory. */
static bool is_trace_end(const d9di_train_run *run, int64_t k)
{
    return k == run->total_steps || k % run->c->trainer.profiling->period_steps == 0;
}

/* Starts writing after the previous trace; a slow file system delays it for a limited time. */
static d9d_status start_trace_write(d9di_train_profiler *p, const d9di_train_run *run,
                                    const char *dir, d9d_buf *text, d9d_buf *top)
{
    if (dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trace: out of memory");
    if (!d9di_trace_file_end(&p->traced))
        return D9D_FAIL(D9D_EIO, "%s: the file system gives no answer for the trace before", dir);
    return d9di_trace_file_begin(dir, run->rank, text, top, run->log, &p->traced);
}

static void trace_write(d9di_train_profiler *p, const d9di_train_run *run, int64_t k)
{
    const char *traces = run->c->trainer.profiling->traces_dir;
    const bool apart = traces[0] == '/';
    d9d_arena a = {0};
    const char *dir = d9d_arena_printf(&a, "%s%s%s/step-%08lld", apart ? "" : run->dir.path,
                                       apart ? "" : "/", traces, (long long)k);
    d9d_buf text = {0}, top = {0};
    d9d_status st = d9d_trace_text(p->trace, run->rank, &text, &top);

    p->trace = NULL;
    if (st == D9D_OK)
        st = start_trace_write(p, run, dir, &text, &top);
    if (st != D9D_OK)
        d9d_log_warn(run->log, "%s; the run goes on without this trace", d9d_err_message());
    d9d_buf_release(&text);
    d9d_buf_release(&top);
    d9d_arena_release(&a);
}

d9d_status d9di_train_profiler_begin(d9di_train_profiler *p, const d9di_train_run *run,
                                     d9d_device *dev, int64_t k)
{
    if (p->trace == NULL && is_traced_step(run->c->trainer.profiling, k))
        D9D_TRY(d9d_trace_open(dev, &p->trace));
    d9d_trace_begin(dev, "step %lld", (long long)k);
    return D9D_OK;
}

void d9di_train_profiler_end(d9di_train_profiler *p, const d9di_train_run *run, d9d_device *dev,
                             int64_t k)
{
    d9d_trace_end(dev);
    if (p->trace != NULL && is_trace_end(run, k))
        trace_write(p, run, k);
}

void d9di_train_profiler_close(d9di_train_profiler *p)
{
    d9d_trace_discard(p->trace);
    d9di_trace_file_detach(p->traced);
}
