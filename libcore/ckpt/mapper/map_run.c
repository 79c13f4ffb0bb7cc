/* map_run.c - runs a plan: fills a sink on several threads.  See d9d/ckpt/mapper/mapper.h and
 * map_plan.h. */
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/mapper/map_plan.h"
#include "d9d/base/thread.h"

struct d9di_map_plan_job {
    const d9d_tensor_sink *sink;
    int jobs;
    d9d_map_reader *readers; /* [workers] */
    pthread_mutex_t lock;    /* guards the progress and the overflows */
    d9d_progress progress;
    d9di_cast_overflow overflow; /* accepted overflows */
    size_t overflow_first;       /* the first output with any */
};

d9d_status d9d_map_reader_scratch(d9d_map_reader *m, uint64_t n, void **out)
{
    D9D_TRY(d9di_map_read_buf_grow(&m->scratch, n));
    *out = m->scratch.data;
    return D9D_OK;
}

int d9d_map_reader_jobs(const d9d_map_reader *m)
{
    return m->run->jobs;
}

void d9d_map_reader_add_progress(d9d_map_reader *m, uint64_t n)
{
    pthread_mutex_lock(&m->run->lock);
    d9d_progress_add(&m->run->progress, n);
    pthread_mutex_unlock(&m->run->lock);
}

void d9di_map_plan_job_add_overflow(struct d9di_map_plan_job *r, size_t i,
                                    const d9di_cast_overflow *o)
{
    pthread_mutex_lock(&r->lock);
    if (r->overflow.n == 0 || i < r->overflow_first)
        r->overflow_first = i;
    r->overflow.n += o->n;
    if (o->largest > r->overflow.largest)
        r->overflow.largest = o->largest;
    pthread_mutex_unlock(&r->lock);
}

static void log_overflow(const struct d9di_map_plan_job *r, const d9d_map_plan *p,
                         const d9d_log *log)
{
    if (r->overflow.n > 0)
        d9d_log_warn(log,
                     "%llu values are beyond their new types and become %s; the largest is %g, the "
                     "first tensor with any is %s",
                     (unsigned long long)r->overflow.n,
                     p->overflow == D9D_CAST_OVERFLOW_SATURATE ? "the largest of those"
                                                               : "infinite",
                     r->overflow.largest, p->outputs[r->overflow_first].name);
}

static d9d_status fill_item(void *arg, int worker, size_t item)
{
    struct d9di_map_plan_job *r = arg;

    return r->sink->fill(r->sink->self, item, &r->readers[worker]);
}

d9d_status d9d_map_plan_run(const d9d_map_plan *p, const d9d_tensor_sink *sink, int jobs,
                            const d9d_log *log)
{
    struct d9di_map_plan_job r = {.sink = sink, .lock = PTHREAD_MUTEX_INITIALIZER};
    size_t n_items = 0;
    uint64_t bytes = 0;
    d9d_status st;

    D9D_TRY(sink->begin(sink->self, p->outputs, p->n_outputs, &n_items, &bytes));
    r.jobs = jobs > 0 ? jobs : d9d_thread_cpus();
    r.readers = calloc((size_t)r.jobs, sizeof(*r.readers));
    if (r.readers == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    for (int i = 0; i < r.jobs; i++)
        r.readers[i] = (d9d_map_reader){.p = p, .run = &r};
    d9d_progress_start(&r.progress, log, "map", "B", bytes);
    st = d9d_thread_run(r.jobs, n_items, fill_item, &r);
    if (st == D9D_OK)
        d9d_progress_end(&r.progress);
    log_overflow(&r, p, log);
    for (int i = 0; i < r.jobs; i++)
        d9di_map_reader_release(&r.readers[i]);
    free(r.readers);
    return st;
}
