/* token_predictions.c - see tasks/token_predictions.h.
 *
 *     lse = logsumexp(z)      loss = lse - z[t]           entropy = lse - sum(e^(z - lse) z)
 *     confidence = e^(max z - lse)                        rank = V - number of z <= z[t]
 */
#include "tasks/token_predictions.h"

#include <stdlib.h>

#include "d9d/op/math.h"
#include "d9d/op/op.h"

/* A pass over the tokens of a micro-batch. */
typedef struct pass {
    const d9di_token_predictions *p;
    d9d_block_vocab *head;
    d9d_tape *tape;    /* of one chunk; records nothing */
    d9d_tensor rows;   /* [T, H] */
    d9d_tensor labels; /* [T] */
    d9d_tensor count;  /* [chunk] int32: 0, 1, 2, ... */
    d9d_tensor *columns;
} pass;

/* The largest logit [n, 1], and its token as float32 [n, 1]. */
static d9d_status largest(d9d_tape *t, d9d_var *z, d9d_var **value, d9d_var **token)
{
    d9d_device *dev = d9d_tape_device(t);
    const int64_t n = d9d_var_tensor(z)->shape.dim[0], v = d9d_var_tensor(z)->shape.dim[1];
    d9d_var *at;

    D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SHAPE(n, 1), value));
    D9D_TRY(d9d_tape_output(t, D9D_I32, D9D_SHAPE(n, 1), &at));
    D9D_TRY(dev->kernels->elementwise->argmax(dev->stream, d9d_tensor_data(d9d_var_tensor(at)),
                                              d9d_tensor_data(d9d_var_tensor(*value)),
                                              d9d_tensor_data(d9d_var_tensor(z)), n, v));
    return d9d_op_affine(t, at, 1, 0, token);
}

/* The logit of each target [n, 1]. */
static d9d_status targets_logits(d9d_tape *t, d9d_var *z, const d9d_tensor *labels, d9d_var **y)
{
    d9d_tensor index = d9d_tensor_reshape(labels, D9D_SHAPE(d9d_tensor_numel(labels), 1));
    const d9d_status st = d9d_op_gather(t, z, &index, y);

    d9d_tensor_release(&index);
    return st;
}

static d9d_status entropy_make(d9d_tape *t, d9d_var *z, d9d_var *lse, d9d_var **y)
{
    const size_t mark = d9d_tape_mark(t);
    d9d_var *p;

    D9D_TRY(d9d_op_exp_sub(t, z, lse, &p));
    D9D_TRY(d9d_op_mul(t, p, z, &p));
    D9D_TRY(d9d_op_sum(t, p, -1, &p));
    D9D_TRY(d9d_op_sub(t, lse, p, y));
    d9d_tape_release_since(t, mark, y, 1);
    return D9D_OK;
}

static d9d_status rank_make(d9d_tape *t, d9d_var *z, d9d_var *target, d9d_var **y)
{
    const int64_t v = d9d_var_tensor(z)->shape.dim[1];
    const size_t mark = d9d_tape_mark(t);
    d9d_var *below;

    D9D_TRY(d9d_op_sub(t, target, z, &below));
    D9D_TRY(d9d_op_ge(t, below, 0, &below));
    D9D_TRY(d9d_op_sum(t, below, -1, &below));
    D9D_TRY(d9d_op_affine(t, below, -1, (float)v, y));
    d9d_tape_release_since(t, mark, y, 1);
    return D9D_OK;
}

static int64_t columns_of(const d9di_token_predictions *p)
{
    return p->classes_alone ? 1 : D9D_METRIC_TOKEN_COLUMNS;
}

/* Columns [n, 5] of logits [n, V]. */
static d9d_status all_columns_make(d9d_tape *t, d9d_var *z, const d9d_tensor *labels, d9d_var **y)
{
    const int64_t n = d9d_var_tensor(z)->shape.dim[0];
    const size_t mark = d9d_tape_mark(t);
    d9d_op_concat_input in[D9D_METRIC_TOKEN_COLUMNS];
    d9d_var *column[D9D_METRIC_TOKEN_COLUMNS], *lse, *target, *most;

    D9D_TRY(d9d_op_logsumexp(t, z, -1, &lse));
    D9D_TRY(targets_logits(t, z, labels, &target));
    D9D_TRY(largest(t, z, &most, &column[D9D_METRIC_TOKEN_CLASS]));
    D9D_TRY(d9d_op_sub(t, lse, target, &column[D9D_METRIC_TOKEN_LOSS]));
    D9D_TRY(d9d_op_exp_sub(t, most, lse, &column[D9D_METRIC_TOKEN_CONFIDENCE]));
    D9D_TRY(entropy_make(t, z, lse, &column[D9D_METRIC_TOKEN_ENTROPY]));
    D9D_TRY(rank_make(t, z, target, &column[D9D_METRIC_TOKEN_RANK]));
    for (int i = 0; i < D9D_METRIC_TOKEN_COLUMNS; i++)
        in[i] = (d9d_op_concat_input){column[i], 0, 1};
    D9D_TRY(
        d9d_op_concat(t, in, D9D_METRIC_TOKEN_COLUMNS, D9D_SHAPE(n, D9D_METRIC_TOKEN_COLUMNS), y));
    d9d_tape_release_since(t, mark, y, 1);
    return D9D_OK;
}

static d9d_status columns_make(const pass *s, d9d_var *z, const d9d_tensor *labels, d9d_var **y)
{
    d9d_var *most;

    return s->p->classes_alone ? largest(s->tape, z, &most, y)
                               : all_columns_make(s->tape, z, labels, y);
}

static d9d_status logits_make(const pass *s, const d9d_tensor *rows, d9d_var **z)
{
    d9d_tensor pick = d9d_tensor_rows(&s->count, 0, rows->shape.dim[0]);
    d9d_var *x;
    d9d_status st = d9d_tape_leaf(s->tape, rows, false, &x);

    if (st == D9D_OK)
        st = d9d_block_vocab_rows_logits(s->head, s->tape, x, &pick, z);
    d9d_tensor_release(&pick);
    return st;
}

/* The tokens [first, first + n). */
static d9d_status chunk_run(pass *s, int64_t first, int64_t n)
{
    d9d_device *dev = d9d_tape_device(s->tape);
    d9d_tensor rows = d9d_tensor_rows(&s->rows, first, n),
               labels = d9d_tensor_rows(&s->labels, first, n);
    const int64_t wide = columns_of(s->p);
    float *to = d9d_tensor_data(s->columns);
    d9d_var *z, *columns;
    d9d_status st;

    D9D_TRY_OR(st, logits_make(s, &rows, &z), out);
    if (s->p->logits != NULL)
        D9D_TRY_OR(st, s->p->logits(s->p->arg, d9d_var_tensor(z), first), out);
    D9D_TRY_OR(st, columns_make(s, z, &labels, &columns), out);
    st = dev->kernels->elementwise->scatter_rows(dev->stream, D9D_F32, to + first * wide, wide, 0,
                                                 NULL, d9d_tensor_data(d9d_var_tensor(columns)), n,
                                                 wide);
out:
    d9d_tensor_release(&rows);
    d9d_tensor_release(&labels);
    d9d_tape_reset(s->tape);
    return st;
}

static int64_t chunk_tokens(const pass *s)
{
    const int64_t all = s->rows.shape.dim[0];
    int64_t v = 0, n = s->p->chunk;

    for (size_t i = 0; i < s->head->n_splits; i++)
        v += s->head->table[i]->spec.shape.dim[0];
    if (n == 0 && v > 0)
        n = D9DI_TOKEN_PREDICTIONS_ELEMENTS / v;
    return n < 1 ? 1 : n < all ? n : all;
}

static d9d_status count_make(pass *s, int64_t n)
{
    d9d_device *dev = d9d_tape_device(s->tape);
    int32_t *host = malloc((size_t)n * sizeof(*host));
    d9d_status st;

    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "metrics: numbers of %lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)i;
    st = d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(n), host, &s->count);
    free(host);
    return st;
}

/* All rows of the tp ranks, which outlive the tape's chunks. */
static d9d_status rows_make(pass *s, const d9d_tensor *h)
{
    d9d_var *x;

    D9D_TRY(d9d_tape_leaf(s->tape, h, false, &x));
    D9D_TRY(d9d_block_vocab_rows(s->head, s->tape, x, &x));
    s->rows = d9d_tensor_ref(d9d_var_tensor(x));
    d9d_tape_reset(s->tape);
    return D9D_OK;
}

static d9d_status all_chunks_run(pass *s, const d9d_tensor *h)
{
    int64_t rows, step;

    D9D_TRY(rows_make(s, h));
    rows = s->rows.shape.dim[0];
    step = chunk_tokens(s);
    D9D_TRY(count_make(s, step));
    s->labels = d9d_tensor_reshape(s->p->labels, D9D_SHAPE(rows));
    for (int64_t at = 0; at < rows; at += step)
        D9D_TRY(chunk_run(s, at, rows - at < step ? rows - at : step));
    return D9D_OK;
}

d9d_status d9di_token_predictions_make(const d9di_token_predictions *p, d9d_block_vocab *head,
                                       const d9d_tensor *h, d9d_tensor *columns)
{
    d9d_device *dev = d9d_tensor_device(h);
    d9d_tensor made = {0};
    pass s = {.p = p, .head = head, .columns = &made};
    d9d_status st;

    D9D_TRY(d9d_tape_create(dev, &s.tape));
    d9d_tape_set_recording(s.tape, false);
    D9D_TRY_OR(st,
               d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(d9d_tensor_numel(p->labels), columns_of(p)),
                                &made),
               out);
    D9D_TRY_OR(st, all_chunks_run(&s, h), out);
    *columns = made;
    made = (d9d_tensor){0};
out:
    d9d_tape_free(s.tape);
    d9d_tensor_release(&s.rows);
    d9d_tensor_release(&s.labels);
    d9d_tensor_release(&s.count);
    d9d_tensor_release(&made);
    return st;
}
