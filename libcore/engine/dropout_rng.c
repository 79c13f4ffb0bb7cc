/* dropout_rng.c - see engine/dropout_rng.h. */
#include "engine/dropout_rng.h"

#include <stdlib.h>

#include "d9d/data/loader/cp_slice.h"

bool d9di_engine_needs_dropout_rng(d9d_model *const *stages, size_t n, const d9d_params *adapters)
{
    for (size_t k = 0; k < n; k++)
        if (stages[k]->dropout)
            return true;
    for (size_t i = 0; i < adapters->n; i++)
        if (adapters->p[i]->lora.adapts->lora.adapter->dropout > 0)
            return true;
    return false;
}

d9d_status d9di_engine_make_dropout_rng(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                        uint64_t seed, d9d_dropout_rng *out)
{
    const int64_t length = b->length / d9d_comm_size(m->groups.cp), n = b->seqs * length;
    const d9d_comm *tp = m->groups.tp;
    int64_t *token = malloc((size_t)n * sizeof(*token) + 1);
    d9d_status st;

    if (token == NULL)
        return D9D_FAIL(D9D_ENOMEM, "dropout: no memory for the numbers of %lld tokens",
                        (long long)n);
    for (int64_t i = 0; i < n; i++)
        token[i] = (int64_t)((uint64_t)(b->first + i / length) * (uint64_t)m->max_positions +
                             (uint64_t)d9d_cp_slice_position(d9d_comm_rank(m->groups.cp),
                                                             d9d_comm_size(m->groups.cp), length,
                                                             i % length));
    *out = (d9d_dropout_rng){.seed = seed,
                             .first = n / d9d_comm_size(tp) * d9d_comm_rank(tp),
                             .max_positions = m->max_positions};
    st = d9d_tensor_from_host(dev, D9D_I64, D9D_SHAPE(n), token, &out->token);
    free(token);
    return st;
}
