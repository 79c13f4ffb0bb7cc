/* repetition_penalty.c - logits of tokens that a sequence has, made less likely. */
#include "cpu/common.h"

static void row_penalise(const d9d_repetition_penalty_args *a, int64_t i)
{
    const float *x = a->x + i * a->n;
    const int32_t *ids = a->history + a->segment[i].k;
    float *y = a->y + i * a->n;

    memcpy(y, x, (size_t)a->n * sizeof(*y));
    for (int32_t j = 0; j < a->segment[i].nk; j++)
        if (ids[j] >= 0 && ids[j] < a->n)
            y[ids[j]] = x[ids[j]] < 0 ? x[ids[j]] * a->penalty : x[ids[j]] / a->penalty;
}

d9d_status d9d_ref_repetition_penalty(d9d_stream s, const d9d_repetition_penalty_args *a)
{
    (void)s;
    for (int64_t j = 0; j < a->tokens; j++)
        a->history[a->slots[j]] = a->ids[j];
#pragma omp parallel for if (a->m * a->n > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < a->m; i++)
        row_penalise(a, i);
    return D9D_OK;
}
