/* preference.c - preference training and reward models.  See d9d/tasks/preference.h. */
#include "d9d/tasks/preference.h"

#include "d9d/op/loss.h"
#include "d9d/op/op.h"
#include "tasks/tasks.h"

typedef d9d_preference_section section;

/* What the losses are made of; [M, 1] each, of M records. */
typedef struct preference_answers {
    d9d_var *chosen, *rejected;                          /* log-probabilities, as sums or means */
    d9d_var *chosen_ref, *rejected_ref;                  /* the reference's; NULL: none */
    d9d_var *mismatched, *mismatched_ref;                /* of single answers */
    d9d_var *has_chosen, *has_rejected, *has_mismatched; /* 1 or 0 */
    d9d_var *counts;                                     /* of records */
    d9d_var *kl;                                         /* [1], set by kto; NULL: none */
} preference_answers;

typedef struct preference_loss {
    bool reference, means, single;
    d9d_status (*run)(d9d_tape *t, const section *c, preference_answers *a, d9d_var **loss);
} preference_loss;

/* --- losses of records ------------------------------------------------------------------- */

/* (c - c') - (r - r'), or c - r without a reference. */
static d9d_status margin_make(d9d_tape *t, const preference_answers *a, d9d_var **y)
{
    d9d_var *ref;

    D9D_TRY(d9d_op_sub(t, a->chosen, a->rejected, y));
    if (a->chosen_ref == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_sub(t, a->chosen_ref, a->rejected_ref, &ref));
    return d9d_op_sub(t, *y, ref, y);
}

static d9d_status dpo_run(d9d_tape *t, const section *c, preference_answers *a, d9d_var **loss)
{
    d9d_var *margin;

    D9D_TRY(margin_make(t, a, &margin));
    return d9d_op_dpo(t, margin, (float)c->beta, (float)c->label_smoothing, loss);
}

static d9d_status ipo_run(d9d_tape *t, const section *c, preference_answers *a, d9d_var **loss)
{
    d9d_var *margin;

    D9D_TRY(margin_make(t, a, &margin));
    return d9d_op_ipo(t, margin, (float)c->beta, loss);
}

static d9d_status simpo_run(d9d_tape *t, const section *c, preference_answers *a, d9d_var **loss)
{
    d9d_var *margin;

    D9D_TRY(margin_make(t, a, &margin));
    return d9d_op_simpo(t, margin, (float)c->beta, (float)c->gamma, (float)c->label_smoothing,
                        loss);
}

/* An absent answer has the mean 0, whose odds are infinite: it gets another one. */
static d9d_status present_or_one(d9d_tape *t, d9d_var *x, d9d_var *counts, d9d_var **y)
{
    d9d_var *rest;

    D9D_TRY(d9d_op_affine(t, counts, 1.0f, -1.0f, &rest));
    return d9d_op_where(t, counts, x, rest, y);
}

static d9d_status orpo_run(d9d_tape *t, const section *c, preference_answers *a, d9d_var **loss)
{
    d9d_var *chosen, *rejected;

    D9D_TRY(present_or_one(t, a->chosen, a->counts, &chosen));
    D9D_TRY(present_or_one(t, a->rejected, a->counts, &rejected));
    return d9d_op_orpo(t, chosen, rejected, (float)c->beta, loss);
}

/* The mean log-ratio of the mismatched answers, at least 0, without gradient. */
static d9d_status kl_make(d9d_tape *t, preference_answers *a)
{
    d9d_var *ratio, *n;

    D9D_TRY(d9d_op_sub(t, a->mismatched, a->mismatched_ref, &ratio));
    D9D_TRY(d9d_op_detach(t, ratio, &ratio));
    D9D_TRY(d9d_op_mul(t, ratio, a->has_mismatched, &ratio));
    D9D_TRY(d9d_op_sum(t, ratio, D9D_DIM_ALL, &ratio));
    D9D_TRY(d9d_op_sum(t, a->has_mismatched, D9D_DIM_ALL, &n));
    D9D_TRY(d9d_op_clamp(t, n, 1.0f, 1e30f, &n));
    D9D_TRY(d9d_op_div(t, ratio, n, &ratio));
    D9D_TRY(d9d_op_relu(t, ratio, &ratio));
    return d9d_op_reshape(t, ratio, D9D_SHAPE(1), &a->kl);
}

/* One side of kto: answers of this sign, times their weight. */
static d9d_status kto_side(d9d_tape *t, const section *c, const preference_answers *a, bool chosen,
                           d9d_var **loss)
{
    const float weight = (float)(chosen ? c->desirable_weight : c->undesirable_weight);
    d9d_var *ratio, *present = chosen ? a->has_chosen : a->has_rejected, *sign;

    D9D_TRY(d9d_op_sub(t, chosen ? a->chosen : a->rejected,
                       chosen ? a->chosen_ref : a->rejected_ref, &ratio));
    D9D_TRY(d9d_op_affine(t, present, 0.0f, chosen ? 1.0f : -1.0f, &sign));
    D9D_TRY(d9d_op_kto(t, ratio, a->kl, sign, (float)c->beta, loss));
    D9D_TRY(d9d_op_affine(t, *loss, weight, 0, loss));
    return d9d_op_mul(t, *loss, present, loss);
}

static d9d_status kto_run(d9d_tape *t, const section *c, preference_answers *a, d9d_var **loss)
{
    d9d_var *desirable, *undesirable;

    D9D_TRY(kl_make(t, a));
    D9D_TRY(kto_side(t, c, a, true, &desirable));
    D9D_TRY(kto_side(t, c, a, false, &undesirable));
    return d9d_op_add(t, desirable, undesirable, loss);
}

static const char *const loss_names[] = {"dpo", "ipo", "kto", "orpo", "simpo", NULL};
static const preference_loss losses[] = {{.reference = true, .run = dpo_run},
                                         {.reference = true, .means = true, .run = ipo_run},
                                         {.reference = true, .single = true, .run = kto_run},
                                         {.means = true, .run = orpo_run},
                                         {.means = true, .run = simpo_run}};

static const preference_loss *loss_of(const section *c)
{
    return &losses[c->loss];
}

/* --- the answers of a micro-batch --------------------------------------------------------- */

/* Documents of a record. */
static int64_t record_width(const section *c)
{
    return loss_of(c)->single ? 4 : 2;
}

/* Column k of x [N, 1], seen as [N / width, width]. */
static d9d_status take_answer(d9d_tape *t, d9d_var *x, int64_t width, int64_t k, d9d_var **y)
{
    const int64_t m = d9d_tensor_numel(d9d_var_tensor(x)) / width;

    D9D_TRY(d9d_op_reshape(t, x, D9D_SHAPE(m, width), &x));
    return d9d_op_concat(t, &(d9d_op_concat_input){x, k, 1}, 1, D9D_SHAPE(m, 1), y);
}

/* Log-probabilities of documents [N, 1], from losses of tokens. */
static d9d_status document_log_probs(const d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                     d9d_var *loss, d9d_var **y)
{
    D9D_TRY(d9d_op_reshape(t, loss, in->ids->shape, &loss));
    return d9d_op_sequence_log_probs(t, loss, in->documents, m->groups.cp, y);
}

/* Means over the targets of each document; *x NULL: there are none. */
static d9d_status means_make(d9d_tape *t, const d9d_op_document_index *documents, d9d_var **x)
{
    d9d_var *targets;

    if (*x == NULL)
        return D9D_OK;
    D9D_TRY(d9d_tape_leaf(t, &documents->targets, false, &targets));
    return d9d_op_div(t, *x, targets, x);
}

static d9d_status take_answers(const section *c, d9d_tape *t, d9d_var *own, d9d_var *ref,
                               d9d_var *present, preference_answers *a)
{
    const int64_t width = record_width(c);
    const struct {
        d9d_var *from, **to;
        int64_t k;
    } rows[] = {{own, &a->chosen, 0},
                {own, &a->rejected, 1},
                {own, &a->mismatched, 2},
                {ref, &a->chosen_ref, 0},
                {ref, &a->rejected_ref, 1},
                {ref, &a->mismatched_ref, 2},
                {present, &a->has_chosen, 0},
                {present, &a->has_rejected, 1},
                {present, &a->has_mismatched, 2}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].from != NULL && rows[i].k < width)
            D9D_TRY(take_answer(t, rows[i].from, width, rows[i].k, rows[i].to));
    return D9D_OK;
}

/* Log-probabilities of all documents: `own` and, with a reference, `ref`. */
static d9d_status log_probs_make(const section *c, const d9d_model *m, d9d_tape *t,
                                 const d9d_model_in *in, d9d_var *loss, d9d_var **own,
                                 d9d_var **ref)
{
    *ref = NULL;
    D9D_TRY(document_log_probs(m, t, in, loss, own));
    return loss_of(c)->reference ? document_log_probs(m, t, in, in->reference->out.loss, ref)
                                 : D9D_OK;
}

static d9d_status answers_make(const section *c, d9d_tape *t,
                               const d9d_op_document_index *documents, bool means, d9d_var *own,
                               d9d_var *ref, preference_answers *a)
{
    d9d_var *present;

    *a = (preference_answers){.chosen = NULL};
    if (means) {
        D9D_TRY(means_make(t, documents, &own));
        D9D_TRY(means_make(t, documents, &ref));
    }
    D9D_TRY(d9d_tape_leaf(t, &documents->counts, false, &present));
    D9D_TRY(d9d_tape_leaf(t, &documents->records, false, &a->counts));
    return take_answers(c, t, own, ref, present, a);
}

/* beta (x - x'), or beta x, without gradient. */
static d9d_status reward_make(d9d_tape *t, const section *c, d9d_var *x, d9d_var *ref, d9d_var **y)
{
    D9D_TRY(d9d_op_detach(t, x, y));
    if (ref != NULL)
        D9D_TRY(d9d_op_sub(t, *y, ref, y));
    return d9d_op_affine(t, *y, (float)c->beta, 0, y);
}

/* The columns of the metric "rewards". */
static d9d_status predictions_make(d9d_tape *t, const section *c, const preference_answers *a,
                                   d9d_var **y)
{
    d9d_var *x[D9DI_ANSWERS_COLUMNS];

    D9D_TRY(reward_make(t, c, a->chosen, a->chosen_ref, &x[0]));
    D9D_TRY(reward_make(t, c, a->rejected, a->rejected_ref, &x[1]));
    D9D_TRY(d9d_op_detach(t, a->chosen, &x[2]));
    D9D_TRY(d9d_op_detach(t, a->rejected, &x[3]));
    x[4] = a->has_chosen;
    x[5] = a->has_rejected;
    D9D_TRY(d9d_op_affine(t, a->counts, 0, 0, &x[6]));
    if (a->kl != NULL)
        D9D_TRY(d9d_op_add(t, x[6], a->kl, &x[6]));
    return d9di_answers_columns(t, x, y);
}

/* --- the task -------------------------------------------------------------------------- */

static d9d_status preference_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                     d9d_model_out *out)
{
    const section *c = self;
    const bool means = loss_of(c)->means;
    d9d_model_in plain = *in;
    preference_answers a, reported;
    d9d_var *own, *ref;

    plain.loss_is_root = false;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    D9D_TRY(log_probs_make(c, m, t, in, out->loss, &own, &ref));
    D9D_TRY(answers_make(c, t, in->documents, means, own, ref, &a));
    D9D_TRY(loss_of(c)->run(t, c, &a, &out->loss));
    D9D_TRY(d9d_op_mul(t, out->loss, a.counts, &out->loss));
    out->labels = &in->documents->labels;
    reported = a;
    if (means && ref != NULL) /* rewards beside a reference are of sums, as in TRL */
        D9D_TRY(answers_make(c, t, in->documents, false, own, ref, &reported));
    return predictions_make(t, c, &reported, &out->logits);
}

static int64_t preference_targets(void *self, const d9d_batch *b)
{
    return d9di_answers_count(
        b, loss_of(self)->single ? D9D_TASK_ANSWERS_SINGLE : D9D_TASK_ANSWERS_PAIRS, -1);
}

static d9d_status preference_check(void *self, const d9d_batch *b)
{
    return d9di_answers_check(b, record_width(self));
}

static void preference_reference(void *self, d9d_task_reference *out)
{
    const section *c = self;

    *out = (d9d_task_reference){loss_of(c)->reference, c->reference.checkpoint, true};
}

static d9d_task_answers preference_answers_of(void *self)
{
    return loss_of(self)->single ? D9D_TASK_ANSWERS_SINGLE : D9D_TASK_ANSWERS_PAIRS;
}

static const char *preference_micro_batch_term(void *self)
{
    return loss_of(self)->single ? "the KL of kto" : NULL;
}

static d9d_status section_check(const void *value, const char *path)
{
    const section *c = value;

    if (c->reference.given && !loss_of(c)->reference)
        return D9D_FAIL(D9D_ECONFIG, "%s.reference: the loss \"%s\" has none", path,
                        loss_names[c->loss]);
    return D9D_OK;
}

static const d9d_train_task preference = {.size = sizeof(d9d_train_task),
                                          .table = &d9di_preference_table,
                                          .forward = preference_forward,
                                          .targets = preference_targets,
                                          .check = preference_check,
                                          .reference = preference_reference,
                                          .answers = preference_answers_of,
                                          .micro_batch_term = preference_micro_batch_term};

static const d9d_key preference_keys[] = {
    D9D_KEY_ENUM(section, loss, "\"dpo\"", loss_names,
                 "of pairs, but kto, which is of single answers"),
    D9D_KEY_REAL(section, beta, "0.1", 0, 1e6, "strength of a preference; simpo's is about 2",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(section, label_smoothing, "0", 0, 0.5,
                 "of dpo and simpo: the share of pairs that are the wrong way round",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, gamma, "0.5", 0, 1e6, "of simpo: the margin that is asked for",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, desirable_weight, "1", 0, 1e6, "of kto", .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, undesirable_weight, "1", 0, 1e6, "of kto", .flags = D9D_FLOAT32),
    D9D_KEY_CUSTOM(section, reference, "null", &d9di_task_reference_key_kind,
                   "the frozen model of dpo, ipo and kto: \"start\", as null, the weights that the "
                   "run begins with, or {\"checkpoint\": \"DIR\"}, a model folder"),
    D9D_KEY_END,
};

const d9d_table d9di_preference_table = {.name = "preference",
                                         .size = sizeof(section),
                                         .keys = preference_keys,
                                         .doc = "answers that are preferred to others",
                                         .check = section_check,
                                         .row = &preference};
