/* grpo_batch.c - see tasks/grpo_batch.h. */
#include "tasks/grpo_batch.h"

#include <math.h>
#include <string.h>

#define IGNORED     (-100) /* a label without a target */
#define STD_EPSILON 1e-4

/* --- advantages --------------------------------------------------------------------------- */

static double mean_of(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

/* Standard deviation with the divisor n - 1; 0 of one number. */
static double std_of(const double *x, size_t n)
{
    const double mean = mean_of(x, n);
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : 0;
}

void d9d_grpo_advantages(const d9d_grpo_section *c, const double *rewards, size_t n,
                         const double *all, size_t n_all, double *advantages)
{
    const size_t group = (size_t)c->num_generations;
    const double whole = c->scale_rewards == D9D_GRPO_SCALE_BATCH ? std_of(all, n_all) : 0;

    for (size_t first = 0; first < n; first += group) {
        const double mean = mean_of(rewards + first, group);
        const double std =
            c->scale_rewards == D9D_GRPO_SCALE_GROUP ? std_of(rewards + first, group) : whole;

        for (size_t i = first; i < first + group; i++)
            advantages[i] = (rewards[i] - mean) /
                            (c->scale_rewards == D9D_GRPO_SCALE_NONE ? 1 : std + STD_EPSILON);
    }
}

/* --- a batch ------------------------------------------------------------------------------ */

static bool is_trained(const d9d_grpo_section *c, const d9di_grpo_completion *x)
{
    return x->n > 0 && !(c->mask_truncated_completions && x->truncated);
}

/* Positions of a row: the last token is only a target. */
static int64_t row_length(const d9di_grpo_completion *x)
{
    return x->n > 0 ? x->prompt + x->n - 1 : 0;
}

/* The weight of a trained token of a completion of n. */
static double token_weight(const d9d_grpo_section *c, int64_t n, int64_t rows, int64_t targets)
{
    const double weights[] = {[D9D_GRPO_LOSS_GRPO] = 1.0 / (double)n,
                              [D9D_GRPO_LOSS_BNPO] = (double)rows / (double)targets,
                              [D9D_GRPO_LOSS_DR_GRPO] = 1.0 / (double)c->max_completion_length,
                              [D9D_GRPO_LOSS_DAPO] = 1,
                              [D9D_GRPO_LOSS_CISPO] = 1};

    return weights[c->loss_type];
}

int64_t d9di_grpo_targets(const d9d_grpo_section *c, const d9d_batch *b)
{
    int64_t n = 0;

    if (c->loss_type == D9D_GRPO_LOSS_DAPO || c->loss_type == D9D_GRPO_LOSS_CISPO)
        return b->targets;
    for (int64_t i = 0; i < b->seqs; i++)
        n += b->lengths[i] > 0;
    return n;
}

int64_t d9di_grpo_decoded_rows(const d9d_grpo_section *c, int64_t microbatch_size)
{
    return c->generation_batch_size != D9D_INT_NULL ? c->generation_batch_size
                                                    : c->num_generations * microbatch_size;
}

static void fill_row(const d9d_grpo_section *c, const d9di_grpo_completion *x, double weight,
                     int64_t length, int32_t *const ints[4], float *columns)
{
    const bool trained = is_trained(c, x);

    for (int64_t i = 0; i < length; i++) {
        ints[0][i] = i < row_length(x) ? (int32_t)x->ids[i] : 0;
        ints[1][i] = ints[3][i] = IGNORED;
        ints[2][i] = i < row_length(x) ? (int32_t)i : 0;
    }
    for (int64_t k = 0; k < x->n; k++) {
        const int64_t at = x->prompt - 1 + k;
        float *v = columns + at * D9DI_GRPO_COLUMNS;

        ints[3][at] = 0;
        if (trained)
            ints[1][at] = (int32_t)x->ids[at + 1];
        v[D9DI_GRPO_ADVANTAGE] = (float)x->advantage;
        v[D9DI_GRPO_WEIGHT] = trained ? (float)weight : 0;
        v[D9DI_GRPO_SHARE] = trained ? 1.0f / (float)x->n : 0;
        v[D9DI_GRPO_SAMPLED] = (float)x->tokens[k].log_prob;
        v[D9DI_GRPO_MASK] = trained;
        v[D9DI_GRPO_ENTROPY] = (float)x->tokens[k].entropy;
        if (k > 0)
            continue;
        v[D9DI_GRPO_FIRST] = 1;
        v[D9DI_GRPO_REWARD] = (float)x->reward;
        v[D9DI_GRPO_ZERO_STD] = x->zero_std;
        v[D9DI_GRPO_LENGTH] = (float)x->n;
        v[D9DI_GRPO_TRUNCATED] = x->truncated;
    }
}

static d9d_status reserve(int64_t rows, int64_t length, d9di_grpo_buffer *b)
{
    const size_t positions = (size_t)(rows * length);

    b->ints.len = b->columns.len = b->lengths.len = b->refs.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&b->ints, 4 * positions));
    D9D_TRY(D9D_VEC_RESERVE(&b->columns, positions * D9DI_GRPO_COLUMNS));
    D9D_TRY(D9D_VEC_RESERVE(&b->lengths, (size_t)rows));
    D9D_TRY(D9D_VEC_RESERVE(&b->refs, (size_t)rows));
    memset(b->columns.data, 0, positions * D9DI_GRPO_COLUMNS * sizeof(float));
    return D9D_OK;
}

d9d_status d9di_grpo_batch_make(const d9d_grpo_section *c, const d9di_grpo_completion *x,
                                int64_t rows, int64_t first, int64_t multiple, d9di_grpo_buffer *b,
                                d9d_batch *out)
{
    int64_t length = 1, targets = 0, tokens = 0, counted = 0;
    int32_t *arrays[4];

    for (int64_t i = 0; i < rows; i++) {
        length = row_length(&x[i]) > length ? row_length(&x[i]) : length;
        targets += is_trained(c, &x[i]) ? x[i].n : 0;
        tokens += row_length(&x[i]);
        counted += x[i].n > 0;
    }
    length = (length + multiple - 1) / multiple * multiple;
    D9D_TRY(reserve(rows, length, b));
    for (int k = 0; k < 4; k++)
        arrays[k] = b->ints.data + k * rows * length;
    for (int64_t i = 0; i < rows; i++) {
        int32_t *const row[4] = {arrays[0] + i * length, arrays[1] + i * length,
                                 arrays[2] + i * length, arrays[3] + i * length};

        fill_row(c, &x[i], token_weight(c, x[i].n, counted, targets), length, row,
                 b->columns.data + i * length * D9DI_GRPO_COLUMNS);
        b->lengths.data[i] = row_length(&x[i]);
        b->refs.data[i] = x[i].ref;
    }
    b->fields[0] = (d9d_batch_field){.name = D9DI_GRPO_TOKENS,
                                     .dtype = D9D_F32,
                                     .is_sequence = true,
                                     .rank = 3,
                                     .shape = {rows, length, D9DI_GRPO_COLUMNS},
                                     .data = b->columns.data};
    b->fields[1] = (d9d_batch_field){.name = D9DI_GRPO_ROWS,
                                     .dtype = D9D_I32,
                                     .is_sequence = true,
                                     .rank = 2,
                                     .shape = {rows, length},
                                     .data = arrays[3]};
    *out = (d9d_batch){.first = first,
                       .seqs = rows,
                       .length = length,
                       .ids = arrays[0],
                       .labels = arrays[1],
                       .positions = arrays[2],
                       .lengths = b->lengths.data,
                       .refs = b->refs.data,
                       .tokens = tokens,
                       .targets = targets,
                       .fields = b->fields,
                       .n_fields = 2};
    return D9D_OK;
}

void d9di_grpo_buffer_release(d9di_grpo_buffer *b)
{
    D9D_VEC_RELEASE(&b->ints);
    D9D_VEC_RELEASE(&b->columns);
    D9D_VEC_RELEASE(&b->lengths);
    D9D_VEC_RELEASE(&b->refs);
}
