/* token_weights.c - see engine/token_weights.h. */
#include "engine/token_weights.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/data/loader/cp_slice.h"

bool d9di_engine_needs_token_weights(const d9d_model *m)
{
    for (size_t i = 0; i < m->n_mixtures; i++) {
        const d9d_block_moe *b = m->mixtures[i];

        if (b->copies != NULL || b->counted.storage != NULL || b->shape.router.aux_loss != 0 ||
            b->shape.router.z_loss != 0 || b->shape.router.capacity != 0)
            return true;
    }
    return false;
}

bool d9di_engine_needs_token_lanes(const d9d_model *m)
{
    for (size_t i = 0; i < m->n_mixtures; i++)
        if (m->mixtures[i]->copies != NULL)
            return true;
    return false;
}

static int64_t count_labels(const d9d_batch *b, int64_t row)
{
    int64_t n = 0;

    for (int64_t i = 0; i < b->lengths[row]; i++)
        n += b->labels[row * b->length + i] != D9D_IGNORE_INDEX;
    return n;
}

static int64_t count_targets(const d9di_task *task, const d9d_batch *b, int64_t row)
{
    int64_t n[D9D_TASK_PARTS_MAX] = {0}, sum = 0;
    const size_t parts = d9di_task_parts(task, b, row, n);

    for (size_t i = 0; i < parts; i++)
        sum += n[i];
    if (parts > 0)
        return sum;
    return d9di_task_is_of_answers(task) ? d9di_answers_count(b, d9di_task_answers(task), row)
                                         : count_labels(b, row);
}

static float weight_of_row(const d9d_batch *b, const d9di_task *task, int64_t row)
{
    return b->lengths[row] > 0 ? (float)count_targets(task, b, row) / (float)b->lengths[row] : 0.0f;
}

/* Positions modulo the number of lanes, of sequences and of padding. */
static d9d_status lanes_make(const d9d_model *m, d9d_device *dev, int64_t seqs, int64_t length,
                             d9d_tensor *out)
{
    const int ranks = d9d_comm_size(m->groups.cp), rank = d9d_comm_rank(m->groups.cp);
    int32_t *lane = malloc((size_t)(seqs * length) * sizeof(*lane) + 1);
    d9d_status st;

    if (lane == NULL)
        return D9D_FAIL(D9D_ENOMEM, "router: no memory for the lanes of %lld tokens",
                        (long long)(seqs * length));
    for (int64_t i = 0; i < seqs * length; i++)
        lane[i] =
            (int32_t)(d9d_cp_slice_position(rank, ranks, length, i % length) % D9D_EXPERT_LANES);
    st = d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(seqs, length), lane, out);
    free(lane);
    return st;
}

d9d_status d9di_engine_make_token_weights(const d9d_model *m, d9d_device *dev, const d9d_batch *b,
                                          const d9di_task *task, bool lanes, d9d_token_weights *out)
{
    const int ranks = d9d_comm_size(m->groups.cp), rank = d9d_comm_rank(m->groups.cp);
    const int64_t length = b->length / ranks, n = b->seqs * length;
    const d9d_comm *tp = m->groups.tp;
    float *weight = malloc((size_t)n * sizeof(*weight) + 1);
    int64_t *lengths = malloc((size_t)b->seqs * sizeof(*lengths) + 1);
    d9d_status st;

    if (weight == NULL || lengths == NULL) {
        free(weight);
        free(lengths);
        return D9D_FAIL(D9D_ENOMEM, "router: no memory for the weights of %lld tokens",
                        (long long)n);
    }
    memcpy(lengths, b->lengths, (size_t)b->seqs * sizeof(*lengths));
    out->lengths = lengths;
    for (int64_t row = 0; row < b->seqs; row++) {
        const float each = weight_of_row(b, task, row);

        for (int64_t i = 0; i < length; i++)
            weight[row * length + i] =
                d9d_cp_slice_position(rank, ranks, length, i) < b->lengths[row] ? each : 0.0f;
    }
    out->first = n / d9d_comm_size(tp) * d9d_comm_rank(tp);
    st = d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(b->seqs, length), weight, &out->weight);
    free(weight);
    return st == D9D_OK && lanes ? lanes_make(m, dev, b->seqs, length, &out->lane) : st;
}

void d9di_engine_token_weights_release(d9d_token_weights *w)
{
    d9d_tensor_release(&w->weight);
    d9d_tensor_release(&w->lane);
    free((void *)(uintptr_t)w->lengths);
    w->lengths = NULL;
}
