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
        if (adapters->p[i]->peft.adapts->peft.adapter->dropout > 0)
            return true;
    return false;
}

/* Numbers of the tokens of rank `rank` of n that share each sequence: [B, S / n]. */
static d9d_status tokens_number(const d9d_model *m, d9d_device *dev, const d9d_batch *b, int rank,
                                int ranks, d9d_tensor *out)
{
    const int64_t length = b->length / ranks, n = b->seqs * length;
    int64_t *token = malloc((size_t)n * sizeof(*token) + 1);
    d9d_status st;

    if (token == NULL)
        return D9D_FAIL(D9D_ENOMEM, "dropout: no memory for the numbers of %lld tokens",
                        (long long)n);
    for (int64_t i = 0; i < n; i++)
        token[i] = (int64_t)((uint64_t)(b->first + i / length) * (uint64_t)m->max_positions +
                             (uint64_t)d9d_cp_slice_position(rank, ranks, length, i % length));
    st = d9d_tensor_from_host(dev, D9D_I64, D9D_SHAPE(n), token, out);
    free(token);
    return st;
}

d9d_status d9di_engine_make_dropout_rng(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                        uint64_t seed, d9d_dropout_rng *out)
{
    const d9d_groups *g = &m->groups;
    const int64_t part = b->seqs * (b->length / d9d_comm_size(g->cp)) / d9d_comm_size(g->tp);

    *out = (d9d_dropout_rng){.seed = seed,
                             .first = part * d9d_comm_rank(g->tp),
                             .part = part,
                             .max_positions = m->max_positions};
    D9D_TRY(tokens_number(m, dev, b, d9d_comm_rank(g->cp), d9d_comm_size(g->cp), &out->token));
    return g->cp_heads != NULL ? tokens_number(m, dev, b, d9d_comm_rank(g->cp_keys),
                                               d9d_comm_size(g->cp_keys), &out->query_token)
                               : D9D_OK;
}
