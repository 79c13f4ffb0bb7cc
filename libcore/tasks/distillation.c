/* distillation.c - a student and a frozen teacher.  See d9d/tasks/distillation.h.
 *
 * Over tensor-parallel ranks the rows of both are gathered, each rank has a part of the vocabulary,
 * and the loss of the first rank alone is trained: the backward of the collectives sums the
 * gradients of all (d9d/op/loss.h).
 */
#include "d9d/tasks/distillation.h"

#include <stdlib.h>

#include "d9d/op/loss.h"
#include "d9d/op/op.h"
#include "tasks/tasks.h"

#define CHUNK_ELEMENTS (INT64_C(1) << 26) /* of logits that exist at a time */

typedef d9d_distillation_section section;

/* What the divergence of a chunk is computed with, also when backward recomputes it; the same in
 * every forward.  The teacher may be the student without its adapters. */
typedef struct distillation {
    const section *c;
    d9d_block_vocab *student, *teacher; /* heads */
    d9d_comm *tp;
} distillation;

static d9d_status distillation_open(const void *config, void **self)
{
    distillation *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task: %zu bytes", sizeof(*d));
    d->c = config;
    *self = d;
    return D9D_OK;
}

/* --- the divergence ------------------------------------------------------------------------ */

/* Of the same head, where the teacher is the student without its adapters. */
static d9d_status teacher_logits(const distillation *d, d9d_tape *t, d9d_var *rows, d9d_var **y)
{
    d9d_status st;

    d9d_tape_begin_reference(t);
    st = d9d_block_vocab_local_logits(d->teacher, t, rows, y);
    d9d_tape_end_reference(t);
    return st;
}

/* Dropout of the head's adapter counts the rows of a chunk as the tokens that they are; NULL: none.
 */
static d9d_status student_logits(const distillation *d, d9d_tape *t, d9d_var *rows, d9d_var *tokens,
                                 d9d_var **y)
{
    d9d_status st;

    if (tokens != NULL)
        d9d_tape_begin_rows(t, d9d_var_tensor(tokens));
    st = d9d_block_vocab_local_logits(d->student, t, rows, y);
    d9d_tape_end_rows(t);
    return st;
}

/* Rows of both models [n, H], [n, H'] to losses [1, n]; with dropout the numbers of their tokens
 * [n]. */
static d9d_status chunk_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    const distillation *d = self;
    const int64_t n = d9d_var_tensor(in[0])->shape.dim[0];
    d9d_var *student, *teacher;

    (void)n_out;
    D9D_TRY(student_logits(d, t, in[0], n_in > 2 ? in[2] : NULL, &student));
    D9D_TRY(teacher_logits(d, t, in[1], &teacher));
    D9D_TRY(d9d_op_generalized_jsd(t, student, teacher, (float)d->c->beta, (float)d->c->temperature,
                                   d->tp, out));
    return d9d_op_reshape(t, *out, D9D_SHAPE(1, n), out);
}

/* Rows [first, first + n) of x [T, H]. */
static d9d_status take_rows(d9d_tape *t, d9d_var *x, int64_t first, int64_t n, d9d_var **y)
{
    const int64_t rows = d9d_var_tensor(x)->shape.dim[0], h = d9d_var_tensor(x)->shape.dim[1];

    *y = x;
    if (n == rows)
        return D9D_OK;
    D9D_TRY(d9d_op_reshape(t, x, D9D_SHAPE(1, rows * h), y));
    D9D_TRY(
        d9d_op_concat(t, &(d9d_op_concat_input){*y, first * h, n * h}, 1, D9D_SHAPE(1, n * h), y));
    return d9d_op_reshape(t, *y, D9D_SHAPE(n, h), y);
}

/* Numbers of the tokens [first, first + n). */
static d9d_status take_tokens(d9d_tape *t, const d9d_dropout_rng *rng, int64_t first, int64_t n,
                              d9d_var **y)
{
    d9d_tensor part = d9d_tensor_rows(&rng->token, first, n);
    const d9d_status st = d9d_tape_leaf(t, &part, false, y);

    d9d_tensor_release(&part);
    return st;
}

static int64_t head_columns(const d9d_block_vocab *b)
{
    int64_t v = 0;

    for (size_t i = 0; i < b->n_splits; i++)
        v += b->table[i]->local.data.shape.dim[0];
    return v;
}

static int64_t chunk_rows(const distillation *d)
{
    const int64_t v = head_columns(d->student), fit = v > 0 ? CHUNK_ELEMENTS / v : 1;

    if (d->c->chunk_tokens != D9D_INT_NULL)
        return d->c->chunk_tokens;
    return fit > 0 ? fit : 1;
}

/* Losses [1, T] of rows [T, H] of both models, chunk by chunk. */
static d9d_status divergence(distillation *d, d9d_tape *t, d9d_var *student, d9d_var *teacher,
                             d9d_var **loss)
{
    const int64_t rows = d9d_var_tensor(student)->shape.dim[0], step = chunk_rows(d);
    const d9d_dropout_rng *rng = d9d_tape_dropout_rng(t);

    *loss = NULL;
    for (int64_t at = 0; at < rows; at += step) {
        const int64_t n = rows - at < step ? rows - at : step;
        d9d_var *in[3], *one;

        D9D_TRY(take_rows(t, student, at, n, &in[0]));
        D9D_TRY(take_rows(t, teacher, at, n, &in[1]));
        if (rng != NULL)
            D9D_TRY(take_tokens(t, rng, at, n, &in[2]));
        D9D_TRY(d9d_tape_recompute(t, chunk_forward, d, in, rng != NULL ? 3 : 2, &one, 1));
        if (at > 0) {
            const d9d_op_concat_input both[] = {{*loss, 0, at}, {one, 0, n}};

            D9D_TRY(d9d_op_concat(t, both, 2, D9D_SHAPE(1, at + n), &one));
        }
        *loss = one;
    }
    return D9D_OK;
}

/* --- the parts of the loss, [1, T] each ------------------------------------------------------ */

/* Rows of the hidden states, [T / tp, H] and, on every tp rank, [T, H]. */
static d9d_status hidden_rows(d9d_tape *t, d9d_var *hidden, d9d_comm *tp, d9d_var **local,
                              d9d_var **all)
{
    const d9d_shape *s = &d9d_var_tensor(hidden)->shape;
    const int64_t h = s->dim[s->ndim - 1];

    D9D_TRY(d9d_op_reshape(t, hidden, D9D_SHAPE(d9d_shape_numel(s) / h, h), local));
    return d9d_op_all_gather_rows(t, *local, tp, "hidden states", all);
}

/* *sum += weight x; *sum NULL: nothing so far. */
static d9d_status add_part(d9d_tape *t, d9d_var *x, double weight, d9d_var **sum)
{
    D9D_TRY(d9d_op_affine(t, x, (float)weight, 0, &x));
    if (*sum != NULL)
        D9D_TRY(d9d_op_add(t, *sum, x, &x));
    *sum = x;
    return D9D_OK;
}

/* Keeps the losses of positions with a target, on the first tp rank. */
static d9d_status mask_losses(d9d_tape *t, d9d_var *loss, const d9d_tensor *labels, d9d_comm *tp,
                              d9d_var **y)
{
    d9d_var *mask;

    D9D_TRY(d9d_tape_leaf(t, labels, false, &mask));
    D9D_TRY(d9d_op_reshape(t, mask, d9d_var_tensor(loss)->shape, &mask));
    D9D_TRY(d9d_op_ge(t, mask, 0.0f, &mask));
    D9D_TRY(d9d_op_affine(t, mask, d9d_comm_rank(tp) == 0 ? 1.0f : 0.0f, 0, &mask));
    return d9d_op_mul(t, loss, mask, y);
}

static d9d_status hidden_mse(d9d_tape *t, d9d_var *student, d9d_var *teacher, d9d_var **loss)
{
    d9d_var *error;

    D9D_TRY(d9d_op_mse(t, student, teacher, &error));
    D9D_TRY(d9d_op_mean(t, error, -1, &error));
    return d9d_op_reshape(t, error, D9D_SHAPE(1, d9d_var_tensor(error)->shape.dim[0]), loss);
}

/* The fused loss of targets, which each tp rank trains on. */
static d9d_status cross_entropy(const distillation *d, d9d_tape *t, d9d_var *local,
                                const d9d_model_in *in, d9d_var **loss)
{
    const int64_t tokens = d9d_tensor_numel(in->labels);
    d9d_tensor targets = d9d_tensor_reshape(in->labels, D9D_SHAPE(tokens));
    const d9d_status st =
        d9d_block_vocab_loss(d->student, t, local, &targets, D9D_IGNORE_INDEX, false, loss);

    d9d_tensor_release(&targets);
    D9D_TRY(st);
    return d9d_op_reshape(t, *loss, D9D_SHAPE(1, tokens), loss);
}

static d9d_status losses_make(distillation *d, d9d_tape *t, const d9d_model_in *in,
                              d9d_var *student, d9d_var **loss)
{
    const section *c = d->c;
    d9d_var *local, *rows, *taught, *unused, *x, *sum = NULL;

    D9D_TRY(hidden_rows(t, student, d->tp, &local, &rows));
    D9D_TRY(hidden_rows(t, in->reference->out.hidden, d->tp, &unused, &taught));
    if (c->divergence_weight > 0) {
        D9D_TRY(divergence(d, t, rows, taught, &x));
        D9D_TRY(add_part(t, x, c->divergence_weight, &sum));
    }
    if (c->hidden_weight > 0) {
        D9D_TRY(hidden_mse(t, rows, taught, &x));
        D9D_TRY(add_part(t, x, c->hidden_weight, &sum));
    }
    if (sum != NULL)
        D9D_TRY(mask_losses(t, sum, in->labels, d->tp, &sum));
    if (c->cross_entropy_weight > 0) {
        D9D_TRY(cross_entropy(d, t, local, in, &x));
        D9D_TRY(add_part(t, x, c->cross_entropy_weight, &sum));
    }
    *loss = sum;
    return d9d_model_call_lm_head_hook(in, d->student, local);
}

/* --- the task -------------------------------------------------------------------------- */

/* The two heads divide the vocabulary alike. */
static d9d_status heads_check(const distillation *d, const d9d_model *m, const d9d_model *teacher)
{
    bool same =
        d->student != NULL && d->teacher != NULL && d->student->n_splits == d->teacher->n_splits;

    for (size_t i = 0; same && i < d->student->n_splits; i++)
        same = d->student->table[i]->spec.shape.dim[0] == d->teacher->table[i]->spec.shape.dim[0];
    if (!same)
        return D9D_FAIL(D9D_ENOTSUP,
                        "task distillation: the heads of %s and its teacher %s are not of the same "
                        "tables",
                        m->ops->name, teacher->ops->name);
    if (d->c->hidden_weight > 0 && m->hidden != teacher->hidden)
        return D9D_FAIL(D9D_ECONFIG,
                        "task.hidden_weight: the hidden states of the teacher have %lld features, "
                        "those of the model %lld",
                        (long long)teacher->hidden, (long long)m->hidden);
    return D9D_OK;
}

static d9d_status distillation_forward(void *self, d9d_model *m, d9d_tape *t,
                                       const d9d_model_in *in, d9d_model_out *out)
{
    distillation *d = self;
    d9d_model_in plain = *in;

    plain.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    d->student = m->lm_head;
    d->teacher = in->reference->model->lm_head;
    d->tp = m->groups.tp;
    D9D_TRY(heads_check(d, m, in->reference->model));
    D9D_TRY(d9d_param_unit_unshard(&d->teacher->module, t));
    D9D_TRY(d9d_param_unit_unshard(&d->student->module, t));
    D9D_TRY(losses_make(d, t, in, out->hidden, &out->loss));
    D9D_TRY(d9d_param_unit_reshard(&d->student->module, t));
    return d9d_param_unit_reshard(&d->teacher->module, t);
}

static void distillation_reference(void *self, d9d_task_reference *out)
{
    *out = (d9d_task_reference){true, ((const distillation *)self)->c->teacher.checkpoint, false};
}

static d9d_status section_check(const void *value, const char *path)
{
    const section *c = value;

    if (!c->teacher.given)
        return D9D_FAIL(D9D_ECONFIG, "%s.teacher: null; who teaches is {\"checkpoint\": \"DIR\"}",
                        path);
    if (c->divergence_weight == 0 && c->hidden_weight == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: divergence_weight and hidden_weight are 0, so that nothing is learned "
                        "of the teacher",
                        path);
    return D9D_OK;
}

static const d9d_train_task task = {.size = sizeof(d9d_train_task),
                                    .table = &d9di_distillation_table,
                                    .open = distillation_open,
                                    .close = free,
                                    .forward = distillation_forward,
                                    .reference = distillation_reference,
                                    .no_logits = true};

static const d9d_key keys[] = {
    D9D_KEY_CUSTOM(section, teacher, D9D_REQUIRED, &d9di_task_reference_key_kind,
                   "the frozen model: {\"checkpoint\": \"DIR\"}, a model folder, or \"start\", the "
                   "weights that the run begins with"),
    D9D_KEY_REAL(section, beta, "0", 0, 1,
                 "of the divergence: 0 forward KL, 1 reverse KL, between them Jensen-Shannon",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, temperature, "1", 0, 1e6, "what both models' logits are divided by",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(section, divergence_weight, "1", 0, 1e6, "of the divergence",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, cross_entropy_weight, "0", 0, 1e6, "of the targets' cross entropy",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(section, hidden_weight, "0", 0, 1e6,
                 "of the mean squared difference of hidden states", .flags = D9D_FLOAT32),
    D9D_KEY_INT(section, chunk_tokens, "null", 1, INT64_MAX,
                "tokens whose logits exist at a time; null: as many as have 2^26 logits",
                .flags = D9D_NULLABLE),
    D9D_KEY_END,
};

const d9d_table d9di_distillation_table = {.name = "distillation",
                                           .size = sizeof(section),
                                           .keys = keys,
                                           .doc = "what a frozen teacher predicts",
                                           .check = section_check,
                                           .row = &task};
