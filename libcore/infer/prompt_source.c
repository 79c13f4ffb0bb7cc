/* prompt_source.c - see infer/prompt_source.h. */
#include "infer/prompt_source.h"

#include <string.h>

static d9d_status check_data(const d9d_infer_config *c, const d9di_run_data *data)
{
    const d9d_job_data_section *sections = c->data.items;

    D9D_TRY(d9di_run_data_check_end(data));
    for (size_t i = 0; i < data->n; i++)
        if (d9d_dataset_is_packed(data->datasets[i]))
            return D9D_FAIL(D9D_ENOTSUP, "%s: samples of packed documents are no prompts",
                            sections[i].dataset);
    return D9D_OK;
}

d9d_status d9di_prompt_source_open_data(const d9d_infer_config *c, d9di_prompt_source *out)
{
    const d9d_job_generate_section *g = c->task.value;

    out->section = g;
    if ((g->prompts != NULL) == (c->data.n > 0))
        return D9D_FAIL(D9D_ECONFIG, g->prompts != NULL
                                         ? "give either data or task.prompts, not both"
                                         : "give data or task.prompts");
    if (g->prompts != NULL)
        return D9D_OK;
    D9D_TRY(d9di_run_data_open(&c->data, &c->trainer.data_loading, &c->mesh,
                               c->trainer.batching.microbatch_size, &out->data));
    D9D_TRY(check_data(c, &out->data));
    D9D_TRY(d9d_batch_buffer_create(&out->buffer));
    out->n = d9d_loader_samples(out->data.loader);
    out->hash = d9d_loader_data_hash(out->data.loader);
    for (size_t i = 0; i < out->data.n; i++) {
        const int64_t length = d9d_dataset_max_length(out->data.datasets[i]);

        out->longest = length > out->longest ? length : out->longest;
    }
    if (g->prompt_tokens != D9D_INT_NULL && g->prompt_tokens < out->longest)
        out->longest = g->prompt_tokens;
    return D9D_OK;
}

/* The variables of the chat template. */
static d9d_status make_kwargs(const d9d_job_generate_section *s, json_t **out)
{
    const json_t *given = s->chat_template_kwargs;
    json_t *kwargs = given != NULL ? json_deep_copy(given) : json_object();

    if (given != NULL && !json_is_object(given)) {
        json_decref(kwargs);
        return D9D_FAIL(D9D_ECONFIG, "task.chat_template_kwargs: must be an object");
    }
    if (!s->enable_thinking)
        d9d_json_set(&kwargs, "enable_thinking", json_false());
    *out = kwargs;
    return kwargs != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for a chat template");
}

d9d_status d9di_prompt_source_open_prompts(d9di_prompt_source *a, const d9d_tokenizer *tokenizer,
                                           const char *tokenizer_path, int64_t vocab)
{
    json_t *kwargs;
    d9d_prompts_opts opts = {.path = a->section->prompts,
                             .tokenizer = tokenizer,
                             .add_special_tokens = a->section->add_special_tokens,
                             .chat = {.chat_template = a->section->chat_template,
                                      .tokenizer = tokenizer_path,
                                      .date = a->section->chat_template_date},
                             .vocab = vocab};
    d9d_status st;

    if (a->section->prompts == NULL)
        return D9D_OK;
    D9D_TRY(make_kwargs(a->section, &kwargs));
    opts.chat.kwargs = kwargs;
    st = d9d_prompts_read(&opts, &a->prompts);
    json_decref(kwargs);
    D9D_TRY(st);
    a->n = a->prompts.n;
    a->longest = a->prompts.longest;
    a->hash = a->prompts.hash;
    return D9D_OK;
}

void d9di_prompt_source_release(d9di_prompt_source *a)
{
    d9d_prompts_release(&a->prompts);
    d9d_batch_buffer_free(a->buffer);
    d9di_run_data_release(&a->data);
    *a = (d9di_prompt_source){0};
}

/* Of a sample's n tokens, those before the first target. */
static int64_t prompt_length(const d9di_prompt_source *a, const d9d_batch *b)
{
    const int64_t n = b->lengths[0];
    int64_t i = 0;

    if (a->section->prompt_tokens != D9D_INT_NULL)
        return a->virtual_tokens + a->section->prompt_tokens < n
                   ? a->virtual_tokens + a->section->prompt_tokens
                   : n;
    while (i < n && b->labels[i] == D9D_IGNORE_INDEX)
        i++;
    return i < n ? i + 1 : n;
}

static d9d_status append_tokens(d9d_token_ids *ids, const void *from, size_t n)
{
    D9D_TRY(D9D_VEC_RESERVE(ids, n));
    if (n > 0)
        memcpy(ids->data + ids->len, from, n * sizeof(*ids->data));
    ids->len += n;
    return D9D_OK;
}

/* Virtual tokens, before a prompt of n tokens; the loader does the same with samples. */
static d9d_status append_virtual(const d9di_prompt_source *a, size_t n, d9d_token_ids *ids)
{
    for (int64_t i = 0; i < a->virtual_tokens && n > 0; i++)
        D9D_TRY(D9D_VEC_PUSH(ids, (uint32_t)(a->first_virtual + i)));
    return D9D_OK;
}

void d9di_prompt_source_set_virtual(d9di_prompt_source *a, int64_t first, int64_t n)
{
    a->first_virtual = first;
    a->virtual_tokens = n;
    a->longest += n;
}

d9d_status d9di_prompt_source_get(d9di_prompt_source *a, int64_t k, d9d_token_ids *ids,
                                  d9di_prompt_source_item *out)
{
    const size_t *start = a->prompts.start;
    d9d_batch b;

    if (start != NULL) {
        *out = (d9di_prompt_source_item){k, -1};
        D9D_TRY(append_virtual(a, start[k + 1] - start[k], ids));
        return append_tokens(ids, a->prompts.ids.data + start[k], start[k + 1] - start[k]);
    }
    D9D_TRY(d9d_loader_fill(a->data.loader, k, 1, a->buffer, &b));
    *out = (d9di_prompt_source_item){b.refs[0].sample, a->data.n > 1 ? b.refs[0].source : -1};
    return append_tokens(ids, b.ids, (size_t)prompt_length(a, &b));
}
