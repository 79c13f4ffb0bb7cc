/* score_tasks.c - the inference tasks logprobs and perplexity, over the model's own losses.  See
 * d9d/tasks/task.h. */
#include <math.h>

#include "d9d/base/json.h"
#include "tasks/tasks.h"

/* --- logprobs --------------------------------------------------------------------------- */

/* The number of targets of each packed document. */
static d9d_status append_documents(d9d_buf *b, const d9d_infer_task_row *x)
{
    int64_t targets = 0;

    D9D_TRY(d9d_buf_printf(b, ", \"documents\": ["));
    for (int64_t i = 0; i < x->length; i++) {
        targets += x->labels[i] != D9D_IGNORE_INDEX;
        if (i + 1 < x->length && x->positions[i + 1] != 0)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%lld%s", (long long)targets, i + 1 < x->length ? ", " : ""));
        targets = 0;
    }
    return d9d_buf_append(b, "]", 1);
}

d9d_status d9di_infer_task_put_logprobs(const d9d_infer_task_row *x, d9d_buf *b)
{
    const char *comma = "";

    D9D_TRY(d9d_buf_printf(b, "\"logprobs\": ["));
    for (int64_t i = 0; i < x->length; i++) {
        if (x->labels[i] == D9D_IGNORE_INDEX)
            continue;
        D9D_TRY(d9d_buf_printf(b, "%s", comma));
        D9D_TRY(d9d_json_put_f64(b, -(double)x->loss[i]));
        comma = ", ";
    }
    D9D_TRY(d9d_buf_printf(b, "], \"loss\": "));
    D9D_TRY(d9d_json_put_f64(b, x->targets > 0 ? x->sum / (double)x->targets : NAN));
    return d9d_buf_printf(b, ", \"tokens\": %lld", (long long)x->targets);
}

static d9d_status logprobs_row(const void *config, const d9d_infer_task_row *x, d9d_buf *b)
{
    (void)config;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)x->sample));
    if (x->blended)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", x->dataset));
    D9D_TRY(d9di_infer_task_put_logprobs(x, b));
    if (x->packed)
        D9D_TRY(append_documents(b, x));
    return d9d_buf_append(b, "}\n", 2);
}

const d9d_infer_task_kind d9di_infer_task_logprobs = {.size = sizeof(d9d_infer_task_kind),
                                                      .row = logprobs_row};

/* --- perplexity --------------------------------------------------------------------------- */

static d9d_status perplexity_end(const void *config, const d9d_infer_task_summary *s, d9d_buf *b)
{
    (void)config;
    D9D_TRY(d9d_buf_printf(b, "{\"perplexity\": "));
    D9D_TRY(d9d_json_put_f64(b, s->perplexity));
    D9D_TRY(d9d_buf_printf(b, ", \"loss\": "));
    D9D_TRY(d9d_json_put_f64(b, s->loss));
    return d9d_buf_printf(b, ", \"tokens\": %lld, \"samples\": %lld}\n", (long long)s->tokens,
                          (long long)s->samples);
}

const d9d_infer_task_kind d9di_infer_task_perplexity = {.size = sizeof(d9d_infer_task_kind),
                                                        .end = perplexity_end};
