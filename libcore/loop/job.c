/* job.c - checking a job's configuration.  See d9d/loop/job.h. */
#include "d9d/loop/job.h"

#include <string.h>

#include "d9d/model/hf_config.h"

/* --- mesh and batch -------------------------------------------------------------- */

d9d_status d9d_job_check_batching(const d9d_degrees *m, const struct d9d_batching_section *b)
{
    const int64_t replicas = m->data_parallel_replicate * m->data_parallel_shard; /* each < 2^20 */
    int64_t once;

    if (__builtin_mul_overflow(replicas, b->microbatch_size, &once))
        once = INT64_MAX;
    if (b->global_batch_size % once != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.batching: global_batch_size %lld is not a multiple of %lld "
                        "(%lld data-parallel ranks x microbatch_size %lld)",
                        (long long)b->global_batch_size, (long long)once, (long long)replicas,
                        (long long)b->microbatch_size);
    return D9D_OK;
}

/* --- the model ----------------------------------------------------------------------- */

static int64_t *split_size(const d9d_str_int_map *sizes, const char *name)
{
    for (size_t i = 0; i < sizes->n; i++)
        if (strcmp(sizes->names[i], name) == 0)
            return &sizes->values[i];
    return NULL;
}

/* The splits in split_vocab_order: each named once, none left out. */
static d9d_status splits_read(const d9d_model_section *m, d9d_arena *a, d9d_qwen3_config *c)
{
    const char *const *order = m->split_vocab_order.items;
    size_t n = m->split_vocab_order.n;
    d9d_vocab_split *splits = d9d_arena_alloc(a, (n + 1) * sizeof(*splits));

    if (splits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider.model: %zu splits", n);
    for (size_t i = 0; i < n; i++) {
        const int64_t *size = split_size(&m->split_vocab_size, order[i]);

        if (size == NULL)
            return D9D_FAIL(D9D_ECONFIG,
                            "model_provider.model.split_vocab_order[%zu]: \"%s\" is "
                            "not in split_vocab_size",
                            i, order[i]);
        for (size_t j = 0; j < i; j++)
            if (strcmp(order[j], order[i]) == 0)
                return D9D_FAIL(D9D_ECONFIG,
                                "model_provider.model.split_vocab_order[%zu]: \"%s\" "
                                "stands there twice",
                                i, order[i]);
        splits[i] = (d9d_vocab_split){order[i], *size};
    }
    if (n != m->split_vocab_size.n)
        return D9D_FAIL(D9D_ECONFIG,
                        "model_provider.model: split_vocab_order names %zu of %zu "
                        "splits",
                        n, m->split_vocab_size.n);
    c->splits = splits;
    c->n_splits = n;
    return D9D_OK;
}

static d9d_status section_read(const d9d_model_section *m, d9d_arena *a, d9d_qwen3_config *c)
{
    const d9d_layer_section *l = &m->layer;
    const d9d_shared_section *shared = l->shared_expert;
    bool moe = l->num_experts > 0;

    *c = (d9d_qwen3_config){
        .hidden = l->hidden_size,
        .layers = m->num_hidden_layers,
        .heads = l->num_attention_heads,
        .kv_heads = l->num_key_value_heads,
        .head_dim = l->head_dim,
        .dense_intermediate = moe ? 0 : l->intermediate_size,
        .expert_intermediate = moe ? l->intermediate_size : 0,
        .shared_intermediate = shared != NULL ? shared->intermediate_size : 0,
        .shared_gate = shared != NULL && shared->enable_gate,
        .experts = l->num_experts,
        .top_k = l->experts_top_k,
        .renormalise = true, /* spec 12.1: always, in this family's parameters */
        .norm_eps = (float)l->rms_norm_eps,
        .rope_base = m->rope_base,
        .max_positions = m->max_position_ids,
        .tied = m->tie_word_embeddings,
        .init_std = m->initializer_range,
        .virtual_pre = m->pipeline_num_virtual_layers_pre,
        .virtual_post = m->pipeline_num_virtual_layers_post,
    };
    return splits_read(m, a, c);
}

d9d_status d9d_job_model_read(const d9d_union *provider, d9d_arena *a, d9d_job_model *out)
{
    const d9d_provider_section *p = provider->value;

    if (p->hf_config != NULL)
        D9D_TRY(d9d_hf_config_read(p->hf_config, a, &out->config));
    else
        D9D_TRY(section_read(p->model, a, &out->config));
    out->options = (d9d_model_options){
        .dtype = p->dtype == 0 ? D9D_F32 : D9D_BF16,
        .checkpointing = (d9d_checkpointing)p->checkpointing,
    };
    return d9d_qwen3_check(&out->config);
}
