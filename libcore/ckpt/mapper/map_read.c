/* map_read.c - reads any span of an output from the boxes that tile it.  See map_plan.h.
 *
 * A span of an output is a few boxes of its index space, each contiguous in the output.  Each of
 * them intersects a few boxes of the view.  Each intersection is read from one source tensor:
 * directly to its destination if it is one run on both sides, otherwise in bands.  A band is read
 * as it lies in the source and copied with strides from there. */
#include <stdlib.h>

#include "ckpt/mapper/map_plan.h"
#include "ckpt/mapper/strided.h"

enum {
    BAND = 1 << 20, /* bytes of a source held at a time: they stay in the cache */
    MAX_GAP = 2048  /* bytes between two runs that are cheaper to read than a second call */
};

/* --- memory ----------------------------------------------------------------------------- */

d9d_status d9di_map_read_buf_grow(d9di_map_read_buf *r, uint64_t size)
{
    const uint64_t page = 4096, round = (size + page - 1) & ~(page - 1);

    if (size <= r->size)
        return D9D_OK;
    free(r->data);
    *r = (d9di_map_read_buf){0};
    if (round < size || posix_memalign(&r->data, page, round) != 0) {
        r->data = NULL;
        return D9D_FAIL(D9D_ENOMEM, "plan: out of memory: %llu bytes requested",
                        (unsigned long long)size);
    }
    r->size = round;
    return D9D_OK;
}

void d9di_map_reader_release(d9d_map_reader *m)
{
    free(m->scratch.data);
    free(m->raw.data);
    free(m->band.data);
}

/* --- boxes ------------------------------------------------------------------------------- */

/* Intersects box `b` with [start, start + size); false if empty. */
static bool box_intersect(const d9di_mapper_box *b, int ndim, const int64_t *start,
                          const int64_t *size, d9di_mapper_box *out)
{
    *out = *b;
    for (int d = 0; d < ndim; d++)
        if (!d9di_mapper_box_clip(out, d, start[d], start[d] + size[d]))
            return false;
    return true;
}

/* Source elements from the first to the last that a box reads. */
static uint64_t box_extent(const d9di_mapper_box *b, int ndim)
{
    uint64_t last = 0;

    for (int d = 0; d < ndim; d++)
        last += (uint64_t)(b->size[d] - 1) * (uint64_t)b->stride[d];
    return last + 1;
}

static uint64_t box_count(const d9di_mapper_box *b, int ndim)
{
    uint64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= (uint64_t)b->size[d];
    return n;
}

/* Number of contiguous source runs in a box. */
static uint64_t box_runs(const d9di_mapper_box *b, int ndim)
{
    uint64_t run = 1;

    for (int d = 0; d < ndim; d++)
        if (b->size[d] > 1 && (uint64_t)b->stride[d] == run) {
            run *= (uint64_t)b->size[d];
            d = -1; /* another dimension may extend the run */
        }
    return box_count(b, ndim) / run;
}

/* True if one read from the first to the last element costs less than a read per run. */
static bool reads_span(const d9di_mapper_box *b, int ndim, uint64_t width)
{
    return box_extent(b, ndim) * width <=
           box_count(b, ndim) * width + (box_runs(b, ndim) - 1) * (uint64_t)MAX_GAP;
}

/* True if the box is one run in the source and in a destination with these strides (NULL: packed,
 * but for the box's steps). */
static bool is_run(const d9di_mapper_box *b, int ndim, const int64_t *stride)
{
    int64_t run = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        const int64_t to = stride != NULL ? stride[d] : run * b->step[d];

        if (b->size[d] > 1 && (b->stride[d] != run || to != run))
            return false;
        run *= b->size[d];
    }
    return true;
}

/* --- fetching ------------------------------------------------------------------------------ */

struct read_target {
    d9d_map_reader *m;
    int ndim;
    uint64_t width;               /* bytes of an element in the destination */
    bool exact;                   /* convert to float64 instead of applying the casts */
    int64_t stride[D9D_MAX_DIMS]; /* of the destination for one index of the box, in elements */
};

static uint64_t source_width(const d9d_map_reader *m, const d9di_mapper_box *b)
{
    return d9d_dtype_size(m->p->src.at(m->p->src.self, b->source)->dtype);
}

/* Reads n source elements from the box's first on, contiguous, and casts them to `dst`. */
static d9d_status read_cast(const struct read_target *t, const d9di_mapper_box *b, uint64_t n,
                            void *dst)
{
    const d9d_tensor_source *src = &t->m->p->src;
    const d9d_dtype from = src->at(src->self, b->source)->dtype;
    const uint64_t width = d9d_dtype_size(from), band = BAND / width;

    if (b->n_casts == 0 && !t->exact)
        return src->read(src->self, b->source, (uint64_t)b->base * width, dst, n * width);
    D9D_TRY(d9di_map_read_buf_grow(&t->m->raw, BAND));
    for (uint64_t at = 0; at < n; at += band) {
        const uint64_t k = n - at < band ? n - at : band;

        D9D_TRY(src->read(src->self, b->source, ((uint64_t)b->base + at) * width, t->m->raw.data,
                          k * width));
        if (t->exact)
            d9di_cast_to_f64(t->m->raw.data, from, (double *)dst + at, (size_t)k);
        else if (d9di_cast_chain(t->m->raw.data, from, b->casts, b->n_casts,
                                 (unsigned char *)dst + at * t->width, k))
            t->m->maybe_overflow = true;
    }
    return D9D_OK;
}

/* Reads a box that fits in a band: one read of its whole extent, then a strided copy. */
static d9d_status fetch_band(const struct read_target *t, const d9di_mapper_box *b,
                             unsigned char *dst)
{
    const uint64_t n = box_extent(b, t->ndim);

    D9D_TRY(d9di_map_read_buf_grow(&t->m->band, n * t->width));
    D9D_TRY(read_cast(t, b, n, t->m->band.data));
    d9di_strided_copy(t->ndim, b->size, t->width, t->m->band.data, b->stride, dst, t->stride);
    return D9D_OK;
}

static int outermost_dim(const d9di_mapper_box *b, int ndim)
{
    int found = -1;

    for (int d = 0; d < ndim; d++)
        if (b->size[d] > 1 && (found < 0 || b->stride[d] > b->stride[found]))
            found = d;
    return found;
}

/* Reads a box to `dst`, the place of its first element. */
static d9d_status fetch_box(const struct read_target *t, const d9di_mapper_box *b,
                            unsigned char *dst)
{
    const uint64_t width = source_width(t->m, b);
    const bool whole = reads_span(b, t->ndim, width);
    int64_t step = 1;
    int d;

    if (is_run(b, t->ndim, t->stride))
        return read_cast(t, b, box_count(b, t->ndim), dst);
    if (whole && box_extent(b, t->ndim) * width <= BAND)
        return fetch_band(t, b, dst);
    /* Split it into bands, or into contiguous runs. */
    d = outermost_dim(b, t->ndim);
    if (whole && BAND / width > (uint64_t)b->stride[d])
        step = BAND / (int64_t)width / b->stride[d];
    step = step < b->size[d] ? step : (b->size[d] + 1) / 2;
    for (int64_t at = 0; at < b->size[d]; at += step) {
        d9di_mapper_box part = *b;

        part.size[d] = step < b->size[d] - at ? step : b->size[d] - at;
        part.base += at * b->stride[d];
        D9D_TRY(fetch_box(t, &part, dst + (uint64_t)(at * t->stride[d]) * t->width));
    }
    return D9D_OK;
}

/* --- spans of an output ---------------------------------------------------------------------- */

/* The largest box of at most n elements that begins at element `first` and is contiguous in the
 * view.  Returns its number of elements. */
static uint64_t next_span_box(const d9di_mapper_view *v, uint64_t first, uint64_t n, int64_t *start,
                              int64_t *size)
{
    uint64_t inner[D9D_MAX_DIMS + 1]; /* elements per step along each dimension */
    int cut = 0;

    inner[v->ndim] = 1;
    for (int d = v->ndim - 1; d >= 0; d--)
        inner[d] = inner[d + 1] * (uint64_t)v->shape[d];
    while (cut < v->ndim && (first % inner[cut + 1] != 0 || n < inner[cut + 1]))
        cut++;
    for (int d = 0; d < v->ndim; d++) {
        start[d] = (int64_t)(first / inner[d + 1]);
        first %= inner[d + 1];
        size[d] = d < cut ? 1 : v->shape[d];
    }
    if (cut >= v->ndim)
        return 1; /* no dimensions */
    if ((uint64_t)(size[cut] - start[cut]) > n / inner[cut + 1])
        size[cut] = (int64_t)(n / inner[cut + 1]);
    else
        size[cut] -= start[cut];
    return (uint64_t)size[cut] * inner[cut + 1];
}

typedef d9d_status (*visit_fn)(const struct read_target *t, const d9di_mapper_box *b,
                               unsigned char *dst);

/* Calls `visit` for every box of the view that intersects this one, with its destination. */
static d9d_status visit_boxes(struct read_target *t, const d9di_mapper_view *v,
                              const int64_t *start, const int64_t *size, unsigned char *dst,
                              visit_fn visit)
{
    int64_t dense[D9D_MAX_DIMS], inner = 1;

    for (int d = v->ndim - 1; d >= 0; d--) {
        dense[d] = inner;
        inner *= size[d];
    }
    for (size_t i = 0; i < v->n; i++) {
        d9di_mapper_box b;
        uint64_t at = 0;

        if (!box_intersect(&v->boxes[i], v->ndim, start, size, &b))
            continue;
        for (int d = 0; d < v->ndim; d++) {
            at += (uint64_t)((b.start[d] - start[d]) * dense[d]);
            t->stride[d] = b.step[d] * dense[d];
        }
        D9D_TRY(visit(t, &b, dst != NULL ? dst + at * t->width : NULL));
    }
    return D9D_OK;
}

/* Visits `left` elements of output i from `first` on, `t->width` bytes each. */
static d9d_status for_each_box(struct read_target *t, size_t i, uint64_t first, uint64_t left,
                               unsigned char *dst, visit_fn visit)
{
    const d9di_mapper_view *v = t->m->p->out_views[i];

    while (left > 0) {
        int64_t start[D9D_MAX_DIMS], size[D9D_MAX_DIMS];
        const uint64_t k = next_span_box(v, first, left, start, size);

        D9D_TRY(visit_boxes(t, v, start, size, dst, visit));
        first += k;
        left -= k;
        dst = dst != NULL ? dst + k * t->width : NULL;
    }
    return D9D_OK;
}

static struct read_target init_target(d9d_map_reader *m, size_t i)
{
    const d9di_mapper_view *v = m->p->out_views[i];

    return (struct read_target){.m = m, .ndim = v->ndim, .width = d9d_dtype_size(v->dtype)};
}

static d9d_status check_span(const d9d_map_reader *m, size_t i, uint64_t at, uint64_t n)
{
    const d9d_safetensors_tensor *out = &m->p->outputs[i];
    const uint64_t width = d9d_dtype_size(m->p->out_views[i]->dtype);

    if (at % width != 0 || n % width != 0 || at > out->bytes || n > out->bytes - at)
        return D9D_FAIL(D9D_EINVAL, "tensor %s: %llu bytes at %llu, it has %llu of %llu each",
                        out->name, (unsigned long long)n, (unsigned long long)at,
                        (unsigned long long)out->bytes, (unsigned long long)width);
    return D9D_OK;
}

d9d_status d9di_map_read_span(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n, void *dst)
{
    struct read_target t = init_target(m, i);

    return for_each_box(&t, i, first, n, dst, fetch_box);
}

d9d_status d9di_map_read_f64(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n, double *dst)
{
    struct read_target t = init_target(m, i);

    t.exact = true;
    t.width = sizeof(*dst);
    return for_each_box(&t, i, first, n, (unsigned char *)dst, fetch_box);
}

d9d_status d9d_map_read(d9d_map_reader *m, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const uint64_t width = d9d_dtype_size(m->p->out_views[i]->dtype);

    D9D_TRY(check_span(m, i, at, n));
    D9D_TRY(d9di_map_read_span(m, i, at / width, n / width, dst));
    return d9di_map_read_handle_overflow(m, i, at / width, n / width, dst);
}

d9d_status d9d_map_read_slice(d9d_map_reader *m, size_t i, const int64_t *start,
                              const int64_t *size, void *dst)
{
    const d9di_mapper_view *v = m->p->out_views[i];
    struct read_target t = init_target(m, i);

    for (int d = 0; d < v->ndim; d++)
        if (start[d] < 0 || size[d] < 0 || size[d] > v->shape[d] ||
            start[d] > v->shape[d] - size[d])
            return D9D_FAIL(D9D_EINVAL, "tensor %s: %lld of dimension %d from %lld on, it has %lld",
                            m->p->outputs[i].name, (long long)size[d], d, (long long)start[d],
                            (long long)v->shape[d]);
    D9D_TRY(visit_boxes(&t, v, start, size, dst, fetch_box));
    return d9di_map_read_check_overflow(m, i);
}

static d9d_status prefetch_box(const struct read_target *t, const d9di_mapper_box *b,
                               unsigned char *dst)
{
    const d9d_tensor_source *src = &t->m->p->src;
    const uint64_t width = source_width(t->m, b);

    (void)dst;
    if (reads_span(b, t->ndim, width))
        src->prefetch(src->self, b->source, (uint64_t)b->base * width,
                      box_extent(b, t->ndim) * width);
    return D9D_OK;
}

void d9d_map_prefetch(d9d_map_reader *m, size_t i, uint64_t at, uint64_t n)
{
    struct read_target t = init_target(m, i);

    if (m->p->src.prefetch != NULL && check_span(m, i, at, n) == D9D_OK)
        (void)for_each_box(&t, i, at / t.width, n / t.width, NULL, prefetch_box);
}

uint64_t d9di_map_read_peak_bytes(const d9d_map_plan *p)
{
    uint64_t peak = 0;

    for (size_t i = 0; i < p->n_outputs; i++) {
        const d9di_mapper_view *v = p->out_views[i];

        for (size_t k = 0; k < v->n; k++) {
            const d9di_mapper_box *b = &v->boxes[k];
            const d9d_dtype from = p->src.at(p->src.self, b->source)->dtype;
            const uint64_t n = box_extent(b, v->ndim), fit = BAND / d9d_dtype_size(from);
            uint64_t need =
                is_run(b, v->ndim, NULL) ? 0 : (n < fit ? n : fit) * d9d_dtype_size(v->dtype);

            need += b->n_casts > 0 ? BAND : 0;
            peak = need > peak ? need : peak;
        }
    }
    return peak + (p->bytes < D9D_TENSOR_SINK_CHUNK ? p->bytes : D9D_TENSOR_SINK_CHUNK);
}
