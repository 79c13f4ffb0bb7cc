/* prompt.c - see engine/prompt.h.
 *
 * A virtual token that begins as a row of the vocabulary takes the row's numbers from the rank that
 * stores them: each adds what it has to zeros, and the ranks of its parts sum them up.
 */
#include "engine/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/data/tokenizer/tokenizer.h"
#include "d9d/model/lora/peft.h"

d9d_status d9di_engine_prompt_check(const d9di_engine *e)
{
    const d9d_model *m = e->whole.model;
    const d9di_task *t = e->task;

    if (m->virtual_tokens == 0)
        return D9D_OK;
    if (e->spec.opts.prefix_mask)
        return D9D_FAIL(D9D_ECONFIG, "peft: prompt_tuning needs causal attention, and "
                                     "model_provider.attention_mask is \"prefix\"");
    if (m->bidirectional || m->masked_lm ||
        (t != NULL && (d9di_task_pooling(t) != D9D_POOLING_NONE || d9di_task_is_of_answers(t) ||
                       d9di_task_has_pairs(t) || d9di_task_generation(t) != NULL ||
                       d9di_task_reference(t).wanted)))
        return D9D_FAIL(
            D9D_ECONFIG,
            "peft: prompt_tuning is of next tokens of a decoder, and the task \"%s\" of %s is not",
            t != NULL && t->kind->table != NULL ? t->kind->table->name : "here", m->ops->name);
    return D9D_OK;
}

/* --- which rows ------------------------------------------------------------------------------- */

/* As peft encodes it, with the special tokens that the tokenizer puts around a text. */
static d9d_status text_encode(const d9d_tokenizer *tok, const char *text, d9d_token_ids *out)
{
    d9d_tokenizer_scratch *s;
    d9d_token_ids plain = {0};
    d9d_status st;

    D9D_TRY(d9d_tokenizer_scratch_create(tok, &s));
    st = d9d_tokenizer_encode(tok, s, text, strlen(text), &plain);
    d9d_tokenizer_scratch_free(s);
    if (st == D9D_OK)
        st = d9d_tokenizer_add_special(tok, &plain, NULL, out);
    D9D_VEC_RELEASE(&plain);
    return st;
}

/* The text's tokens by the tokenizer of the first dataset. */
static d9d_status text_ids(const d9di_engine_opts *opts, const char *text, int64_t n, int64_t *ids)
{
    const d9d_tokenizer *tok = NULL;
    d9d_token_ids encoded = {0};
    d9d_status st = D9D_OK;

    if (opts->data != NULL && opts->data->n > 0)
        D9D_TRY(d9d_dataset_tokenizer(opts->data->datasets[0], &tok));
    if (tok == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "peft.init_text: the first dataset of data has no tokenizer that encodes "
                        "it");
    st = text_encode(tok, text, &encoded);
    if (st == D9D_OK && encoded.len == 0)
        st = D9D_FAIL(D9D_ECONFIG, "peft.init_text: has no tokens");
    for (int64_t i = 0; i < n && st == D9D_OK; i++)
        ids[i] = encoded.data[(size_t)i % encoded.len];
    D9D_VEC_RELEASE(&encoded);
    return st;
}

static d9d_status rows_choose(const d9di_engine_opts *opts, const d9d_peft_prompt *c, int64_t vocab,
                              int64_t *ids)
{
    const d9d_rng rng = {opts->seed,
                         d9d_hash_u64(D9D_MODEL_PROMPT_PARAM, sizeof(D9D_MODEL_PROMPT_PARAM) - 1)};

    if (c->init == D9D_PEFT_PROMPT_TEXT)
        return text_ids(opts, c->init_text, c->num_virtual_tokens, ids);
    for (int64_t i = 0; i < c->num_virtual_tokens; i++)
        ids[i] = (int64_t)d9d_rng_below(rng, (uint64_t)i, (uint64_t)vocab);
    return D9D_OK;
}

/* --- their numbers ---------------------------------------------------------------------------- */

/* Put this rank's part of row `id` of a table into to [columns of the whole]. */
static d9d_status row_put(d9d_device *dev, const d9d_param *table, int64_t id, float *to)
{
    const d9d_param_part *part = &table->shard;
    const int64_t row = id - part->offset[0], columns = part->shape.dim[1];
    const uint64_t bytes = (uint64_t)columns * d9d_dtype_size(part->data.dtype);
    void *host;
    d9d_status st;

    if (row < 0 || row >= part->shape.dim[0] || columns == 0)
        return D9D_OK;
    host = malloc(bytes);
    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a row", table->name);
    st = d9d_device_download(
        dev, host, (const char *)d9d_tensor_data(&part->data) + (uint64_t)row * bytes, bytes);
    if (st == D9D_OK)
        d9d_tensor_elements_to_f32(part->data.dtype, host, columns, to + part->offset[1]);
    free(host);
    return st;
}

/* The whole rows of these ids of one table, summed over the ranks that have its parts: those that
 * store shards, and those of tensor parallelism.  Ids of other tables have zeros. */
static d9d_status table_rows(d9d_device *dev, d9d_comm *tp, const d9d_param *table, int64_t first,
                             const int64_t *ids, int64_t n, float *rows)
{
    d9d_comm *const groups[] = {table->placement.shard_group, tp};
    const int64_t h = table->spec.shape.dim[1];
    d9d_tensor sum;
    d9d_status st = D9D_OK;

    memset(rows, 0, (size_t)(n * h) * sizeof(*rows));
    for (int64_t i = 0; i < n; i++)
        D9D_TRY(row_put(dev, table, ids[i] - first, rows + i * h));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(n, h), rows, &sum));
    for (size_t i = 0; i < 2 && st == D9D_OK; i++)
        if (d9d_comm_size(groups[i]) > 1)
            st = d9d_comm_all_reduce(groups[i], dev->stream, table->name, D9D_F32,
                                     d9d_tensor_data(&sum), n * h, D9D_COMM_SUM);
    if (st == D9D_OK)
        st = d9d_device_download(dev, rows, d9d_tensor_data(&sum),
                                 (uint64_t)(n * h) * sizeof(*rows));
    d9d_tensor_release(&sum);
    return st;
}

/* Copy rows [n, h] into a rank's part of the virtual tokens. */
static d9d_status prompt_set(d9d_device *dev, d9d_param *p, const float *rows)
{
    const d9d_param_part *part = &p->shard;
    const int64_t n = part->shape.dim[0], columns = part->shape.dim[1], h = p->spec.shape.dim[1];
    float *own = malloc((size_t)(n * columns) * sizeof(*own) + 1);
    d9d_tensor all;
    d9d_status st;

    if (own == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %lld numbers", p->name, (long long)(n * columns));
    for (int64_t i = 0; i < n; i++)
        memcpy(own + i * columns, rows + (part->offset[0] + i) * h + part->offset[1],
               (size_t)columns * sizeof(*own));
    st = d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(n, columns), own, &all);
    free(own);
    D9D_TRY(st);
    st =
        dev->kernels->elementwise->cast(dev->stream, part->data.dtype, d9d_tensor_data(&part->data),
                                        D9D_F32, d9d_tensor_data(&all), n * columns);
    d9d_tensor_release(&all);
    return st;
}

/* rows are zeros; of_table is scratch of their size. */
static d9d_status rows_copy(const d9di_engine *e, const d9d_model *m, const int64_t *ids,
                            float *rows, float *of_table)
{
    const d9d_block_vocab *b = m->embedding;
    const int64_t n = m->virtual_tokens, h = m->hidden;
    int64_t first = 0;

    for (size_t s = 0; s < b->n_splits; s++) {
        D9D_TRY(
            table_rows(e->dev, d9d_groups_tp(&m->groups), b->table[s], first, ids, n, of_table));
        for (int64_t i = 0; i < n * h; i++)
            rows[i] += of_table[i];
        first += b->table[s]->spec.shape.dim[0];
    }
    return prompt_set(e->dev, &d9d_model_find_linear(m, D9D_MODEL_PROMPT)->weight, rows);
}

d9d_status d9di_engine_prompt_start(const d9di_engine *e, const d9di_engine_opts *opts,
                                    d9d_model *m)
{
    const d9d_peft_prompt *c = d9d_peft_prompt_of(opts->peft);
    const size_t n = (size_t)m->virtual_tokens, h = (size_t)m->hidden;
    float *rows, *of_table;
    int64_t *ids;
    d9d_status st;

    if (c == NULL || c->init == D9D_PEFT_PROMPT_RANDOM || m->embedding == NULL)
        return D9D_OK;
    ids = calloc(n, sizeof(*ids));
    rows = calloc(n * h, sizeof(*rows));
    of_table = calloc(n * h, sizeof(*of_table));
    if (ids == NULL || rows == NULL || of_table == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "peft: no memory for %zu virtual tokens", n);
    else
        st = rows_choose(opts, c, m->vocab, ids);
    if (st == D9D_OK)
        st = rows_copy(e, m, ids, rows, of_table);
    free(ids);
    free(rows);
    free(of_table);
    return st;
}
