/* box.c - boxes (hyperrectangles) of a global tensor: intersection and contiguous runs.  See
 * d9d/ckpt/dir/slices.h. */
#include <inttypes.h>
#include <stdio.h>

#include "d9d/ckpt/dir/slices.h"

int64_t d9d_box_volume(const d9d_box *b)
{
    int64_t n = 1;

    for (int d = 0; d < b->ndim; d++)
        n *= b->size[d];
    return n;
}

bool d9d_box_fits(const d9d_box *b, const d9d_shape *whole)
{
    if (b->ndim != whole->ndim)
        return false;
    for (int d = 0; d < b->ndim; d++)
        if (b->start[d] < 0 || b->size[d] < 0 || b->start[d] > whole->dim[d] ||
            b->size[d] > whole->dim[d] - b->start[d])
            return false;
    return true;
}

bool d9d_box_intersect(const d9d_box *a, const d9d_box *b, d9d_box *out)
{
    *out = (d9d_box){.ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++) {
        const int64_t a_end = a->start[d] + a->size[d], b_end = b->start[d] + b->size[d];
        const int64_t end = a_end < b_end ? a_end : b_end;

        out->start[d] = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        out->size[d] = end - out->start[d];
        if (out->size[d] <= 0)
            return false;
    }
    return true;
}

char *d9d_box_text(const d9d_box *b, char buf[D9D_BOX_TEXT])
{
    int at = snprintf(buf, D9D_BOX_TEXT, "[");

    /* Two numbers of 20 digits per dimension always fit.  Invalid boxes are printed too, so the end
     * may overflow. */
    for (int d = 0; d < b->ndim; d++) {
        int64_t end;

        if (__builtin_add_overflow(b->start[d], b->size[d], &end))
            end = INT64_MAX;
        at += snprintf(buf + at, D9D_BOX_TEXT - (size_t)at, "%s%" PRId64 ":%" PRId64,
                       d > 0 ? ", " : "", b->start[d], end);
    }
    (void)snprintf(buf + at, D9D_BOX_TEXT - (size_t)at, "]");
    return buf;
}

/* Offset of element `index` of the global tensor in a dense array of box b. */
static int64_t offset_in(const d9d_box *b, const int64_t *index)
{
    int64_t at = 0;

    for (int d = 0; d < b->ndim; d++)
        at = at * b->size[d] + index[d] - b->start[d];
    return at;
}

/* The next index of `part` in its first `outer` dimensions; false after the last. */
static bool next_index(const d9d_box *part, int outer, int64_t *index)
{
    for (int d = outer - 1; d >= 0; d--) {
        if (++index[d] < part->start[d] + part->size[d])
            return true;
        index[d] = part->start[d];
    }
    return false;
}

d9d_status d9d_box_runs(const d9d_box *part, const d9d_box *from, const d9d_box *to, d9d_box_fn fn,
                        void *arg)
{
    int64_t index[D9D_MAX_DIMS] = {0}, run = 1;
    int outer = part->ndim;
    bool whole = true;

    if (d9d_box_volume(part) == 0)
        return D9D_OK;
    /* The run includes inner dimensions that the part covers fully in both arrays; it ends with the
     * first that it does not. */
    while (outer > 0 && whole) {
        outer--;
        run *= part->size[outer];
        whole = part->size[outer] == from->size[outer] && part->size[outer] == to->size[outer];
    }
    for (int d = 0; d < part->ndim; d++)
        index[d] = part->start[d];
    do
        D9D_TRY(fn(arg, offset_in(from, index), offset_in(to, index), run));
    while (next_index(part, outer, index));
    return D9D_OK;
}
