/* causal_conv1d_update.c - the convolution of documents that continue from saved tokens (decode).
 * The sums have the bits of causal_conv1d.c. */
#include "cpu/causal_conv1d.h"
#include "cpu/math.h"

/* Token t of a document, counted from the first of this call, as a row of floats. Negative ones
 * come from the slot; NULL if there is none. */
static const float *token_load(const d9d_causal_conv1d_dims *n, const void *x, const void *state,
                               int64_t first, int64_t t, int64_t before, float *row)
{
    if (t + before < 0)
        return NULL;
    return t < 0 ? d9di_cpu_read(n->t, state, (n->w - 1 + t) * n->n, n->n, row)
                 : d9di_cpu_read(n->t, x, (first + t) * n->n, n->n, row);
}

static void document_conv(const d9d_causal_conv1d_dims *n, d9di_varlen_document d, int64_t before,
                          const void *state, void *y, const void *x, const float *w,
                          float *workspace)
{
    float *z = workspace, *row = workspace + n->n;

    for (int64_t t = 0; t < d.n; t++) {
        memset(z, 0, (size_t)n->n * sizeof(*z));
        for (int64_t j = 0; j < n->w; j++) {
            const float *from = token_load(n, x, state, d.first, t - n->w + 1 + j, before, row);

            if (from != NULL)
                d9di_cpu_row_fma(z, w + j * n->n, from, n->n);
        }
        d9di_cpu_row_silu(row, z, n->n);
        d9di_cpu_store(n->t, y, (d.first + t) * n->n, n->n, row);
    }
}

/* Saves the last W - 1 tokens of the slot and of x. */
static void conv_state_update(const d9d_causal_conv1d_dims *n, d9di_varlen_document d, void *state,
                              const void *x)
{
    const size_t row = (size_t)n->n * d9d_dtype_size(n->t);
    const int64_t all = n->w - 1, new_tokens = d9di_i64_min(d.n, all);

    memmove(state, (char *)state + (size_t)new_tokens * row, (size_t)(all - new_tokens) * row);
    memcpy((char *)state + (size_t)(all - new_tokens) * row,
           d9di_elem_cat(n->t, x, (d.first + d.n - new_tokens) * n->n), (size_t)new_tokens * row);
}

static d9d_status array_update(const d9d_causal_conv1d_dims *n, const d9d_state_slots *past,
                               void *y, const void *x, const void *w)
{
    float *turned, *workspace;

    D9D_TRY(d9di_causal_conv1d_check("causal_conv1d_update", n));
    D9D_TRY(d9di_varlen_check_past("causal_conv1d_update", &n->docs));
    if ((turned = d9di_cpu_scratch_alloc("causal_conv1d_update", n->w * n->n)) == NULL)
        return D9D_ENOMEM;
    if ((workspace = d9di_cpu_scratch_alloc_threads("causal_conv1d_update", 2 * n->n)) == NULL) {
        free(turned);
        return D9D_ENOMEM;
    }
    d9di_causal_conv1d_transpose_w(n, turned, w);
#pragma omp parallel for schedule(dynamic) if (n->docs.s * n->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n->docs.segments; i++) {
        const d9di_varlen_document d = d9di_varlen_document_at(&n->docs, i);
        void *slots = d9di_elem_at(n->t, past->slots, past->slot_index[i] * (n->w - 1) * n->n);

        if (d.n == 0)
            continue;
        document_conv(n, d, d9di_varlen_past_tokens(&n->docs, i), slots, y, x, turned,
                      d9di_cpu_scratch_of_thread(workspace, 2 * n->n));
        conv_state_update(n, d, slots, x);
    }
    free(workspace);
    free(turned);
    return D9D_OK;
}

d9d_status d9d_ref_causal_conv1d_update(d9d_stream s, const d9d_causal_conv1d_dims *n, int count,
                                        const d9d_causal_conv1d_array *of)
{
    d9d_causal_conv1d_dims one = *n;

    (void)s;
    for (int i = 0; i < count; i++) {
        one.n = of[i].n;
        D9D_TRY(array_update(&one, &of[i].past, of[i].y, of[i].x, of[i].w));
    }
    return D9D_OK;
}
