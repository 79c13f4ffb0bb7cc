/* train_trace.c - profiled steps.  See train/train_parts.h. */
#include "train/train_parts.h"

/* True if step k, counted from 1, is to be traced. */
static bool is_traced_step(const d9di_train *r, int64_t k)
{
    const d9d_job_profiling_section *p = r->run.c->trainer.profiling;

    return p != NULL && p->enabled &&
           (k - 1) % p->period_steps >= p->period_steps - p->active_steps;
}

/* True if the last enqueued step ends a trace.  A trace ends with its period even if the next
 * period begins traced, since a trace is held in memory. */
static bool is_trace_end(const d9di_train *r)
{
    return r->state.step == r->run.total_steps ||
           r->state.step % r->run.c->trainer.profiling->period_steps == 0;
}

/* Starts writing after the previous trace; a slow file system delays it for a limited time. */
static d9d_status start_trace_write(d9di_train *r, const char *dir, d9d_buf *text, d9d_buf *top)
{
    if (dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "trace: out of memory");
    if (!d9di_trace_file_end(&r->traced))
        return D9D_FAIL(D9D_EIO, "%s: the file system gives no answer for the trace before", dir);
    return d9di_trace_file_begin(dir, r->run.rank, text, top, r->run.log, &r->traced);
}

/* A trace that cannot be written does not end the run. */
static void trace_write(d9di_train *r)
{
    const d9d_job_profiling_section *p = r->run.c->trainer.profiling;
    const bool apart = p->traces_dir[0] == '/';
    d9d_arena a = {0};
    const char *dir = d9d_arena_printf(&a, "%s%s%s/step-%08lld", apart ? "" : r->run.dir.path,
                                       apart ? "" : "/", p->traces_dir, (long long)r->state.step);
    d9d_buf text = {0}, top = {0};
    d9d_status st = d9d_trace_text(r->trace, r->run.rank, &text, &top);

    r->trace = NULL;
    if (st == D9D_OK)
        st = start_trace_write(r, dir, &text, &top);
    if (st != D9D_OK)
        d9d_log_warn(r->run.log, "%s; the run goes on without this trace", d9d_err_message());
    d9d_buf_release(&text);
    d9d_buf_release(&top);
    d9d_arena_release(&a);
}

d9d_status d9di_train_enqueue_traced_step(d9di_train *r)
{
    if (r->trace == NULL && is_traced_step(r, r->state.step + 1))
        D9D_TRY(d9d_trace_open(r->engine.dev, &r->trace));
    d9d_trace_begin(r->engine.dev, "step %lld", (long long)(r->state.step + 1));
    D9D_TRY(d9di_train_enqueue_step(r));
    d9d_trace_end(r->engine.dev);
    if (r->trace != NULL && is_trace_end(r))
        trace_write(r);
    return D9D_OK;
}
