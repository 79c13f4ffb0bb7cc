/* fill_mask.c - inference: the likeliest tokens behind masks.  See d9d/tasks/masked_lm.h.
 *
 * The labels of a batch mark its masks.  Logits of these positions are read back, and the host
 * finds the likeliest tokens.  A row of values is the number of masks, and for each its position
 * and top_k pairs of token and probability: whole numbers below 2^24 are exact in float32.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/data/dataset/dataset.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "d9d/tasks/masked_lm.h"
#include "tasks/tasks.h"

/* V vocabulary, M masks of a batch. */
enum { MAX_VOCAB = 1 << 24, MAX_TOP_K = 1 << 16 };

typedef struct fill_mask {
    const d9d_fill_mask_section *c;
    int32_t mask_id;
    d9d_model_columns values;
    D9D_VEC(int32_t) labels, pick; /* [B, S] of a batch; [M]: its masks */
    D9D_VEC(float) logits, rows;   /* [M, V]; the values of its samples */
} fill_mask;

static void fill_mask_close(void *self)
{
    fill_mask *f = self;

    D9D_VEC_RELEASE(&f->labels);
    D9D_VEC_RELEASE(&f->pick);
    D9D_VEC_RELEASE(&f->logits);
    D9D_VEC_RELEASE(&f->rows);
    free(f);
}

static d9d_status fill_mask_open(const void *config, void **self)
{
    fill_mask *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task: %zu bytes", sizeof(*f));
    f->c = config;
    *self = f;
    return D9D_OK;
}

static void fill_mask_head(void *self, d9d_head *out)
{
    (void)self;
    *out = (d9d_head){.kind = D9D_HEAD_MASKED_LM};
}

static d9di_masked_lm_mask mask_of(const fill_mask *f)
{
    return (d9di_masked_lm_mask){f->c->mask_token, f->c->mask_token_id};
}

static d9d_status fill_mask_extend(void *self, d9d_model *m, const d9d_model_opts *options)
{
    const fill_mask *f = self;
    const d9di_masked_lm_mask mask = mask_of(f);

    (void)options;
    if (f->c->top_k > m->vocab)
        return D9D_FAIL(D9D_ECONFIG, "task.top_k is %lld, and the model's vocabulary has %lld ids",
                        (long long)f->c->top_k, (long long)m->vocab);
    if (m->vocab > MAX_VOCAB)
        return D9D_FAIL(D9D_ENOTSUP,
                        "task fill_mask: the model's vocabulary has %lld ids, above %d",
                        (long long)m->vocab, MAX_VOCAB);
    return d9di_masked_lm_check_mask(&mask, m);
}

static d9d_status fill_mask_set_data(void *self, d9d_dataset *const *datasets, size_t n)
{
    fill_mask *f = self;
    const d9di_masked_lm_mask mask = mask_of(f);
    const d9d_tokenizer *tok;
    size_t at;

    return d9di_masked_lm_find_mask(&mask, datasets, n, &tok, &at, &f->mask_id);
}

static void fill_mask_collate(void *self, const d9d_dataset *ds, int64_t sample, int64_t n,
                              int32_t *ids, int32_t *labels)
{
    const fill_mask *f = self;

    (void)ds, (void)sample;
    for (int64_t i = 0; i < n; i++)
        labels[i] = ids[i] == f->mask_id ? ids[i] : D9D_IGNORE_INDEX;
}

/* --- the likeliest tokens --------------------------------------------------------------------- */

/* The masks of a batch; a single position where there is none, since logits are collective. */
static d9d_status masks_find(fill_mask *f, const d9d_tensor *labels)
{
    const int64_t n = d9d_tensor_numel(labels);

    D9D_TRY(D9D_VEC_RESERVE(&f->labels, (size_t)n));
    D9D_TRY(d9d_device_download(d9d_tensor_device(labels), f->labels.data, d9d_tensor_data(labels),
                                d9d_tensor_bytes(labels)));
    f->pick.len = 0;
    for (int64_t i = 0; i < n; i++)
        if (f->labels.data[i] != D9D_IGNORE_INDEX)
            D9D_TRY(D9D_VEC_PUSH(&f->pick, (int32_t)i));
    return f->pick.len > 0 ? D9D_OK : D9D_VEC_PUSH(&f->pick, 0);
}

/* out [k]: the ids of the largest of x [n], the largest first; of equal ones the smaller id. */
static void largest(const float *x, int64_t n, int64_t k, float *out)
{
    int64_t found = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t at = found < k ? found : k;

        while (at > 0 && x[i] > x[(int64_t)out[2 * (at - 1)]])
            at--;
        if (at == k)
            continue;
        found += found < k;
        for (int64_t j = found - 1; j > at; j--)
            out[2 * j] = out[2 * (j - 1)];
        out[2 * at] = (float)i;
    }
}

/* Pairs of token and probability, out [k, 2], of logits x [n]. */
static void put_answers(const float *x, int64_t n, int64_t k, float *out)
{
    double sum = 0;
    float most;

    largest(x, n, k, out);
    most = x[(int64_t)out[0]];
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)most);
    for (int64_t j = 0; j < k; j++)
        out[2 * j + 1] = (float)(exp((double)x[(int64_t)out[2 * j]] - (double)most) / sum);
}

/* The most masks that one of the sequences has. */
static int64_t most_masks(const fill_mask *f, int64_t seqs, int64_t length)
{
    int64_t most = 0;

    for (int64_t b = 0; b < seqs; b++) {
        int64_t n = 0;

        for (int64_t i = 0; i < length; i++)
            n += f->labels.data[b * length + i] != D9D_IGNORE_INDEX;
        most = n > most ? n : most;
    }
    return most;
}

/* Values [B, 1 + masks (1 + 2 top_k)] of logits [M, V]. */
static d9d_status rows_make(fill_mask *f, int64_t seqs, int64_t length, int64_t vocab,
                            int64_t *width)
{
    const int64_t k = f->c->top_k, each = 1 + 2 * k;
    const float *logits = f->logits.data;

    *width = 1 + most_masks(f, seqs, length) * each;
    f->rows.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&f->rows, (size_t)(seqs * *width)));
    memset(f->rows.data, 0, (size_t)(seqs * *width) * sizeof(float));
    for (int64_t b = 0; b < seqs; b++) {
        float *row = f->rows.data + b * *width, *at = row + 1;

        for (int64_t i = 0; i < length; i++) {
            if (f->labels.data[b * length + i] == D9D_IGNORE_INDEX)
                continue;
            at[0] = (float)i;
            put_answers(logits, vocab, k, at + 1);
            logits += vocab;
            at += each;
            row[0] += 1.0f;
        }
    }
    return D9D_OK;
}

static d9d_status answers_set(fill_mask *f, d9d_tape *t, const d9d_shape *ids, d9d_model_out *out)
{
    const d9d_tensor *logits = d9d_var_tensor(out->logits);
    d9d_tensor rows = {0};
    d9d_status st;
    int64_t width;

    D9D_TRY(D9D_VEC_RESERVE(&f->logits, (size_t)d9d_tensor_numel(logits)));
    D9D_TRY(d9d_tensor_to_f32(logits, f->logits.data));
    D9D_TRY(rows_make(f, ids->dim[0], ids->dim[1], logits->shape.dim[1], &width));
    D9D_TRY(d9d_tensor_from_host(d9d_tape_device(t), D9D_F32, D9D_SHAPE(ids->dim[0], width),
                                 f->rows.data, &rows));
    st = d9d_tape_leaf(t, &rows, false, &f->values.v);
    d9d_tensor_release(&rows);
    out->values = &f->values;
    out->n_values = 1;
    return st;
}

static d9d_status fill_mask_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                    d9d_model_out *out)
{
    fill_mask *f = self;
    d9d_model_in picked = *in;
    d9d_tensor pick = {0};
    d9d_status st;

    if (d9d_comm_size(m->groups.cp) > 1)
        return D9D_FAIL(D9D_ENOTSUP,
                        "task fill_mask: %d ranks of context parallelism, it needs whole sequences",
                        d9d_comm_size(m->groups.cp));
    picked.labels = NULL;
    if (!d9d_stage_is_last(m->stage))
        return m->ops->forward(m, t, &picked, out);
    D9D_TRY(masks_find(f, in->labels));
    D9D_TRY(d9d_tensor_from_host(d9d_tape_device(t), D9D_I32, D9D_SHAPE((int64_t)f->pick.len),
                                 f->pick.data, &pick));
    picked.pick = &pick;
    st = m->ops->forward(m, t, &picked, out);
    if (st == D9D_OK)
        st = answers_set(f, t, &in->labels->shape, out);
    d9d_tensor_release(&pick);
    return st;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Appends something of an answer, a pair of token and probability. */
typedef d9d_status answer_put(const float *answer, const d9d_tokenizer *tok, d9d_buf *b);

static d9d_status put_token(const float *answer, const d9d_tokenizer *tok, d9d_buf *b)
{
    (void)tok;
    return d9d_buf_printf(b, "%lld", (long long)answer[0]);
}

static d9d_status put_score(const float *answer, const d9d_tokenizer *tok, d9d_buf *b)
{
    (void)tok;
    return d9d_json_put_f64(b, (double)answer[1]);
}

/* The token's text; null if the tokenizer does not know it. */
static d9d_status put_text(const float *answer, const d9d_tokenizer *tok, d9d_buf *b)
{
    const uint32_t id = (uint32_t)answer[0];
    d9d_buf text = {0};
    d9d_status st = d9d_tokenizer_decode(tok, &id, 1, 0, &text);

    if (st == D9D_OK)
        st = d9d_json_put_str(b, text.len > 0 ? text.data : "", text.len);
    else if (st == D9D_EINVAL)
        st = d9d_buf_append(b, "null", 4);
    d9d_buf_release(&text);
    return st;
}

/* Of a row: the answers of its masks, and the tokenizer. */
typedef struct answers {
    const float *at;
    int64_t masks, top_k;
    const d9d_tokenizer *tok; /* NULL: none */
} answers;

/* ", NAME: [[...], ...]", a list for each mask. */
static d9d_status put_lists(const answers *a, const char *name, answer_put *put, d9d_buf *b)
{
    const float *at = a->at;

    D9D_TRY(d9d_buf_printf(b, ", \"%s\": [", name));
    for (int64_t i = 0; i < a->masks; i++, at += 1 + 2 * a->top_k) {
        D9D_TRY(d9d_buf_printf(b, "%s[", i > 0 ? ", " : ""));
        for (int64_t j = 0; j < a->top_k; j++) {
            D9D_TRY(d9d_buf_printf(b, "%s", j > 0 ? ", " : ""));
            D9D_TRY(put(at + 1 + 2 * j, a->tok, b));
        }
        D9D_TRY(d9d_buf_append(b, "]", 1));
    }
    return d9d_buf_append(b, "]", 1);
}

static d9d_status fill_mask_row(const void *config, const d9d_infer_task_row *x, d9d_buf *b)
{
    answers a = {.at = x->values + 1,
                 .masks = (int64_t)x->values[0],
                 .top_k = ((const d9d_fill_mask_section *)config)->top_k};

    D9D_TRY(d9d_dataset_tokenizer(x->source, &a.tok));
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", x->dataset));
    D9D_TRY(d9d_buf_printf(b, "\"positions\": ["));
    for (int64_t i = 0; i < a.masks; i++)
        D9D_TRY(
            d9d_buf_printf(b, "%s%lld", i > 0 ? ", " : "", (long long)a.at[i * (1 + 2 * a.top_k)]));
    D9D_TRY(d9d_buf_append(b, "]", 1));
    D9D_TRY(put_lists(&a, "tokens", put_token, b));
    D9D_TRY(put_lists(&a, "scores", put_score, b));
    if (a.tok != NULL)
        D9D_TRY(put_lists(&a, "token_str", put_text, b));
    return d9d_buf_append(b, "}\n", 2);
}

/* --- the section ------------------------------------------------------------------------------ */

static const d9d_train_task fill_mask_body = {.size = sizeof(d9d_train_task),
                                              .table = &d9di_fill_mask_table,
                                              .open = fill_mask_open,
                                              .close = fill_mask_close,
                                              .head = fill_mask_head,
                                              .extend = fill_mask_extend,
                                              .set_data = fill_mask_set_data,
                                              .collate = fill_mask_collate,
                                              .forward = fill_mask_forward};
static const d9d_infer_task_kind fill_mask_task = {.size = sizeof(d9d_infer_task_kind),
                                                   .table = &d9di_fill_mask_table,
                                                   .body = &fill_mask_body,
                                                   .row = fill_mask_row};
static const d9d_key keys[] = {{.name = "output",
                                .kind = D9D_KIND_STR,
                                .offset = offsetof(d9d_fill_mask_section, output.output),
                                .def = D9D_REQUIRED,
                                .min = 1,
                                .doc = "JSONL file to write"},
                               D9D_KEY_INT(d9d_fill_mask_section, top_k, "5", 1, MAX_TOP_K,
                                           "so many of the likeliest tokens for each mask"),
                               D9DI_MASKED_LM_MASK_KEYS(d9d_fill_mask_section),
                               D9D_KEY_END};
const d9d_table d9di_fill_mask_table = {.name = "fill_mask",
                                        .size = sizeof(d9d_fill_mask_section),
                                        .keys = keys,
                                        .doc = "the likeliest tokens behind each mask",
                                        .row = &fill_mask_task};
