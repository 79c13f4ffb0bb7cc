/* reward.c - a reward model: one score of each answer, trained on pairs (Bradley-Terry).  See
 * d9d/tasks/preference.h.
 *
 * The rows of the batch's answers are first the chosen ones, then the rejected ones
 * (d9d/data/loader/pooling.h).
 */
#include "d9d/data/loader/pooling.h"
#include "d9d/op/loss.h"
#include "d9d/op/op.h"
#include "tasks/tasks.h"

static void reward_head(void *self, d9d_head *out)
{
    (void)self;
    *out = (d9d_head){D9D_HEAD_CLASSIFICATION, 1};
}

static d9d_status reward_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    (void)self;
    return d9d_stage_is_last(m->stage)
               ? d9d_model_add_linear(m, D9D_HEAD_SCORE, options->dtype, 0, m->hidden, 1)
               : D9D_OK;
}

static d9d_pooling reward_pooling(void *self)
{
    (void)self;
    return D9D_POOLING_LAST;
}

static d9d_task_answers reward_answers(void *self)
{
    (void)self;
    return D9D_TASK_ANSWERS_PAIRS;
}

static int64_t reward_targets(void *self, const d9d_batch *b)
{
    (void)self;
    return d9d_batch_count_pairs(b);
}

static d9d_status reward_check(void *self, const d9d_batch *b)
{
    (void)self;
    return d9di_answers_check(b, d9di_answers_width(D9D_TASK_ANSWERS_PAIRS));
}

/* Scores of one side, [P, 1], of those of both, [1, 2 P]. */
static d9d_status take_side(d9d_tape *t, d9d_var *scores, int64_t side, d9d_var **y)
{
    const int64_t pairs = d9d_var_tensor(scores)->shape.dim[1] / 2;

    D9D_TRY(d9d_op_concat(t, &(d9d_op_concat_input){scores, side * pairs, pairs}, 1,
                          D9D_SHAPE(1, pairs), y));
    return d9d_op_reshape(t, *y, D9D_SHAPE(pairs, 1), y);
}

/* 1 for pairs that count on this rank, else 0: [P, 1]. */
static d9d_status pair_mask(d9d_tape *t, const d9d_tensor *labels, d9d_var **y)
{
    D9D_TRY(d9d_tape_leaf(t, labels, false, y));
    D9D_TRY(d9d_op_reshape(t, *y, D9D_SHAPE(d9d_tensor_numel(labels), 1), y));
    return d9d_op_ge(t, *y, 0.0f, y);
}

/* The columns of the metric "rewards": scores, no log-probabilities. */
static d9d_status predictions_make(d9d_tape *t, d9d_var *chosen, d9d_var *rejected, d9d_var *mask,
                                   d9d_var **y)
{
    d9d_var *none;

    D9D_TRY(d9d_op_affine(t, mask, 0, 0, &none));
    D9D_TRY(d9d_op_detach(t, chosen, &chosen));
    D9D_TRY(d9d_op_detach(t, rejected, &rejected));
    return d9di_answers_columns(
        t, (d9d_var *const[D9DI_ANSWERS_COLUMNS]){chosen, rejected, none, none, mask, mask, none},
        y);
}

static d9d_status reward_losses(d9d_tape *t, const d9d_tensor *labels, d9d_var *scores,
                                d9d_model_out *out)
{
    d9d_var *chosen, *rejected, *mask;

    D9D_TRY(d9d_op_cast(t, scores, D9D_F32, &scores));
    D9D_TRY(
        d9d_op_reshape(t, scores, D9D_SHAPE(1, d9d_tensor_numel(d9d_var_tensor(scores))), &scores));
    D9D_TRY(take_side(t, scores, 0, &chosen));
    D9D_TRY(take_side(t, scores, 1, &rejected));
    D9D_TRY(pair_mask(t, labels, &mask));
    D9D_TRY(d9d_op_bradley_terry(t, chosen, rejected, &out->loss));
    D9D_TRY(d9d_op_mul(t, out->loss, mask, &out->loss));
    out->labels = labels;
    return predictions_make(t, chosen, rejected, mask, &out->logits);
}

static d9d_status reward_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                 d9d_model_out *out)
{
    d9d_block_linear *score = d9d_model_find_linear(m, D9D_HEAD_SCORE);
    d9d_model_in plain = *in;
    d9d_var *rows;

    (void)self;
    plain.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_model_pool(m, t, out->hidden, in->pool, &rows));
    D9D_TRY(d9d_param_unit_unshard(&score->module, t));
    D9D_TRY(d9d_op_linear(t, rows, &score->weight, &rows));
    D9D_TRY(d9d_param_unit_reshard(&score->module, t));
    return reward_losses(t, &in->pool->labels, rows, out);
}

static const d9d_train_task task = {.size = sizeof(d9d_train_task),
                                    .table = &d9di_reward_table,
                                    .head = reward_head,
                                    .extend = reward_extend,
                                    .forward = reward_forward,
                                    .targets = reward_targets,
                                    .check = reward_check,
                                    .pooling = reward_pooling,
                                    .answers = reward_answers};

static const d9d_key no_keys[] = {D9D_KEY_END};
const d9d_table d9di_reward_table = {
    .name = "reward", .keys = no_keys, .doc = "a score of answers, by pairs", .row = &task};
