/* certify_generation.c - greedy decoding with the KV cache takes the tokens of recomputed
 * prefixes.  See certify_parts.h. */
#include <math.h>
#include <string.h>

#include "certify/certify_job.h"
#include "d9d/base/fs.h"

enum { PROMPT = 4, TOKENS = 6, OUTPUT_MAX = 1 << 20 };
static const double limit = 1e-4; /* ties are as close as float32's rounding */

/* A line for each row of the model's tokens: its first ones. */
static d9d_status write_prompts(const d9di_small_model *m, const int32_t *ids, const char *path)
{
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    for (int64_t r = 0; r < m->rows && st == D9D_OK; r++) {
        const int32_t *row = &ids[r * m->length];

        st = d9d_buf_printf(&text, "{\"input_ids\": [%d, %d, %d, %d]}\n", row[0], row[1], row[2],
                            row[3]);
    }
    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, text.data, text.len);
    d9d_buf_release(&text);
    return st;
}

/* Logits of the token behind a prefix, by a forward over all of it. */
static d9d_status logits_behind(d9di_small_model *m, const int32_t *ids, int64_t n, float *logits)
{
    const int32_t row[] = {0, (int32_t)n, 0, (int32_t)n}, prefix = PROMPT;
    int32_t positions[PROMPT + TOKENS], last = (int32_t)n - 1;
    d9d_tensor x[5] = {{0}};
    d9d_model_in in = {.ids = &x[0], .positions = &x[1], .pick = &x[2]};
    d9d_model_out out = {.loss = NULL};
    d9d_status st;

    for (int64_t i = 0; i < n; i++)
        positions[i] = (int32_t)i;
    d9d_tape_set_recording(m->tape, false);
    D9D_TRY_OR(st, d9d_tensor_from_host(m->dev, D9D_I32, D9D_SHAPE(1, n), ids, &x[0]), done);
    D9D_TRY_OR(st, d9d_tensor_from_host(m->dev, D9D_I32, D9D_SHAPE(1, n), positions, &x[1]), done);
    D9D_TRY_OR(st, d9d_tensor_from_host(m->dev, D9D_I32, D9D_SHAPE(1), &last, &x[2]), done);
    if (m->spec.opts.prefix_mask) {
        D9D_TRY_OR(st, d9d_tensor_from_host(m->dev, D9D_I32, D9D_SHAPE(1, 4), row, &x[3]), done);
        D9D_TRY_OR(st, d9d_tensor_from_host(m->dev, D9D_I32, D9D_SHAPE(1), &prefix, &x[4]), done);
        d9d_tape_set_prefix(m->tape, &x[4]);
        in.segments = &x[3];
    }
    D9D_TRY_OR(st, m->model->ops->forward(m->model, m->tape, &in, &out), done);
    st = d9d_tensor_to_f32(d9d_var_tensor(out.logits), logits);
done:
    d9d_tape_reset(m->tape);
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        d9d_tensor_release(&x[i]);
    return st;
}

/* How far the token's logit is below the largest, relative to their size. */
static double shortfall(const float *logits, int64_t vocab, int64_t token)
{
    double most = -INFINITY, size = 0;

    for (int64_t i = 0; i < vocab; i++) {
        most = (double)logits[i] > most ? (double)logits[i] : most;
        size = fabs((double)logits[i]) > size ? fabs((double)logits[i]) : size;
    }
    return (most - (double)logits[token]) / size;
}

/* A generated line against its prompt. */
static d9d_status check_line(d9di_small_model *m, const json_t *tokens, const int32_t *prompt,
                             float *logits, double *worst)
{
    int32_t ids[PROMPT + TOKENS];

    if (json_array_size(tokens) != TOKENS)
        return D9D_FAIL(D9D_EVERIFY, "%zu tokens were generated, %d were asked for",
                        json_array_size(tokens), TOKENS);
    for (int64_t i = 0; i < PROMPT; i++)
        ids[i] = prompt[i];
    for (int64_t i = 0; i < TOKENS; i++) {
        const int64_t token = json_integer_value(json_array_get(tokens, (size_t)i));
        double d;

        if (token < 0 || token >= m->model->vocab)
            return D9D_FAIL(D9D_EVERIFY, "token %lld was generated, the vocabulary has %lld",
                            (long long)token, (long long)m->model->vocab);
        D9D_TRY(logits_behind(m, ids, PROMPT + i, logits));
        d = shortfall(logits, m->model->vocab, token);
        *worst = d > *worst || isnan(d) ? d : *worst;
        ids[PROMPT + i] = (int32_t)token;
    }
    return D9D_OK;
}

static d9d_status check_output(d9di_small_model *m, const char *path, const int32_t *ids,
                               float *logits, double *worst)
{
    d9d_buf text = {0};
    json_t *line = NULL;
    d9d_status st = d9d_fs_read(path, OUTPUT_MAX, &text);
    const char *at = text.data, *end;

    for (int64_t r = 0; r < m->rows && st == D9D_OK; r++) {
        end = at != NULL ? memchr(at, '\n', (size_t)(text.data + text.len - at)) : NULL;
        if (end == NULL)
            st = D9D_FAIL(D9D_EVERIFY, "%lld of %lld prompts were continued", (long long)r,
                          (long long)m->rows);
        else
            st = d9d_json_parse("generated", at, (size_t)(end - at), &line);
        if (st == D9D_OK)
            st = check_line(m, json_object_get(line, "tokens"), &ids[r * m->length], logits, worst);
        json_decref(line);
        line = NULL;
        at = end != NULL ? end + 1 : NULL;
    }
    d9d_buf_release(&text);
    return st;
}

static d9d_status generate(d9di_certify *c, d9di_small_model *m, d9d_certificate_check *out)
{
    const size_t tokens = (size_t)(m->rows * m->length);
    int32_t *ids = d9d_arena_alloc(&m->arena, tokens * sizeof(*ids));
    float *host = d9d_arena_alloc(&m->arena, (tokens + (size_t)m->model->vocab) * sizeof(*host));
    const char *prompts, *output;
    d9d_infer_task_summary summary;

    if (ids == NULL || host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "tokens of a small model");
    D9D_TRY(d9di_certify_path(c, "prompts.jsonl", &prompts));
    D9D_TRY(d9di_certify_path(c, "generated.jsonl", &output));
    D9D_TRY(d9d_tensor_to_f32(&m->ids, host));
    for (size_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)host[i];
    D9D_TRY(write_prompts(m, ids, prompts));
    D9D_TRY(d9di_certify_infer(c, d9di_certify_generate_doc(c, prompts, output, TOKENS), &summary));
    out->figure = 0;
    out->limit = limit;
    D9D_TRY(d9di_certify_detail(c, out, "%lld prompts of %d tokens, %d tokens each",
                                (long long)m->rows, PROMPT, TOKENS));
    return check_output(m, output, ids, host, &out->figure);
}

d9d_status d9di_certify_generation(d9di_certify *c, d9d_certificate_check *out)
{
    const d9di_small_model_opts opts = {.choices = c->choices, .seed = c->opts->seed};
    d9di_small_model m;
    d9d_status st;

    if (c->head != D9D_HEAD_CAUSAL_LM)
        return d9di_certify_skip(out, "it is no causal language model");
    st = d9di_small_model_open(&m, c->folder, &opts);
    if (st == D9D_OK && m.model->ops->cache_spec == NULL)
        st = d9di_certify_skip(out, "the model has no KV cache");
    else if (st == D9D_OK && m.model->max_positions < PROMPT + TOKENS)
        st = d9di_certify_skip(out, "the model takes too few positions");
    else if (st == D9D_OK)
        st = generate(c, &m, out);
    (void)d9di_small_model_close(&m);
    return st;
}
