/* slice_runs.c - see slice_runs.h. */
#include "ckpt/dir/slice_runs.h"

#include <stdlib.h>
#include <string.h>

/* --- what a run spans ---------------------------------------------------------------------- */

/* Extends a box by a step. */
static void span_step(d9d_box *span, const d9d_slice_step *s)
{
    span->size[s->dim] += (s->n - 1) * s->by;
}

d9d_box d9di_slice_run_span(const d9d_slice_run *r)
{
    d9d_box span = r->box;

    for (size_t k = 0; k < r->n_steps; k++)
        span_step(&span, &r->steps[k]);
    return span;
}

int64_t d9di_slice_run_count(const d9d_slice_run *r)
{
    int64_t n = 1;

    for (size_t k = 0; k < r->n_steps; k++)
        n *= r->steps[k].n;
    return n;
}

/* A step that leaves the whole, or copies what overlaps, does not fit. */
static bool step_fits(const d9d_slice_step *s, const d9d_box *span, const d9d_shape *whole)
{
    if (s->n < 2 || s->dim < 0 || s->dim >= whole->ndim || s->by < 1 ||
        s->by < span->size[s->dim] || s->n > D9D_SLICES_RANKS)
        return false;
    return s->by <= (whole->dim[s->dim] - span->start[s->dim] - span->size[s->dim]) / (s->n - 1);
}

bool d9di_slice_run_fits(const d9d_slice_run *r, const d9d_shape *whole, int64_t ranks)
{
    int64_t least = r->rank, most = r->rank, n = 1;
    d9d_box span = r->box;

    if (!d9d_box_fits(&r->box, whole) || r->rank < 0 || r->rank >= ranks)
        return false;
    for (size_t k = 0; k < r->n_steps; k++) {
        const d9d_slice_step *s = &r->steps[k];

        if (!step_fits(s, &span, whole) || s->ranks > ranks || s->ranks < -ranks)
            return false;
        span_step(&span, s);
        n *= s->n;
        *(s->ranks < 0 ? &least : &most) += (s->n - 1) * s->ranks;
        if (least < 0 || most >= ranks || n > ranks)
            return false;
    }
    return true;
}

/* --- visiting ----------------------------------------------------------------------------- */

typedef struct run_visit {
    const d9d_slice_run *run;
    const d9d_box *within;               /* NULL: every slice */
    int64_t extent[D9D_SLICE_STEPS + 1]; /* along a step's dimension, of what it repeats */
    d9d_slice_fn fn;
    void *arg;
} run_visit;

/* The repetitions of a step that reach into the box: first and number. */
static void step_range(const run_visit *v, size_t k, const d9d_box *at, int64_t *first,
                       int64_t *end)
{
    const d9d_slice_step *s = &v->run->steps[k];
    const int64_t start = at->start[s->dim];
    int64_t from, to;

    *first = 0;
    *end = s->n;
    if (v->within == NULL)
        return;
    from = v->within->start[s->dim];
    to = from + v->within->size[s->dim];
    if (start + v->extent[k] <= from)
        *first = (from - v->extent[k] - start) / s->by + 1;
    if (to <= start)
        *end = 0;
    else if ((to - start - 1) / s->by + 1 < s->n)
        *end = (to - start - 1) / s->by + 1;
}

/* Visits the slices of the first n steps, with the first of them at slice `at`. */
static d9d_status visit_steps(const run_visit *v, size_t n, const d9d_slice *at)
{
    d9d_slice next = *at;
    d9d_box both;
    int64_t first, end;

    if (n == 0)
        return v->within == NULL || d9d_box_intersect(&at->box, v->within, &both)
                   ? v->fn(v->arg, at)
                   : D9D_OK;
    step_range(v, n - 1, &at->box, &first, &end);
    for (int64_t i = first; i < end; i++) {
        const d9d_slice_step *s = &v->run->steps[n - 1];

        next.box.start[s->dim] = at->box.start[s->dim] + i * s->by;
        next.rank = at->rank + i * s->ranks;
        D9D_TRY(visit_steps(v, n - 1, &next));
    }
    return D9D_OK;
}

static d9d_status visit_run(const d9d_slice_run *r, const d9d_box *within, d9d_slice_fn fn,
                            void *arg)
{
    run_visit v = {.run = r, .within = within, .fn = fn, .arg = arg};
    d9d_box span = r->box, both;

    for (size_t k = 0; k < r->n_steps; k++) {
        v.extent[k] = span.size[r->steps[k].dim];
        span_step(&span, &r->steps[k]);
    }
    if (within != NULL && !d9d_box_intersect(&span, within, &both))
        return D9D_OK;
    return visit_steps(&v, r->n_steps, &(d9d_slice){r->file, r->rank, r->box});
}

d9d_status d9d_sliced_tensor_visit(const d9d_sliced_tensor *t, const d9d_box *within,
                                   d9d_slice_fn fn, void *arg)
{
    for (size_t i = 0; i < t->n_runs; i++)
        D9D_TRY(visit_run(&t->runs[i], within, fn, arg));
    return D9D_OK;
}

int64_t d9d_sliced_tensor_volume(const d9d_sliced_tensor *t)
{
    int64_t n = 0;

    for (size_t i = 0; i < t->n_runs; i++)
        n += d9di_slice_run_count(&t->runs[i]) * d9d_box_volume(&t->runs[i].box);
    return n;
}

int64_t d9d_sliced_tensor_count(const d9d_sliced_tensor *t)
{
    int64_t n = 0;

    for (size_t i = 0; i < t->n_runs; i++)
        n += d9di_slice_run_count(&t->runs[i]);
    return n;
}

/* --- overlaps ----------------------------------------------------------------------------- */

static int compare_numbers(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int compare_starts(const void *a, const void *b)
{
    const d9d_slice_run *x = a, *y = b;
    int order = 0;

    for (int d = 0; d < x->box.ndim && order == 0; d++)
        order = compare_numbers(x->box.start[d], y->box.start[d]);
    return order;
}

void d9di_slice_runs_sort(d9d_sliced_tensor *t)
{
    if (t->n_runs > 0)
        qsort(t->runs, t->n_runs, sizeof(*t->runs), compare_starts);
}

typedef struct overlap_search {
    const d9d_slice_run *other;
    d9d_box *one, *two;
} overlap_search;

static d9d_status take_overlap(void *arg, const d9d_slice *slice)
{
    *((overlap_search *)arg)->two = slice->box;
    return D9D_EMISMATCH; /* ends the visit */
}

static d9d_status search_overlap(void *arg, const d9d_slice *slice)
{
    overlap_search *s = arg;

    *s->one = slice->box;
    return visit_run(s->other, &slice->box, take_overlap, s);
}

/* Looks for each slice of the shorter run among those of the other. */
static bool runs_overlap(const d9d_slice_run *a, const d9d_slice_run *b, d9d_box *one,
                         d9d_box *other)
{
    const bool swap = d9di_slice_run_count(a) > d9di_slice_run_count(b);
    overlap_search s = {swap ? a : b, one, other};

    return visit_run(swap ? b : a, NULL, search_overlap, &s) != D9D_OK;
}

/* Runs are sorted by start, so a run can overlap only those that start before it ends. */
bool d9di_slice_runs_overlap(const d9d_sliced_tensor *t, d9d_box *one, d9d_box *other)
{
    d9d_box both;

    for (size_t i = 0; i < t->n_runs; i++) {
        const d9d_box a = d9di_slice_run_span(&t->runs[i]);

        for (size_t k = i + 1; k < t->n_runs; k++) {
            const d9d_box b = d9di_slice_run_span(&t->runs[k]);

            if (a.ndim > 0 && b.start[0] >= a.start[0] + a.size[0])
                break;
            if (d9d_box_intersect(&a, &b, &both) &&
                runs_overlap(&t->runs[i], &t->runs[k], one, other))
                return true;
        }
    }
    return false;
}

/* --- joining ------------------------------------------------------------------------------ */

/* Runs of one form may be repetitions of each other. */
static int compare_forms(const d9d_slice_run *x, const d9d_slice_run *y)
{
    int order = compare_numbers((int64_t)x->n_steps, (int64_t)y->n_steps);

    for (int d = 0; d < x->box.ndim && order == 0; d++)
        order = compare_numbers(x->box.size[d], y->box.size[d]);
    for (size_t k = 0; k < x->n_steps && order == 0; k++) {
        const d9d_slice_step *a = &x->steps[k], *b = &y->steps[k];

        order = compare_numbers(a->n, b->n);
        order = order != 0 ? order : compare_numbers(a->dim, b->dim);
        order = order != 0 ? order : compare_numbers(a->by, b->by);
        order = order != 0 ? order : compare_numbers(a->ranks, b->ranks);
    }
    return order;
}

static int compare_forms_and_starts(const void *a, const void *b)
{
    const int order = compare_forms(a, b);

    return order != 0 ? order : compare_starts(a, b);
}

/* The step from one run to the next of its form; false if they differ along several dimensions. */
static bool step_between(const d9d_slice_run *a, const d9d_slice_run *b, d9d_slice_step *out)
{
    *out = (d9d_slice_step){.n = 2, .dim = -1, .ranks = b->rank - a->rank};
    if (compare_forms(a, b) != 0)
        return false;
    for (int d = 0; d < a->box.ndim; d++) {
        if (a->box.start[d] == b->box.start[d])
            continue;
        if (out->dim >= 0)
            return false;
        out->dim = d;
        out->by = b->box.start[d] - a->box.start[d];
    }
    return out->dim >= 0 && out->by > 0;
}

static bool step_goes_on(const d9d_slice_step *s, const d9d_slice_run *a, const d9d_slice_run *b)
{
    d9d_slice_step next;

    return step_between(a, b, &next) && next.dim == s->dim && next.by == s->by &&
           next.ranks == s->ranks;
}

/* The steps in their one order, by dimension and distance; steps that continue each other are
 * one. */
static size_t insert_step(const d9d_slice_run *r, d9d_slice_step s, d9d_slice_step *out)
{
    size_t n = 0;

    for (size_t k = 0; k <= r->n_steps; k++) {
        const bool here = k == r->n_steps || s.dim < r->steps[k].dim ||
                          (s.dim == r->steps[k].dim && s.by < r->steps[k].by);

        if (here && s.n > 0) {
            out[n++] = s;
            s.n = 0;
        }
        if (k < r->n_steps)
            out[n++] = r->steps[k];
    }
    for (size_t k = 1; k < n;) {
        d9d_slice_step *a = &out[k - 1];

        if (a->dim == out[k].dim && out[k].by == a->n * a->by && out[k].ranks == a->n * a->ranks) {
            a->n *= out[k].n;
            memmove(&out[k], &out[k + 1], (--n - k) * sizeof(*out));
        } else {
            k++;
        }
    }
    return n;
}

/* Adds a step to a run; *joined is false if the run could then not be read. */
static d9d_status add_step(d9d_slice_run *r, d9d_slice_step s, const d9d_shape *whole, d9d_arena *a,
                           bool *joined)
{
    d9d_slice_step *steps = d9d_arena_alloc(a, (r->n_steps + 1) * sizeof(*steps));
    d9d_slice_run next = *r;

    if (steps == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a run of %lld slices", (long long)s.n);
    next.n_steps = insert_step(r, s, steps);
    next.steps = steps;
    *joined = next.n_steps <= D9D_SLICE_STEPS && d9di_slice_run_fits(&next, whole, INT32_MAX);
    if (*joined)
        *r = next;
    return D9D_OK;
}

/* One pass over sorted runs: repetitions become one run. */
static d9d_status join_pass(d9d_sliced_tensor *t, d9d_arena *a)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n_runs;) {
        d9d_slice_step s;
        size_t next = i + 1;
        bool joined = false;

        if (next < t->n_runs && t->runs[i].file == NULL &&
            step_between(&t->runs[i], &t->runs[next], &s)) {
            while (next + 1 < t->n_runs && step_goes_on(&s, &t->runs[next], &t->runs[next + 1]))
                next++;
            s.n = (int64_t)(next - i) + 1;
            D9D_TRY(add_step(&t->runs[i], s, &t->whole, a, &joined));
        }
        t->runs[n++] = t->runs[i];
        i = joined ? next + 1 : i + 1;
    }
    t->n_runs = n;
    return D9D_OK;
}

d9d_status d9di_slice_runs_join(d9d_sliced_tensor *t, d9d_arena *a)
{
    size_t before;

    do {
        before = t->n_runs;
        if (before > 1)
            qsort(t->runs, before, sizeof(*t->runs), compare_forms_and_starts);
        D9D_TRY(join_pass(t, a));
    } while (t->n_runs < before);
    d9di_slice_runs_sort(t);
    return D9D_OK;
}
