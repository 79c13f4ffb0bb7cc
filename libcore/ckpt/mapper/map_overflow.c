/* map_overflow.c - cast overflow: finite numbers outside the range of a cast's type.  See
 * d9d/ckpt/mapper/mapper.h.
 *
 * While a band is in the cache, the cast notes whether any result is not finite.  Only then the
 * span is read again as float64, which shows which values were finite before. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/mapper/dtype_convert.h"
#include "ckpt/mapper/map_plan.h"

enum { BLOCK = 1 << 17 }; /* elements checked at a time */

static void add_overflow(d9di_cast_overflow *to, const d9di_cast_overflow *more)
{
    to->n += more->n;
    to->largest = more->largest > to->largest ? more->largest : to->largest;
}

/* The type with the smallest range among those that an output is cast to. */
static d9d_dtype narrowest_dtype(const d9di_mapper_view *v)
{
    d9d_dtype least = v->dtype;

    for (size_t k = 0; k < v->n; k++)
        for (int c = 0; c < v->boxes[k].n_casts; c++)
            if (d9di_cast_max_finite(v->boxes[k].casts[c]) < d9di_cast_max_finite(least))
                least = v->boxes[k].casts[c];
    return least;
}

/* Finds overflows among n elements of output i from `first` on.  `made` holds the results, which
 * `saturate` replaces by the largest finite numbers of the type; NULL: they are computed again. */
static d9d_status find_overflow(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n,
                                unsigned char *made, bool saturate, d9di_cast_overflow *out)
{
    const d9di_mapper_view *v = m->p->out_views[i];
    const size_t width = d9d_dtype_size(v->dtype);
    double *exact = malloc(BLOCK * sizeof(*exact));
    unsigned char *buf = malloc(BLOCK * width);
    d9d_status st = D9D_OK;

    if (exact == NULL || buf == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "tensor %s: no memory to look at its values",
                      m->p->outputs[i].name);
        goto out;
    }
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint64_t k = n - at < BLOCK ? n - at : BLOCK;
        unsigned char *cast = made != NULL ? made + at * width : buf;
        d9di_cast_overflow here;

        if (made == NULL)
            D9D_TRY_OR(st, d9di_map_read_span(m, i, first + at, k, cast), out);
        if (d9di_cast_first_nonfinite(cast, v->dtype, k) == k)
            continue;
        D9D_TRY_OR(st, d9di_map_read_f64(m, i, first + at, k, exact), out);
        here = d9di_cast_overflow_find(exact, v->dtype, k, cast,
                                       saturate ? d9di_cast_max_finite(narrowest_dtype(v)) : 0);
        add_overflow(out, &here);
    }
out:
    free(exact);
    free(buf);
    return st;
}

/* Checks the whole output, whichever span overflowed: so every thread and rank reports the same
 * message. */
static d9d_status fail_overflow(d9d_map_reader *m, size_t i)
{
    const d9d_safetensors_tensor *t = &m->p->outputs[i];
    const uint64_t n = t->bytes / d9d_dtype_size(t->dtype);
    const d9d_dtype type = narrowest_dtype(m->p->out_views[i]);
    d9di_cast_overflow all = {0};

    D9D_TRY(find_overflow(m, i, 0, n, NULL, false, &all));
    if (all.n == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: tensor %s: %" PRIu64 " of %" PRIu64 " values are beyond %s, which ends at "
                    "%g; the largest is %g; d9d-map --overflow saturate or inf accepts them",
                    m->p->source, t->name, all.n, n, d9d_dtype_name(type),
                    d9di_cast_max_finite(type), all.largest);
}

/* Counts accepted overflows, for the warning at the end of the run. */
static void note_accepted(d9d_map_reader *m, size_t i, const d9di_cast_overflow *o)
{
    if (m->run != NULL && o->n > 0)
        d9di_map_plan_job_add_overflow(m->run, i, o);
}

d9d_status d9di_map_read_handle_overflow(d9d_map_reader *m, size_t i, uint64_t first, uint64_t n,
                                         void *made)
{
    const bool saturate = m->p->overflow == D9D_CAST_OVERFLOW_SATURATE;
    d9di_cast_overflow found = {0};

    if (!m->maybe_overflow)
        return D9D_OK;
    m->maybe_overflow = false;
    D9D_TRY(find_overflow(m, i, first, n, made, saturate, &found));
    m->maybe_overflow = false;
    if (found.n > 0 && m->p->overflow == D9D_CAST_OVERFLOW_ERROR)
        return fail_overflow(m, i);
    note_accepted(m, i, &found);
    return D9D_OK;
}

d9d_status d9di_map_read_check_overflow(d9d_map_reader *m, size_t i)
{
    if (!m->maybe_overflow || m->p->overflow == D9D_CAST_OVERFLOW_INF)
        return D9D_OK;
    m->maybe_overflow = false;
    if (m->p->overflow == D9D_CAST_OVERFLOW_SATURATE)
        return D9D_FAIL(D9D_ENOTSUP, "tensor %s: boxes of it cannot be made to saturate",
                        m->p->outputs[i].name);
    return fail_overflow(m, i);
}
