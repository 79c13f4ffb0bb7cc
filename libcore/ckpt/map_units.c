/* map_units.c - cutting outputs into spans that are made at once.  See map_plan.h. */
#include <stdlib.h>

#include "ckpt/map_plan.h"
#include "d9d/base/thread.h"

bool d9di_map_box_cut(const d9di_map_box *b, int ndim, const int64_t *start, const int64_t *size,
                      d9di_map_box *out)
{
    *out = *b;
    for (int d = 0; d < ndim; d++) {
        int64_t lo = b->start[d] > start[d] ? b->start[d] : start[d];
        int64_t end = b->start[d] + b->size[d], hi = start[d] + size[d];

        hi = end < hi ? end : hi;
        if (lo >= hi)
            return false;
        out->base += (lo - b->start[d]) * b->stride[d];
        out->start[d] = lo;
        out->size[d] = hi - lo;
    }
    return true;
}

uint64_t d9di_map_box_first(const d9di_map_box *b)
{
    return (uint64_t)b->base;
}

uint64_t d9di_map_box_extent(const d9di_map_box *b, int ndim)
{
    uint64_t last = 0;

    for (int d = 0; d < ndim; d++)
        last += (uint64_t)(b->size[d] - 1) * (uint64_t)b->stride[d];
    return last + 1;
}

uint64_t d9di_map_box_count(const d9di_map_box *b, int ndim)
{
    uint64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= (uint64_t)b->size[d];
    return n;
}

/* --- cutting ------------------------------------------------------------------------ */

struct cutter {
    d9d_map_plan *p;
    const d9di_map_view *view;
    uint32_t output;
    size_t width; /* bytes of an element */
};

/* Cutting along d must make what every box reads smaller in the same measure: d is the
 * outermost dimension of its source. */
static bool can_cut(const struct cutter *c, const d9di_map_unit *u, int d)
{
    d9di_map_box b;

    for (size_t i = 0; i < c->view->n; i++) {
        if (!d9di_map_box_cut(&c->view->boxes[i], c->view->ndim, u->start, u->size, &b) ||
            b.size[d] == 1)
            continue;
        for (int k = 0; k < c->view->ndim; k++)
            if (b.size[k] > 1 && b.stride[k] > b.stride[d])
                return false;
    }
    return true;
}

/* Bytes that a worker holds for the unit at once: the span, and of one box what is read and
 * the same cast. */
static void note_memory(struct cutter *c, d9di_map_unit *u)
{
    uint64_t most = 0;
    bool first = true;

    for (size_t i = 0; i < c->view->n; i++) {
        d9di_map_box b;
        uint64_t need;

        if (!d9di_map_box_cut(&c->view->boxes[i], c->view->ndim, u->start, u->size, &b))
            continue;
        need = d9di_map_box_extent(&b, c->view->ndim);
        need *= d9d_dtype_size(c->p->src.at(c->p->src.self, b.source)->dtype) +
                (b.n_casts > 0 ? c->width : 0);
        most = need > most ? need : most;
        if (first || b.source < u->source ||
            (b.source == u->source && d9di_map_box_first(&b) < u->element)) {
            u->source = b.source;
            u->element = d9di_map_box_first(&b);
        }
        first = false;
    }
    most += u->bytes;
    c->p->peak = most > c->p->peak ? most : c->p->peak;
}

static d9d_status cut(struct cutter *c, const d9di_map_unit *u)
{
    uint64_t row;
    int64_t each;
    int d = 0;

    while (d < c->view->ndim && u->size[d] == 1)
        d++;
    if (u->bytes <= D9DI_UNIT_BYTES || d == c->view->ndim || !can_cut(c, u, d)) {
        d9di_map_unit leaf = *u;

        note_memory(c, &leaf);
        return D9D_VEC_PUSH(&c->p->units, leaf);
    }
    row = u->bytes / (uint64_t)u->size[d];
    each = row >= D9DI_UNIT_BYTES ? 1 : (int64_t)(D9DI_UNIT_BYTES / row);
    for (int64_t at = 0; at < u->size[d]; at += each) {
        d9di_map_unit part = *u;

        part.size[d] = each < u->size[d] - at ? each : u->size[d] - at;
        part.start[d] = u->start[d] + at;
        part.at = u->at + (uint64_t)at * row;
        part.bytes = (uint64_t)part.size[d] * row;
        D9D_TRY(cut(c, &part));
    }
    return D9D_OK;
}

static int by_place(const void *a, const void *b)
{
    const d9di_map_unit *x = a, *y = b;

    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->element != y->element)
        return x->element < y->element ? -1 : 1;
    if (x->output != y->output)
        return x->output < y->output ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

d9d_status d9di_map_units(d9d_map_plan *p)
{
    for (size_t i = 0; i < p->n_outputs; i++) {
        struct cutter c = {p, p->out_views[i], (uint32_t)i, d9d_dtype_size(p->outputs[i].dtype)};
        d9di_map_unit whole = {.output = (uint32_t)i, .bytes = p->outputs[i].bytes};

        if (whole.bytes == 0)
            continue;
        memcpy(whole.size, p->outputs[i].shape, sizeof(whole.size));
        D9D_TRY(cut(&c, &whole));
    }
    if (p->units.len > 0)
        qsort(p->units.data, p->units.len, sizeof(p->units.data[0]), by_place);
    return D9D_OK;
}

uint64_t d9d_plan_peak_bytes(const d9d_map_plan *p, int jobs)
{
    return p->peak * (uint64_t)(jobs > 0 ? jobs : d9d_thread_cpus());
}
