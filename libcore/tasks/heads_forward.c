/* heads_forward.c - losses of several heads.  See d9d/tasks/heads.h.
 *
 *     hidden [B, S, H] --pool--> [M, H] --dropout, matrix--> logits --loss--> [M, 1] --mask--> sum
 *
 * The mask is what the pooling makes of ones: 1 for a text with positions on the rank that has its
 * row, else 0.  Rows of tokens are gathered over tensor-parallel ranks, and the first rank's losses
 * alone are trained: the backward of the gather sums the gradients of all.
 */
#include "tasks/heads_forward.h"

#include <math.h>

#include "d9d/op/loss.h"
#include "d9d/op/op.h"
#include "tasks/absent_values.h"
#include "tasks/tasks.h"

/* A micro-batch, while its losses are made. */
typedef struct heads_pass {
    d9di_heads *h;
    d9d_model *m;
    d9d_tape *t;
    const d9d_model_in *in;
    d9d_var *texts, *tokens; /* rows of the pooled texts [M, H]; of tokens [T / tp, H] */
    d9d_var *text_mask;      /* [M, 1] */
    d9d_var *lm_loss;        /* [T] */
    d9d_var *all;            /* targets of all heads in the step; NULL: not known */
} heads_pass;

/* --- rows ------------------------------------------------------------------------------------- */

static d9d_status texts_make(heads_pass *p, d9d_var *hidden)
{
    D9D_TRY(d9d_model_pool(p->m, p->t, hidden, p->in->pool, &p->texts));
    return d9d_model_pool_mask(p->m, p->t, p->in->pool, &p->text_mask);
}

/* 1 on the first of the ranks that have equal rows of tokens, [1]. */
static float replica_factor(const heads_pass *p)
{
    return d9d_comm_rank(p->m->groups.tp) == 0 ? 1.0f : 0.0f;
}

static d9d_status tokens_make(heads_pass *p, d9d_var *hidden)
{
    const int64_t h = p->m->hidden;

    return d9d_op_reshape(p->t, hidden, D9D_SHAPE(d9d_tensor_numel(d9d_var_tensor(hidden)) / h, h),
                          &p->tokens);
}

/* --- logits ------------------------------------------------------------------------------------
 */

/* x W^T + b of rows that dropout has thinned. */
static d9d_status matrix_forward(const heads_pass *p, const d9di_heads_head *h, d9d_var *rows,
                                 d9d_var **y)
{
    d9d_block_linear *w = d9d_model_find_linear(p->m, h->matrix);
    d9d_param *bias = d9d_model_find_bias(p->m, h->matrix);

    *y = rows;
    if (w == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_dropout(
        p->t, rows,
        &(d9d_op_dropout_opts){.p = (float)h->c->classifier_dropout,
                               .site = &w->weight,
                               .rows = h->kind->pooled ? &p->in->pool->number : NULL},
        &rows));
    D9D_TRY(d9d_param_unit_unshard(&w->module, p->t));
    D9D_TRY(h->kind->pooled ? d9di_task_linear_of_texts(p->t, p->in->pool, rows, &w->weight, y)
                            : d9d_op_linear(p->t, rows, &w->weight, y));
    if (bias != NULL)
        D9D_TRY(d9d_op_add_bias(p->t, *y, bias, 0, y));
    return d9d_param_unit_reshard(&w->module, p->t);
}

static d9d_status logits_make(const heads_pass *p, const d9di_heads_head *h, d9d_var **y)
{
    D9D_TRY(matrix_forward(p, h, h->kind->pooled ? p->texts : p->tokens, y));
    return h->kind->pooled ? D9D_OK
                           : d9d_op_all_gather_rows(p->t, *y, p->m->groups.tp, h->matrix, y);
}

/* --- losses ------------------------------------------------------------------------------------
 */

/* A field's values as a leaf [rows, columns]. */
static d9d_status field_leaf(const heads_pass *p, const char *name, int64_t columns, d9d_var **y)
{
    const d9d_tensor *v = &d9d_model_find_field(p->in, name)->value;

    D9D_TRY(d9d_tape_leaf(p->t, v, false, y));
    return d9d_op_reshape(p->t, *y, D9D_SHAPE(d9d_tensor_numel(v) / columns, columns), y);
}

/* Losses of classes; the mask becomes that of rows with one. */
static d9d_status classes_loss(const heads_pass *p, const d9di_heads_head *h, d9d_var *logits,
                               const d9d_tensor *labels, d9d_var **loss, d9d_var **mask)
{
    const int64_t rows = d9d_tensor_numel(labels);
    d9d_tensor targets = d9d_tensor_reshape(labels, D9D_SHAPE(rows));
    const d9d_status st =
        d9d_op_cross_entropy(p->t, logits, &targets, (float)h->c->label_smoothing, loss);
    d9d_var *have;

    d9d_tensor_release(&targets);
    D9D_TRY(st);
    D9D_TRY(d9d_tape_leaf(p->t, labels, false, &have));
    D9D_TRY(d9d_op_reshape(p->t, have, D9D_SHAPE(rows, 1), &have));
    D9D_TRY(d9d_op_ge(p->t, have, 0.0f, &have));
    return *mask != NULL ? d9d_op_mul(p->t, *mask, have, mask) : (*mask = have, D9D_OK);
}

/* Losses of values; the mask becomes that of rows whose values are all there. */
static d9d_status values_loss(const heads_pass *p, const d9di_heads_head *h,
                              d9d_model_head_out *out, d9d_var **loss, d9d_var **mask)
{
    d9d_var *logits = out->logits, *target;
    const int64_t columns = d9d_var_tensor(logits)->shape.dim[1];

    if (h->c->metrics.n > 0)
        out->labels = &d9d_model_find_field(p->in, h->c->label)->value;
    D9D_TRY(field_leaf(p, h->c->label, columns, &target));
    D9D_TRY(d9di_absent_values_mask(p->t, columns, &target, mask));
    switch (h->loss) {
    case D9D_HEADS_SOFT_CROSS_ENTROPY: return d9d_op_soft_cross_entropy(p->t, logits, target, loss);
    case D9D_HEADS_BCE: D9D_TRY(d9d_op_bce_with_logits(p->t, logits, target, loss)); break;
    case D9D_HEADS_L1: D9D_TRY(d9d_op_l1(p->t, logits, target, loss)); break;
    case D9D_HEADS_HUBER: D9D_TRY(d9d_op_huber(p->t, logits, target, 1.0f, loss)); break;
    default: D9D_TRY(d9d_op_mse(p->t, logits, target, loss)); break;
    }
    return d9d_op_mean(p->t, *loss, -1, loss);
}

/* InfoNCE [P] as [P, 1], and its mask. */
static d9d_status pairs_loss(const heads_pass *p, const d9di_heads_head *h, d9d_var *rows,
                             d9d_var **loss, d9d_var **mask)
{
    const d9d_tensor *labels = &p->in->pool->labels;
    const d9d_shape shape = D9D_SHAPE(d9d_tensor_numel(labels), 1);

    D9D_TRY(d9d_op_info_nce(p->t, rows, (float)h->c->temperature, labels, D9D_IGNORE_INDEX, loss));
    D9D_TRY(d9d_op_reshape(p->t, *loss, shape, loss));
    D9D_TRY(d9d_tape_leaf(p->t, labels, false, mask));
    D9D_TRY(d9d_op_reshape(p->t, *mask, shape, mask));
    return d9d_op_ge(p->t, *mask, 0.0f, mask);
}

/* The model's own losses [T, 1], and those that count here. */
static d9d_status lm_loss(const heads_pass *p, d9d_var **loss, d9d_var **mask)
{
    const d9d_shape shape = D9D_SHAPE(d9d_tensor_numel(d9d_var_tensor(p->lm_loss)), 1);

    D9D_TRY(d9d_op_reshape(p->t, p->lm_loss, shape, loss));
    D9D_TRY(d9d_tape_leaf(p->t, p->in->labels, false, mask));
    D9D_TRY(d9d_op_reshape(p->t, *mask, shape, mask));
    return d9d_op_ge(p->t, *mask, 0.0f, mask);
}

/* Losses [R, 1] of a head and the mask of its targets [R, 1]. */
static d9d_status losses_make(const heads_pass *p, const d9di_heads_head *h,
                              d9d_model_head_out *out, d9d_var **loss, d9d_var **mask)
{
    *mask = h->kind->pooled ? p->text_mask : NULL;
    if (h->c->kind == D9D_HEADS_CAUSAL_LM)
        return lm_loss(p, loss, mask);
    D9D_TRY(logits_make(p, h, &out->logits));
    if (h->loss == D9D_HEADS_INFO_NCE)
        return pairs_loss(p, h, out->logits, loss, mask);
    if (!d9di_heads_loss_is_of_classes(h->loss))
        return values_loss(p, h, out, loss, mask);
    out->labels = h->c->label != NULL ? &d9d_model_find_field(p->in, h->c->label)->value
                                      : &p->in->pool->labels;
    return classes_loss(p, h, out->logits, out->labels, loss, mask);
}

/* weight_h N / N_h, where N are the targets of all heads, by which the trainer divides. */
static d9d_status scale_loss(const heads_pass *p, size_t i, d9d_var *sum, d9d_var **y)
{
    const double weight = p->h->head[i].c->weight;
    d9d_tensor own;
    d9d_var *n;

    D9D_TRY(d9d_op_affine(p->t, sum, (float)weight, 0, y));
    if (p->all == NULL)
        return D9D_OK;
    own = d9d_tensor_rows(p->in->part_targets, (int64_t)i, 1);
    {
        const d9d_status st = d9d_tape_leaf(p->t, &own, false, &n);

        d9d_tensor_release(&own);
        D9D_TRY(st);
    }
    D9D_TRY(d9d_op_clamp(p->t, n, 1.0f, INFINITY, &n));
    D9D_TRY(d9d_op_div(p->t, p->all, n, &n));
    return d9d_op_mul(p->t, *y, n, y);
}

/* The sum of a head's losses as a part of the step's loss, [1]. */
static d9d_status head_loss(heads_pass *p, size_t i, d9d_var **y)
{
    const d9di_heads_head *h = &p->h->head[i];
    d9d_model_head_out *out = &p->h->out[i];
    d9d_var *loss, *mask, *mean;

    *out = (d9d_model_head_out){.logits = NULL};
    D9D_TRY(losses_make(p, h, out, &loss, &mask));
    if (h->c->loss_weights != NULL) {
        D9D_TRY(field_leaf(p, h->c->loss_weights, 1, &mean));
        D9D_TRY(d9di_absent_values_mask(p->t, 1, &mean, &mask));
        D9D_TRY(d9d_op_mul(p->t, loss, mean, &loss));
    }
    D9D_TRY(d9d_op_mul(p->t, loss, mask, &loss));
    if (h->c->kind == D9D_HEADS_TOKEN_CLASSIFICATION)
        D9D_TRY(d9d_op_affine(p->t, loss, replica_factor(p), 0, &loss));
    D9D_TRY(d9d_op_sum(p->t, loss, D9D_DIM_ALL, &loss));
    D9D_TRY(d9d_op_reshape(p->t, loss, D9D_SHAPE(1), &loss));
    out->mask = mask;
    D9D_TRY(d9d_op_sum(p->t, mask, D9D_DIM_ALL, &out->count));
    D9D_TRY(d9d_op_reshape(p->t, out->count, D9D_SHAPE(1, 1), &out->count));
    D9D_TRY(d9d_op_clamp(p->t, out->count, 1.0f, INFINITY, &mean));
    D9D_TRY(d9d_op_div(p->t, loss, mean, &out->mean_loss));
    return scale_loss(p, i, loss, y);
}

static d9d_status losses_sum(heads_pass *p, d9d_model_out *out)
{
    d9d_var *sum = NULL, *one;

    if (p->in->part_targets != NULL) {
        D9D_TRY(d9d_tape_leaf(p->t, p->in->part_targets, false, &p->all));
        D9D_TRY(d9d_op_sum(p->t, p->all, -1, &p->all));
    }
    for (size_t i = 0; i < p->h->n; i++) {
        D9D_TRY(head_loss(p, i, &one));
        if (sum != NULL)
            D9D_TRY(d9d_op_add(p->t, sum, one, &one));
        sum = one;
    }
    out->loss = sum;
    out->heads = p->h->out;
    out->n_heads = p->h->n;
    return D9D_OK;
}

/* --- inference ---------------------------------------------------------------------------------
 */

/* The outputs of all heads side by side, [M, sum of outputs]. */
static d9d_status values_make(heads_pass *p, d9d_model_out *out)
{
    d9d_op_concat_input part[D9D_HEADS_MAX];
    int64_t columns = 0;

    for (size_t i = 0; i < p->h->n; i++) {
        D9D_TRY(matrix_forward(p, &p->h->head[i], p->texts, &part[i].x));
        D9D_TRY(d9d_op_cast(p->t, part[i].x, D9D_F32, &part[i].x));
        part[i].first = 0;
        part[i].n = d9d_var_tensor(part[i].x)->shape.dim[1];
        columns += part[i].n;
    }
    p->h->columns = (d9d_model_columns){.v = part[0].x};
    if (p->h->n > 1)
        D9D_TRY(d9d_op_concat(p->t, part, p->h->n,
                              D9D_SHAPE(d9d_var_tensor(p->texts)->shape.dim[0], columns),
                              &p->h->columns.v));
    out->values = &p->h->columns;
    out->n_values = 1;
    return D9D_OK;
}

/* --- forward -----------------------------------------------------------------------------------
 */

static bool has_kind(const d9di_heads *h, bool pooled)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->head[i].c->kind != D9D_HEADS_CAUSAL_LM && h->head[i].kind->pooled == pooled)
            return true;
    return false;
}

d9d_status d9di_heads_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                              d9d_model_out *out)
{
    heads_pass p = {.h = self, .m = m, .t = t, .in = in};
    d9d_model_in plain = *in;

    plain.loss_is_root = false;
    if (d9di_heads_find_lm(p.h) == NULL)
        plain.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &plain, out));
    if (!d9d_stage_is_last(m->stage))
        return D9D_OK;
    p.lm_loss = out->loss;
    if (has_kind(p.h, true))
        D9D_TRY(texts_make(&p, out->hidden));
    if (has_kind(p.h, false))
        D9D_TRY(tokens_make(&p, out->hidden));
    return d9di_heads_is_inference(p.h) ? values_make(&p, out) : losses_sum(&p, out);
}
