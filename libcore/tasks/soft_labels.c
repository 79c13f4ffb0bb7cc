/* soft_labels.c - see tasks/soft_labels.h. */
#include "tasks/soft_labels.h"

#include "d9d/op/loss.h"
#include "d9d/op/op.h"

#define CHUNK_ELEMENTS (INT64_C(1) << 26) /* of rows of the head that exist at a time */

/* Inputs of a chunk: rows [n, H], next tokens [n], the sum of the head's rows [1, H] with label
 * smoothing, probabilities [n, K], ids [n, K]. */
enum { ROWS, NEXT, SUM, PROBABILITIES, IDS, INPUTS };

static int64_t vocab_of(const d9d_block_vocab *b)
{
    int64_t n = 0;

    for (size_t i = 0; i < b->n_splits; i++)
        n += b->table[i]->spec.shape.dim[0];
    return n;
}

/* --- logits [n, 1], of the part of the vocabulary that this rank has ----------------------------
 */

/* Logits [n, K] of ids [n, K], 0 for those of another rank or of none. */
static d9d_status logits_of_ids(const d9d_block_vocab *b, d9d_tape *t, d9d_var *rows, d9d_var *ids,
                                d9d_var **z)
{
    const d9d_shape *s = &d9d_var_tensor(rows)->shape;
    const int64_t n = s->dim[0], k = d9d_tensor_numel(d9d_var_tensor(ids)) / n;
    d9d_var *w;

    D9D_TRY(d9d_op_reshape(t, rows, D9D_SHAPE(n, 1, s->dim[1]), &rows));
    D9D_TRY(d9d_op_embedding(t, d9d_var_tensor(ids), b->table, b->n_splits, &w));
    D9D_TRY(d9d_op_reshape(t, w, D9D_SHAPE(n, k, s->dim[1]), &w));
    D9D_TRY(d9d_op_mul(t, rows, w, &w));
    D9D_TRY(d9d_op_sum(t, w, -1, z));
    D9D_TRY(d9d_op_reshape(t, *z, D9D_SHAPE(n, k), z));
    return b->softcap > 0 ? d9d_op_softcap(t, *z, b->softcap, z) : D9D_OK;
}

/* rows [n, H] times the sums [n or 1, H]: [n, 1]. */
static d9d_status dot(d9d_tape *t, d9d_var *rows, d9d_var *sums, d9d_var **y)
{
    D9D_TRY(d9d_op_mul(t, rows, sums, y));
    return d9d_op_sum(t, *y, -1, y);
}

/* The sum over tables of q W, q's columns [V] divided as the tables' rows. */
static d9d_status weighted_rows(const d9d_block_vocab *b, d9d_tape *t, d9d_var *q, d9d_var **y)
{
    const int64_t n = q != NULL ? d9d_var_tensor(q)->shape.dim[0] : 0;
    int64_t first = 0;
    d9d_var *part, *one;

    *y = NULL;
    for (size_t i = 0; i < b->n_splits; i++) {
        d9d_param *w = b->table[i];
        const int64_t rows = w->local.data.shape.dim[0];

        part = NULL;
        if (q != NULL) {
            D9D_TRY(d9d_op_concat(t, &(d9d_op_concat_input){q, first + w->local.offset[0], rows}, 1,
                                  D9D_SHAPE(n, rows), &part));
            D9D_TRY(d9d_op_cast(t, part, w->local.data.dtype, &part));
        }
        D9D_TRY(d9d_op_linear_transposed(t, part, w, &one));
        if (*y != NULL)
            D9D_TRY(d9d_op_add(t, *y, one, &one));
        *y = one;
        first += w->spec.shape.dim[0];
    }
    return D9D_OK;
}

/* Sum over v of q_v z_v. */
static d9d_status expected_logit(const d9di_soft_labels *s, d9d_tape *t, d9d_var *rows,
                                 d9d_var *const *in, d9d_var **y)
{
    d9d_var *z;

    if (s->ids == NULL) {
        D9D_TRY(weighted_rows(s->head, t, in[PROBABILITIES], &z));
        return dot(t, rows, z, y);
    }
    D9D_TRY(logits_of_ids(s->head, t, rows, in[IDS], &z));
    D9D_TRY(d9d_op_mul(t, z, in[PROBABILITIES], &z));
    return d9d_op_sum(t, z, -1, y);
}

/* --- the difference from the next token's loss ---------------------------------------------------
 */

/* s [n, 1], the sum of the target distribution. */
static d9d_status mass(const d9di_soft_labels *s, d9d_tape *t, d9d_var *q, d9d_var **y)
{
    const float soft = (1 - s->smoothing) * s->weight;

    D9D_TRY(d9d_op_sum(t, q, -1, y));
    return d9d_op_affine(t, *y, soft, 1 - soft, y);
}

/* s z_next less what next tokens have of the target: ((1 - e) w sum of q + e) z_next. */
static d9d_status next_logit(const d9di_soft_labels *s, d9d_tape *t, d9d_var *rows,
                             d9d_var *const *in, d9d_var **y)
{
    const float soft = (1 - s->smoothing) * s->weight;
    d9d_var *share;

    D9D_TRY(logits_of_ids(s->head, t, rows, in[NEXT], y));
    if (s->probabilities == NULL)
        return d9d_op_affine(t, *y, s->smoothing, 0, y);
    D9D_TRY(d9d_op_sum(t, in[PROBABILITIES], -1, &share));
    D9D_TRY(d9d_op_affine(t, share, soft, s->smoothing, &share));
    return d9d_op_mul(t, *y, share, y);
}

static d9d_status subtract(d9d_tape *t, d9d_var *x, float factor, d9d_var **sum)
{
    D9D_TRY(d9d_op_affine(t, x, factor, 0, &x));
    return d9d_op_sub(t, *sum, x, sum);
}

/* Inputs to [1, n]: loss - s CE(next), as far as this rank has the vocabulary. */
static d9d_status chunk_forward(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                d9d_var **out, size_t n_out)
{
    const d9di_soft_labels *s = self;
    d9d_var *rows, *sum, *z;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_cast(t, in[ROWS], D9D_F32, &rows));
    D9D_TRY(next_logit(s, t, rows, in, &sum));
    if (s->probabilities != NULL) {
        D9D_TRY(expected_logit(s, t, rows, in, &z));
        D9D_TRY(subtract(t, z, (1 - s->smoothing) * s->weight, &sum));
    }
    if (s->smoothing > 0) {
        D9D_TRY(dot(t, rows, in[SUM], &z));
        D9D_TRY(subtract(t, z, s->smoothing / (float)vocab_of(s->head), &sum));
    }
    return d9d_op_reshape(t, sum, D9D_SHAPE(1, d9d_var_tensor(in[ROWS])->shape.dim[0]), out);
}

/* --- chunks ------------------------------------------------------------------------------------
 */

/* The arrays that chunks are rows of; constants are not copied. */
typedef struct chunk_source {
    d9d_var *local, *rows, *sum;         /* [T / tp, H], [T, H], [1, H] */
    d9d_tensor next, probabilities, ids; /* [T], [T, K], [T, K]; borrowed storage */
} chunk_source;

static d9d_status leaf_rows(d9d_tape *t, const d9d_tensor *x, int64_t first, int64_t n, d9d_var **y)
{
    d9d_tensor part;
    d9d_status st;

    if (x->storage == NULL)
        return D9D_OK;
    part = d9d_tensor_rows(x, first, n);
    st = d9d_tape_leaf(t, &part, false, y);
    d9d_tensor_release(&part);
    return st;
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

static d9d_status chunk_run(d9di_soft_labels *s, d9d_tape *t, const chunk_source *c, int64_t first,
                            int64_t n, d9d_var **y)
{
    d9d_var *in[INPUTS];

    D9D_TRY(take_rows(t, c->rows, first, n, &in[ROWS]));
    in[SUM] = in[PROBABILITIES] = in[IDS] = in[ROWS]; /* where there are none */
    if (c->sum != NULL)
        in[SUM] = c->sum;
    D9D_TRY(leaf_rows(t, &c->next, first, n, &in[NEXT]));
    D9D_TRY(leaf_rows(t, &c->probabilities, first, n, &in[PROBABILITIES]));
    D9D_TRY(leaf_rows(t, &c->ids, first, n, &in[IDS]));
    return d9d_tape_recompute(t, chunk_forward, s, in, INPUTS, y, 1);
}

static int64_t chunk_rows(const d9di_soft_labels *s, const chunk_source *c)
{
    const int64_t h = d9d_var_tensor(c->rows)->shape.dim[1];
    const int64_t k = s->probabilities != NULL ? c->probabilities.shape.dim[1] : 1;
    const int64_t fit = CHUNK_ELEMENTS / (s->ids != NULL ? (k + 1) * h : k > h ? k : h);

    return fit > 0 ? fit : 1;
}

/* [1, T]. */
static d9d_status chunks_run(d9di_soft_labels *s, d9d_tape *t, const chunk_source *c, d9d_var **y)
{
    const int64_t rows = d9d_var_tensor(c->rows)->shape.dim[0], step = chunk_rows(s, c);

    *y = NULL;
    for (int64_t at = 0; at < rows; at += step) {
        const int64_t n = rows - at < step ? rows - at : step;
        d9d_var *one;

        D9D_TRY(chunk_run(s, t, c, at, n, &one));
        if (at > 0) {
            const d9d_op_concat_input both[] = {{*y, 0, at}, {one, 0, n}};

            D9D_TRY(d9d_op_concat(t, both, 2, D9D_SHAPE(1, at + n), &one));
        }
        *y = one;
    }
    return D9D_OK;
}

/* --- the loss ----------------------------------------------------------------------------------
 */

/* [1, T] of each rank's part of the vocabulary to their sum [T, 1], on the first of the ranks, for
 * the backward sums the gradients of all; 0 where no token is next. */
static d9d_status parts_sum(d9d_tape *t, d9d_var *parts, const d9d_tensor *next, d9d_comm *tp,
                            d9d_var **y)
{
    const int64_t n = d9d_tensor_numel(next);
    d9d_var *mask;

    D9D_TRY(d9d_op_all_gather_rows(t, parts, tp, "logits of soft labels", y));
    D9D_TRY(d9d_op_sum(t, *y, 0, y));
    D9D_TRY(d9d_op_reshape(t, *y, D9D_SHAPE(n, 1), y));
    D9D_TRY(d9d_tape_leaf(t, next, false, &mask));
    D9D_TRY(d9d_op_reshape(t, mask, D9D_SHAPE(n, 1), &mask));
    D9D_TRY(d9d_op_ge(t, mask, 0, &mask));
    D9D_TRY(d9d_op_affine(t, mask, d9d_comm_rank(tp) == 0 ? 1.0f : 0.0f, 0, &mask));
    return d9d_op_mul(t, *y, mask, y);
}

static d9d_status head_check(const d9di_soft_labels *s, const d9d_model *m)
{
    const d9d_block_vocab *b = s->head;

    if (b == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "task: soft labels and label smoothing need a model that tells "
                        "its head, and %s does not",
                        m->ops->name);
    if (b->bias != NULL || (b->softcap > 0 && (s->ids == NULL || s->smoothing > 0)))
        return D9D_FAIL(D9D_ENOTSUP, "task: the head of %s has %s: %s are not computed with it",
                        m->ops->name, b->bias != NULL ? "a bias" : "a softcap of logits",
                        b->bias == NULL && s->smoothing == 0 ? "soft labels of the whole vocabulary"
                                                             : "label smoothing and soft labels");
    return D9D_OK;
}

d9d_status d9di_soft_labels_extend(d9di_soft_labels *s, d9d_model *m)
{
    const bool sums_rows = s->smoothing > 0 || s->ids == NULL; /* d9d_op_linear_transposed() */

    if (!d9di_soft_labels_are_on(s) || !d9d_stage_is_last(m->stage))
        return D9D_OK;
    s->head = m->lm_head;
    D9D_TRY(head_check(s, m));
    for (size_t i = 0; i < s->head->n_splits; i++) {
        d9d_param_peft *peft = &s->head->table[i]->peft;

        if (sums_rows)
            peft->refused = "label smoothing and soft labels of the whole vocabulary sum the "
                            "head's rows, which are not those of an adapter";
        peft->dropout_refused = "soft labels read rows of the head, without what an adapter drops";
    }
    return D9D_OK;
}

static d9d_tensor field_rows(const d9d_model_in *in, const char *name, int64_t rows)
{
    const d9d_tensor *v = name != NULL ? &d9d_model_find_field(in, name)->value : NULL;

    return v != NULL ? d9d_tensor_reshape(v, D9D_SHAPE(rows, d9d_tensor_numel(v) / rows))
                     : (d9d_tensor){0};
}

/* A negative id has no probability. */
static d9d_status ids_mask(d9d_tape *t, chunk_source *c)
{
    d9d_var *q, *have;

    if (c->ids.storage == NULL)
        return D9D_OK;
    D9D_TRY(d9d_tape_leaf(t, &c->probabilities, false, &q));
    D9D_TRY(d9d_tape_leaf(t, &c->ids, false, &have));
    D9D_TRY(d9d_op_ge(t, have, 0, &have));
    D9D_TRY(d9d_op_mul(t, q, have, &q));
    d9d_tensor_release(&c->probabilities);
    c->probabilities = d9d_tensor_ref(d9d_var_tensor(q));
    return D9D_OK;
}

static d9d_status rows_make(const d9di_soft_labels *s, const d9d_model *m, d9d_tape *t,
                            d9d_var *hidden, chunk_source *c)
{
    const int64_t h = m->hidden, local = d9d_tensor_numel(d9d_var_tensor(hidden)) / h;
    const float scale = s->head->logit_scale;

    D9D_TRY(d9d_op_reshape(t, hidden, D9D_SHAPE(local, h), &c->local));
    D9D_TRY(d9d_op_scale(t, c->local, scale == 0 ? 1.0f : scale, &c->rows));
    D9D_TRY(d9d_op_all_gather_rows(t, c->rows, m->groups.tp, "hidden states", &c->rows));
    return s->smoothing > 0 ? weighted_rows(s->head, t, NULL, &c->sum) : D9D_OK;
}

/* s CE(next) + the difference, [T]. */
static d9d_status losses_make(const d9di_soft_labels *s, d9d_tape *t, const chunk_source *c,
                              d9d_var *more, d9d_var **loss)
{
    const int64_t n = d9d_tensor_numel(&c->next);
    d9d_var *q;

    D9D_TRY(d9d_block_vocab_loss(s->head, t, c->local, &c->next, D9D_IGNORE_INDEX, false, loss));
    D9D_TRY(d9d_op_reshape(t, *loss, D9D_SHAPE(n, 1), loss));
    if (s->probabilities != NULL) {
        D9D_TRY(d9d_tape_leaf(t, &c->probabilities, false, &q));
        D9D_TRY(mass(s, t, q, &q));
        D9D_TRY(d9d_op_mul(t, *loss, q, loss));
    }
    D9D_TRY(d9d_op_add(t, *loss, more, loss));
    return d9d_op_reshape(t, *loss, D9D_SHAPE(n), loss);
}

d9d_status d9di_soft_labels_loss(d9di_soft_labels *s, d9d_model *m, d9d_tape *t,
                                 const d9d_model_in *in, d9d_var *hidden, d9d_var **loss)
{
    const int64_t n = d9d_tensor_numel(in->labels);
    chunk_source c = {.sum = NULL};
    d9d_var *more;
    d9d_status st;

    s->head = m->lm_head;
    c.next = d9d_tensor_reshape(in->labels, D9D_SHAPE(n));
    c.probabilities = field_rows(in, s->probabilities, n);
    c.ids = field_rows(in, s->ids, n);
    D9D_TRY_OR(st, d9d_param_unit_unshard(&s->head->module, t), out);
    D9D_TRY_OR(st, rows_make(s, m, t, hidden, &c), out);
    D9D_TRY_OR(st, ids_mask(t, &c), out);
    D9D_TRY_OR(st, chunks_run(s, t, &c, &more), out);
    D9D_TRY_OR(st, parts_sum(t, more, &c.next, m->groups.tp, &more), out);
    D9D_TRY_OR(st, losses_make(s, t, &c, more, loss), out);
    D9D_TRY_OR(st, d9d_model_call_lm_head_hook(in, s->head, c.local), out);
    st = d9d_param_unit_reshard(&s->head->module, t);
out:
    d9d_tensor_release(&c.next);
    d9d_tensor_release(&c.probabilities);
    d9d_tensor_release(&c.ids);
    return st;
}
