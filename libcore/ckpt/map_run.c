/* map_run.c - filling a sink.  See d9d/ckpt/mapper.h and map_plan.h. */
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/map_plan.h"
#include "ckpt/recast.h"
#include "ckpt/strided.h"
#include "d9d/base/thread.h"

struct block {
    unsigned char *data;
    uint64_t size;
};

struct worker {
    struct block span, raw, cast; /* an output's bytes; a box as read; the same cast */
};

struct run {
    const d9d_map_plan *p;
    const d9d_sink *sink;
    struct worker *workers;
    pthread_mutex_t lock; /* of the progress */
    d9d_progress progress;
};

static d9d_status grow(struct block *b, uint64_t size)
{
    if (size <= b->size)
        return D9D_OK;
    free(b->data);
    b->size = 0;
    b->data = malloc(size);
    if (b->data == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory for %llu bytes", (unsigned long long)size);
    b->size = size;
    return D9D_OK;
}

static d9d_status read_box(const struct run *r, const d9di_map_box *b, uint64_t n, struct block *to)
{
    uint64_t width = d9d_dtype_size(r->p->src.at(r->p->src.self, b->source)->dtype);

    D9D_TRY(grow(to, n * width));
    return r->p->src.read(r->p->src.self, b->source, d9di_map_box_first(b) * width, to->data,
                          n * width);
}

/* Bring one box into the worker's span. */
static d9d_status gather(const struct run *r, struct worker *w, const d9di_map_unit *u,
                         const d9di_map_view *view, const d9di_map_box *b)
{
    uint64_t n = d9di_map_box_extent(b, view->ndim);
    uint64_t width = d9d_dtype_size(view->dtype), at = 0;
    const unsigned char *from;
    int64_t stride[D9D_MAX_DIMS], step = 1;

    D9D_TRY(read_box(r, b, n, &w->raw));
    from = w->raw.data;
    if (b->n_casts > 0) {
        D9D_TRY(grow(&w->cast, n * width));
        d9di_cast(from, r->p->src.at(r->p->src.self, b->source)->dtype, b->casts, b->n_casts,
                  w->cast.data, n);
        from = w->cast.data;
    }
    for (int d = view->ndim - 1; d >= 0; d--) {
        stride[d] = step;
        at += (uint64_t)(b->start[d] - u->start[d]) * (uint64_t)step;
        step *= u->size[d];
    }
    d9di_strided_copy(view->ndim, b->size, width, from, b->stride, w->span.data + at * width,
                      stride);
    return D9D_OK;
}

/* The one box that a unit is, in the order of its source: no rearranging. */
static bool is_straight(const d9di_map_view *view, const d9di_map_unit *u, d9di_map_box *out)
{
    d9di_map_box b;
    int n = 0;
    int64_t step = 1;

    for (size_t i = 0; i < view->n && n < 2; i++)
        if (d9di_map_box_cut(&view->boxes[i], view->ndim, u->start, u->size, &b)) {
            *out = b;
            n++;
        }
    if (n != 1)
        return false;
    for (int d = view->ndim - 1; d >= 0; d--) {
        if (out->size[d] > 1 && out->stride[d] != step)
            return false;
        step *= out->size[d];
    }
    return true;
}

static d9d_status run_straight(const struct run *r, struct worker *w, const d9di_map_unit *u,
                               const d9di_map_box *b)
{
    const d9d_source *src = &r->p->src;
    d9d_dtype from = src->at(src->self, b->source)->dtype;
    uint64_t n = u->bytes / d9d_dtype_size(r->p->outputs[u->output].dtype), offset;
    struct block *block = &w->raw;

    if (b->n_casts == 0 && src->locate != NULL && r->sink->copy != NULL) {
        int fd = src->locate(src->self, b->source, &offset);

        return r->sink->copy(r->sink->self, u->output, u->at, fd,
                             offset + d9di_map_box_first(b) * d9d_dtype_size(from), u->bytes);
    }
    D9D_TRY(read_box(r, b, n, &w->raw));
    if (b->n_casts > 0) {
        D9D_TRY(grow(&w->cast, u->bytes));
        d9di_cast(w->raw.data, from, b->casts, b->n_casts, w->cast.data, n);
        block = &w->cast;
    }
    return r->sink->write(r->sink->self, u->output, u->at, block->data, u->bytes);
}

static d9d_status run_gathered(const struct run *r, struct worker *w, const d9di_map_unit *u,
                               const d9di_map_view *view)
{
    d9di_map_box b;

    D9D_TRY(grow(&w->span, u->bytes));
    for (size_t i = 0; i < view->n; i++)
        if (d9di_map_box_cut(&view->boxes[i], view->ndim, u->start, u->size, &b))
            D9D_TRY(gather(r, w, u, view, &b));
    return r->sink->write(r->sink->self, u->output, u->at, w->span.data, u->bytes);
}

static d9d_status run_unit(void *arg, int worker, size_t item)
{
    struct run *r = arg;
    struct worker *w = &r->workers[worker];
    const d9di_map_unit *u = &r->p->units.data[item];
    const d9di_map_view *view = r->p->out_views[u->output];
    d9di_map_box b;

    if (is_straight(view, u, &b))
        D9D_TRY(run_straight(r, w, u, &b));
    else
        D9D_TRY(run_gathered(r, w, u, view));
    pthread_mutex_lock(&r->lock);
    d9d_progress_add(&r->progress, u->bytes);
    pthread_mutex_unlock(&r->lock);
    return D9D_OK;
}

d9d_status d9d_plan_run(const d9d_map_plan *p, const d9d_sink *sink, int jobs, const d9d_log *log)
{
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    struct run r = {.p = p, .sink = sink, .lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_status st;

    D9D_TRY(sink->begin(sink->self, p->outputs, p->n_outputs));
    r.workers = calloc((size_t)n, sizeof(*r.workers));
    if (r.workers == NULL)
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
    d9d_progress_start(&r.progress, log, "map", "B", p->bytes);
    st = d9d_thread_run(n, p->units.len, run_unit, &r);
    if (st == D9D_OK)
        d9d_progress_end(&r.progress);
    for (int i = 0; i < n; i++) {
        free(r.workers[i].span.data);
        free(r.workers[i].raw.data);
        free(r.workers[i].cast.data);
    }
    free(r.workers);
    return st;
}
