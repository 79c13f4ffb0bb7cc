/* infer_job.c - see infer/infer_job.h. */
#include "infer/infer_job.h"

d9d_status d9di_infer_check(const d9d_infer_config *c, const d9d_job *where, const char *output)
{
    D9D_TRY(d9d_parallel_degrees_check(&c->mesh, d9d_bootstrap_size(where->bootstrap)));
    D9D_TRY(d9d_job_check_profiling(c->trainer.profiling));
    if (c->trainer.model_stage_factory.source_checkpoint == NULL)
        return D9D_FAIL(D9D_ECONFIG, "trainer.model_stage_factory.source_checkpoint: name the "
                                     "model's weights");
    if (c->peft.which >= 0 && c->trainer.model_stage_factory.source_adapter == NULL)
        return D9D_FAIL(D9D_ECONFIG, "peft: there are no adapters: name them with "
                                     "trainer.model_stage_factory.source_adapter");
    return output != NULL && d9d_bootstrap_rank(where->bootstrap) == 0 ? d9d_fs_check_new(output)
                                                                       : D9D_OK;
}

d9di_engine_opts d9di_infer_engine_opts(const d9d_infer_config *c, const d9d_job *where,
                                        const d9di_run_data *data, const d9di_task *task)
{
    const d9d_job_trainer_section *t = &c->trainer;

    return (d9di_engine_opts){
        .where = where,
        .mesh = &c->mesh,
        .provider = &c->model_provider,
        .source = t->model_stage_factory.source_checkpoint,
        .adapter = t->model_stage_factory.source_adapter,
        .peft = &c->peft,
        .data = data,
        .task = task,
        .initialise = true,
        .quantised = {(d9d_quant_format)t->model_stage_factory.quantization,
                      (d9d_quant_format)t->model_stage_factory.head_quantization},
        .timeout_s = (double)t->timeout.init_timeout,
        .timeout_name = "trainer.timeout.init_timeout",
        .stopped_s = (double)t->timeout.step_timeout,
    };
}

d9di_profiler d9di_infer_profiler(const d9d_infer_config *c, const d9d_job *where)
{
    return (d9di_profiler){.c = c->trainer.profiling,
                           .dir = ".",
                           .rank = d9d_bootstrap_rank(where->bootstrap),
                           .log = where->log};
}

/* Paths whose files' content is in the key, and the output's path, which the key accompanies.
 * "data" is one object or a list. */
static const struct {
    const char *of[3]; /* nested keys; NULL ends them */
} paths[] = {
    {{"plugin"}},
    {{"data", "dataset"}},
    {{"model_provider", "hf_config"}},
    {{"trainer", "model_stage_factory", "source_checkpoint"}},
    {{"trainer", "model_stage_factory", "source_adapter"}},
    {{"task", "output"}},
    {{"task", "prompts"}},
    {{"task", "tokenizer"}},
    {{"task", "chat_template"}}, /* the prompts depend on it */
    {{"trainer", "profiling"}},  /* no line depends on it, nor on the next */
    {{"metrics"}},
};

static void remove_path(json_t *at, const char *const *of, size_t n)
{
    size_t i;
    json_t *each;

    if (json_is_array(at))
        json_array_foreach(at, i, each) remove_path(each, of, n);
    else if (n > 1 && of[1] != NULL)
        remove_path(json_object_get(at, of[0]), of + 1, n - 1);
    else
        (void)json_object_del(at, of[0]);
}

static d9d_status make_key(const json_t *resolved, d9d_hash content, d9d_hash *out)
{
    json_t *c = json_deep_copy(resolved);
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a copy of the configuration");
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        remove_path(c, paths[i].of, sizeof(paths[i].of) / sizeof(paths[i].of[0]));
    D9D_TRY_OR(st, d9d_json_put(&text, c, -1), out);
    D9D_TRY_OR(st, d9d_buf_append(&text, &content, sizeof(content)), out);
    *out = d9d_hash_bytes(text.data, text.len);
out:
    d9d_buf_release(&text);
    json_decref(c);
    return st;
}

d9d_status d9di_infer_check_sources(const d9d_job *where, const d9di_engine *e,
                                    const d9di_engine_opts *opts, const json_t *resolved,
                                    d9di_rank_consistency *same, d9d_hash *key)
{
    d9d_hash content;
    d9d_status st = D9D_OK;

    d9di_rank_consistency_add_engine(same, e, opts);
    if (key != NULL && d9d_bootstrap_rank(where->bootstrap) == 0)
        st = d9di_rank_consistency_content_hash(same, &content);
    if (key != NULL && d9d_bootstrap_rank(where->bootstrap) == 0 && st == D9D_OK)
        st = make_key(resolved, content, key);
    st = d9d_bootstrap_agree_status(where->bootstrap, st);
    if (st == D9D_OK)
        return d9di_rank_consistency_check(same, where->bootstrap);
    D9D_VEC_RELEASE(&same->items);
    return st;
}
