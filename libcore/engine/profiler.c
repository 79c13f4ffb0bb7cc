/* profiler.c - see engine/profiler.h. */
#include "engine/profiler.h"

/* True if step k is to be traced. */
static bool is_traced_step(const d9d_job_profiling_section *c, int64_t k)
{
    return c != NULL && c->enabled &&
           (k - 1) % c->period_steps >= c->period_steps - c->active_steps;
}

/* Starts writing after the previous trace; a slow file system delays it for a limited time. */
static d9d_status start_trace_write(d9di_profiler *p, const char *dir, d9d_buf *text, d9d_buf *top)
{
    if (dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trace: out of memory");
    if (!d9di_trace_file_end(&p->traced))
        return D9D_FAIL(D9D_EIO, "%s: the file system gives no answer for the trace before", dir);
    return d9di_trace_file_begin(dir, p->rank, text, top, p->log, &p->traced);
}

static void trace_write(d9di_profiler *p, int64_t k)
{
    const char *traces = p->c->traces_dir;
    const bool apart = traces[0] == '/';
    d9d_arena a = {0};
    const char *dir = d9d_arena_printf(&a, "%s%s%s/step-%08lld", apart ? "" : p->dir,
                                       apart ? "" : "/", traces, (long long)k);
    d9d_buf text = {0}, top = {0};
    d9d_status st = d9d_trace_text(p->trace, p->rank, &text, &top);

    p->trace = NULL;
    if (st == D9D_OK)
        st = start_trace_write(p, dir, &text, &top);
    if (st != D9D_OK)
        d9d_log_warn(p->log, "%s; the run goes on without this trace", d9d_err_message());
    d9d_buf_release(&text);
    d9d_buf_release(&top);
    d9d_arena_release(&a);
}

d9d_status d9di_profiler_begin(d9di_profiler *p, d9d_device *dev, int64_t k)
{
    if (p->trace == NULL && is_traced_step(p->c, k))
        D9D_TRY(d9d_trace_open(dev, &p->trace));
    d9d_trace_begin(dev, "step %lld", (long long)k);
    return D9D_OK;
}

/* A trace ends with its period even if the next period begins traced, since a trace is held in
 * memory. */
void d9di_profiler_end(d9di_profiler *p, d9d_device *dev, int64_t k, bool last)
{
    d9d_trace_end(dev);
    if (p->trace != NULL && (last || k % p->c->period_steps == 0))
        trace_write(p, k);
}

void d9di_profiler_close(d9di_profiler *p)
{
    d9d_trace_discard(p->trace);
    d9di_trace_file_detach(p->traced);
}
