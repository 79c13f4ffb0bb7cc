/* train_trace.c - steps that are traced.  See train/train_run.h. */
#include "train/train_run.h"

/* Is step k, counted from 1, one of those to trace? */
static bool trace_wants(const d9di_train *r, int64_t k)
{
    const d9d_profiling_section *p = r->c->trainer.profiling;

    return p != NULL && p->enabled &&
           (k - 1) % p->period_steps >= p->period_steps - p->active_steps;
}

/* Is the step that was queued last the last one of a trace?  One ends with its period, also where
 * the next one is traced from its first step on: what a trace holds is in memory. */
static bool trace_ends(const d9di_train *r)
{
    return r->state.step == r->total_steps ||
           r->state.step % r->c->trainer.profiling->period_steps == 0;
}

static d9d_status trace_put(d9di_train *r, d9d_trace *t, const char *dir, const char *path,
                            d9d_buf *top)
{
    d9d_status st =
        path == NULL ? D9D_FAIL(D9D_ENOMEM, "trace: out of memory") : d9d_fs_mkdirs(dir);

    if (st == D9D_OK)
        return d9d_trace_close(t, path, r->rank, top);
    d9d_trace_drop(t);
    return st;
}

/* A trace that cannot be written is no reason to end the run. */
static void trace_write(d9di_train *r)
{
    const d9d_profiling_section *p = r->c->trainer.profiling;
    char *dir = d9d_arena_printf(
        &r->arena, "%s%s%s/step-%08lld", p->traces_dir[0] == '/' ? "" : r->dir.path,
        p->traces_dir[0] == '/' ? "" : "/", p->traces_dir, (long long)r->state.step);
    char *path = dir != NULL ? d9d_arena_printf(&r->arena, "%s/rank-%d.json", dir, r->rank) : NULL;
    d9d_buf top = {0};

    if (trace_put(r, r->trace, dir, path, &top) == D9D_OK)
        d9d_log_info(r->log, "%s: %s", path, top.data);
    else
        d9d_log_warn(r->log, "%s; the run goes on without this trace", d9d_err_message());
    r->trace = NULL;
    d9d_buf_release(&top);
}

d9d_status d9di_train_traced(d9di_train *r)
{
    if (r->trace == NULL && trace_wants(r, r->state.step + 1))
        D9D_TRY(d9d_trace_open(r->engine.dev, &r->trace));
    d9d_trace_begin(r->engine.dev, "step %lld", (long long)(r->state.step + 1));
    D9D_TRY(d9di_train_queue(r));
    d9d_trace_end(r->engine.dev);
    if (r->trace != NULL && trace_ends(r))
        trace_write(r);
    return D9D_OK;
}
