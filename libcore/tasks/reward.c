/* reward.c - a reward model: one score of each answer, trained on pairs (Bradley-Terry).  See
 * d9d/tasks/preference.h.
 *
 * The rows of the batch's answers are first the chosen ones, then the rejected ones
 * (d9d/data/loader/pooling.h).
 */
#include <stdlib.h>

#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
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

/* Scores of the pooled answers, [M, 1]; NULL before the last stage. */
static d9d_status scores_make(d9d_model *m, d9d_tape *t, const d9d_model_in *in, d9d_model_out *out,
                              d9d_var **scores)
{
    d9d_block_linear *score = d9d_model_find_linear(m, D9D_HEAD_SCORE);
    d9d_model_in plain = *in;
    d9d_var *rows;

    *scores = NULL;
    plain.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_model_pool(m, t, out->hidden, in->pool, &rows));
    D9D_TRY(d9d_param_unit_unshard(&score->module, t));
    D9D_TRY(d9di_task_linear_of_texts(t, in->pool, rows, &score->weight, scores));
    return d9d_param_unit_reshard(&score->module, t);
}

static d9d_status reward_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                 d9d_model_out *out)
{
    d9d_var *scores;

    (void)self;
    D9D_TRY(scores_make(m, t, in, out, &scores));
    return scores != NULL ? reward_losses(t, &in->pool->labels, scores, out) : D9D_OK;
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

/* --- inference ---------------------------------------------------------------------------------
 */

typedef struct scoring {
    bool pairs; /* a sample is a chosen and a rejected answer, else one text */
    d9d_model_columns values;
} scoring;

static d9d_status scoring_open(const void *config, void **self)
{
    (void)config;
    *self = calloc(1, sizeof(scoring));
    return *self != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "task reward: %zu bytes", sizeof(scoring));
}

static d9d_status scoring_set_data(void *self, d9d_dataset *const *datasets, size_t n)
{
    scoring *s = self;

    for (size_t i = 0; i < n; i++) {
        const int64_t documents = d9d_dataset_record_documents(datasets[i]);
        const bool pairs = documents == d9di_answers_width(D9D_TASK_ANSWERS_PAIRS);

        if (documents > 0 && !pairs)
            return D9D_FAIL(D9D_ECONFIG,
                            "task reward: %s is of --format unpaired; a line is a pair of "
                            "--format preference, or a text",
                            d9d_dataset_dir(datasets[i]));
        if (i > 0 && pairs != s->pairs)
            return D9D_FAIL(D9D_ECONFIG, "task reward: of %s and %s only one is of pairs",
                            d9d_dataset_dir(datasets[0]), d9d_dataset_dir(datasets[i]));
        s->pairs = pairs;
    }
    return D9D_OK;
}

static d9d_task_answers scoring_answers(void *self)
{
    return ((const scoring *)self)->pairs ? D9D_TASK_ANSWERS_PAIRS : D9D_TASK_ANSWERS_NONE;
}

/* A line is a sample. */
static d9d_status scoring_check(void *self, const d9d_batch *b)
{
    const int64_t width = ((const scoring *)self)->pairs ? 2 : 1, n = d9d_batch_count_documents(b);

    return n == width * b->seqs
               ? D9D_OK
               : D9D_FAIL(D9D_EMISMATCH,
                          "samples %lld and on: %lld text%s in %lld sample%s, and a line is %s; "
                          "packed or skipped samples have none",
                          (long long)b->first, (long long)n, D9D_PLURAL(n), (long long)b->seqs,
                          D9D_PLURAL(b->seqs), width == 2 ? "one pair" : "one text");
}

/* Scores [M, 1] as a row for each sample: [M, 1], or [M / 2, 2] of pairs. */
static d9d_status scoring_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                  d9d_model_out *out)
{
    scoring *s = self;
    d9d_var *scores, *side[2];
    int64_t n;

    D9D_TRY(scores_make(m, t, in, out, &scores));
    if (scores == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_cast(t, scores, D9D_F32, &scores));
    n = d9d_tensor_numel(d9d_var_tensor(scores));
    if (s->pairs) {
        D9D_TRY(d9d_op_reshape(t, scores, D9D_SHAPE(1, n), &scores));
        for (int64_t i = 0; i < 2; i++)
            D9D_TRY(take_side(t, scores, i, &side[i]));
        D9D_TRY(d9d_op_concat(t, (d9d_op_concat_input[]){{side[0], 0, 1}, {side[1], 0, 1}}, 2,
                              D9D_SHAPE(n / 2, 2), &scores));
    }
    s->values = (d9d_model_columns){.v = scores};
    out->values = &s->values;
    out->n_values = 1;
    return D9D_OK;
}

static d9d_status put_score(d9d_buf *b, const char *name, double v)
{
    D9D_TRY(d9d_buf_printf(b, ", \"%s\": ", name));
    return d9d_json_put_f64(b, v);
}

/* {"sample": 0, "score": 1.5}; of a pair {"sample": 0, "chosen": 1.5, "rejected": 0.25, "margin":
 * 1.25} */
static d9d_status scoring_row(const void *config, const d9d_infer_task_row *x, d9d_buf *b)
{
    const float *v = x->values;

    (void)config;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, ", \"dataset\": %d", x->dataset));
    if (x->length == 0)
        return d9d_buf_printf(b, ", \"score\": null}\n");
    if (x->width == 1) {
        D9D_TRY(put_score(b, "score", (double)v[0]));
    } else {
        D9D_TRY(put_score(b, "chosen", (double)v[0]));
        D9D_TRY(put_score(b, "rejected", (double)v[1]));
        D9D_TRY(put_score(b, "margin", (double)v[0] - (double)v[1]));
    }
    return d9d_buf_printf(b, "}\n");
}

static const d9d_key infer_keys[] = {
    D9D_KEY_STR(d9d_job_output_section, output, D9D_REQUIRED, "JSONL file to write", .min = 1),
    D9D_KEY_END};
static const d9d_train_task body = {.size = sizeof(d9d_train_task),
                                    .table = &d9di_reward_infer_table,
                                    .open = scoring_open,
                                    .close = free,
                                    .head = reward_head,
                                    .extend = reward_extend,
                                    .forward = scoring_forward,
                                    .set_data = scoring_set_data,
                                    .check = scoring_check,
                                    .pooling = reward_pooling,
                                    .answers = scoring_answers};
static const d9d_infer_task_kind infer = {.size = sizeof(d9d_infer_task_kind),
                                          .table = &d9di_reward_infer_table,
                                          .body = &body,
                                          .row = scoring_row};
const d9d_table d9di_reward_infer_table = {
    .name = "reward",
    .size = sizeof(d9d_job_output_section),
    .keys = infer_keys,
    .doc = "scores of a reward model: of pairs of answers, or of texts",
    .row = &infer};
