/* train_trace.c - steps that are traced.  See loop/train_run.h. */
#include "loop/train_run.h"

/* Is step k, counted from 1, one of those to trace? */
static bool trace_wants(const d9di_train *r, int64_t k)
{
    const d9d_profiling_section *p = r->c->trainer.profiling;

    return p != NULL && p->enabled &&
           (k - 1) % p->period_steps >= p->period_steps - p->active_steps;
}

static d9d_status trace_write(d9di_train *r)
{
    const d9d_profiling_section *p = r->c->trainer.profiling;
    char *dir = d9d_arena_printf(
        &r->arena, "%s%s%s/step-%08lld", p->traces_dir[0] == '/' ? "" : r->dir.path,
        p->traces_dir[0] == '/' ? "" : "/", p->traces_dir, (long long)r->state.step);
    char *path = dir != NULL ? d9d_arena_printf(&r->arena, "%s/rank-%d.json", dir, r->rank) : NULL;
    d9d_trace *t = r->trace;
    d9d_buf top = {0};
    d9d_status st;

    r->trace = NULL;
    st = path == NULL ? D9D_FAIL(D9D_ENOMEM, "trace: out of memory") : d9d_fs_mkdirs(dir);
    if (st == D9D_OK)
        st = d9d_trace_close(t, path, r->rank, &top);
    else
        d9d_trace_drop(t);
    if (st == D9D_OK)
        d9d_log_info(r->log, "%s: %s", path, top.data);
    d9d_buf_release(&top);
    return st;
}

d9d_status d9di_train_traced(d9di_train *r)
{
    if (r->trace == NULL && trace_wants(r, r->state.step + 1))
        D9D_TRY(d9d_trace_open(r->engine.dev, &r->trace));
    d9d_trace_begin(r->engine.dev, "step %lld", (long long)(r->state.step + 1));
    D9D_TRY(d9di_train_queue(r));
    d9d_trace_end(r->engine.dev);
    if (r->trace != NULL && (r->state.step == r->total_steps || !trace_wants(r, r->state.step + 1)))
        return trace_write(r);
    return D9D_OK;
}
