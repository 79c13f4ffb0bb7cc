/* causal_conv1d_update.c - the convolution of documents that go on from their last tokens; the sums
 * are those of causal_conv1d.c, to the bit. */
#include "cpu/causal_conv1d.h"
#include "cpu/math.h"

/* Token t of a document, counted from its first of this call on, as a row of floats: before that
 * one of the past; NULL where there is none. */
static const float *token(const d9d_conv_dims *n, const void *x, const void *cell, int64_t first,
                          int64_t t, int64_t before, float *row)
{
    if (t + before < 0)
        return NULL;
    return t < 0 ? d9di_in(n->t, cell, (n->w - 1 + t) * n->n, n->n, row)
                 : d9di_in(n->t, x, (first + t) * n->n, n->n, row);
}

static void give_rows(const d9d_conv_dims *n, d9di_document d, int64_t before, const void *cell,
                      void *y, const void *x, const float *w, float *room)
{
    float *z = room, *row = room + n->n;

    for (int64_t t = 0; t < d.n; t++) {
        memset(z, 0, (size_t)n->n * sizeof(*z));
        for (int64_t j = 0; j < n->w; j++) {
            const float *from = token(n, x, cell, d.first, t - n->w + 1 + j, before, row);

            if (from != NULL)
                d9di_row_fma(z, w + j * n->n, from, n->n);
        }
        d9di_row_silu(row, z, n->n);
        d9di_store(n->t, y, (d.first + t) * n->n, n->n, row);
    }
}

/* The last W - 1 tokens of the past and of x. */
static void keep(const d9d_conv_dims *n, d9di_document d, void *cell, const void *x)
{
    const size_t row = (size_t)n->n * d9d_dtype_size(n->t);
    const int64_t all = n->w - 1, mine = d9di_min(d.n, all);

    memmove(cell, (char *)cell + (size_t)mine * row, (size_t)(all - mine) * row);
    memcpy((char *)cell + (size_t)(all - mine) * row,
           d9di_cat(n->t, x, (d.first + d.n - mine) * n->n), (size_t)mine * row);
}

d9d_status d9d_ref_conv_on(d9d_stream s, const d9d_conv_dims *n, const d9d_past *past, void *y,
                           const void *x, const void *w)
{
    float *turned, *room;

    (void)s;
    D9D_TRY(d9di_conv_check("conv_on", n));
    D9D_TRY(d9di_past_check("conv_on", &n->of));
    if ((turned = d9di_scratch("conv_on", n->w * n->n)) == NULL)
        return D9D_ENOMEM;
    if ((room = d9di_scratch_threads("conv_on", 2 * n->n)) == NULL) {
        free(turned);
        return D9D_ENOMEM;
    }
    d9di_conv_turn(n, turned, w);
#pragma omp parallel for schedule(dynamic) if (n->of.s * n->n > D9DI_SERIAL)
    for (int64_t i = 0; i < n->of.segments; i++) {
        const d9di_document d = d9di_document_of(&n->of, i);
        void *cell = d9di_at(n->t, past->cell, past->at[i] * (n->w - 1) * n->n);

        if (d.n == 0)
            continue;
        give_rows(n, d, d9di_before(&n->of, i), cell, y, x, turned, d9di_mine(room, 2 * n->n));
        keep(n, d, cell, x);
    }
    free(room);
    free(turned);
    return D9D_OK;
}
