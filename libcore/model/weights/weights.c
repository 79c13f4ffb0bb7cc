/* weights.c - see d9d/model/weights/weights.h. */
#include "d9d/model/weights/weights.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/manifest.h"
#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"
#include "model/weights/weights_merge.h"

struct d9d_weights {
    d9d_checkpoint *ckpt;
    d9d_adapters_merge *merge; /* NULL without adapters */
    d9d_tensor_source src;
    d9d_mapper *mapper;
    d9d_map_plan *plan;
};

static d9d_status headers_read(d9d_weights *w)
{
    size_t n = d9d_mapper_input_count(w->mapper);
    const char **names = malloc((n + 1) * sizeof(*names));
    d9d_status st;

    if (names == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names of %zu tensors", d9d_checkpoint_dir(w->ckpt), n);
    for (size_t i = 0; i < n; i++)
        names[i] = d9d_mapper_input(w->mapper, i);
    st = d9d_checkpoint_load(w->ckpt, names, n);
    free(names);
    return st;
}

d9d_status d9di_weights_merge(const d9d_model_spec *m, const d9d_adapters *ad,
                              d9d_tensor_source *src, d9d_adapters_merge **out)
{
    d9d_arena a = {0};
    d9d_model_matrices of;
    d9d_status st;

    if (ad == NULL)
        return D9D_OK;
    st = d9d_model_spec_matrices(m, &a, &of);
    if (st == D9D_OK)
        st = d9d_adapters_merge_create(ad, &of, d9d_model_layout(m, src), src,
                                       m->opts.dtype == D9D_F32, out);
    if (st == D9D_OK)
        *src = d9d_adapters_merge_source(*out);
    d9d_arena_release(&a);
    return st;
}

/* Open the source by names, and the mapping to the model's parameters. */
static d9d_status source_open(d9d_weights *w, const d9d_model_spec *m, d9d_stage stage,
                              const char *dir)
{
    D9D_TRY(d9d_checkpoint_list(dir, &w->ckpt));
    D9D_TRY(d9d_hf_config_decode_dir(m->hf_config, m->opts.dtype, w->ckpt));
    w->src = d9d_checkpoint_source(w->ckpt);
    return d9d_model_mapper(m, stage, &w->src, D9D_LAYOUT_D9D, &w->mapper);
}

static d9d_status weights_open(d9d_weights *w, const d9d_model_spec *m, d9d_stage stage,
                               const char *dir, const d9d_adapters *ad)
{
    const d9d_map_plan_opts opt = {.cast = true,
                                   .cast_to = m->opts.dtype,
                                   .keep_suffix = "." D9D_ROUTER_BIAS,
                                   .keep_as_float32 = true,
                                   .floating = true,
                                   .source = dir,
                                   .mapper = m->provider->table->name,
                                   .allow_unused = stage.count > 1};

    D9D_TRY(source_open(w, m, stage, dir));
    D9D_TRY(stage.count > 1 ? headers_read(w) : d9d_checkpoint_load(w->ckpt, NULL, 0));
    w->src = d9d_checkpoint_source(w->ckpt);
    if (m->provider->family != NULL)
        D9D_TRY(d9d_family_check_tied(m->config, &w->src, true));
    D9D_TRY(d9di_weights_merge(m, ad, &w->src, &w->merge));
    return d9d_map_plan_create(w->mapper, &w->src, &opt, &w->plan);
}

d9d_status d9d_weights_open(const d9d_model_spec *m, d9d_stage stage, const char *dir,
                            const d9d_adapters *ad, d9d_weights **out)
{
    d9d_weights *w = calloc(1, sizeof(*w));
    d9d_status st;

    if (w == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    st = weights_open(w, m, stage, dir, ad);
    if (st == D9D_OK)
        *out = w;
    else
        d9d_weights_close(w);
    return st;
}

d9d_status d9d_weights_check(const d9d_model_spec *m, const char *dir, const d9d_adapters *ad)
{
    const d9d_map_plan_opts opt = {.source = dir, .mapper = m->provider->table->name};
    d9d_weights *w = calloc(1, sizeof(*w));
    d9d_status st;

    if (w == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    st = source_open(w, m, D9D_WHOLE_MODEL, dir);
    if (st == D9D_OK)
        st = d9di_weights_merge(m, ad, &w->src, &w->merge);
    if (st == D9D_OK)
        st = d9d_map_plan_check_names(w->mapper, &w->src, &opt);
    d9d_weights_close(w);
    return st;
}

void d9d_weights_close(d9d_weights *w)
{
    if (w == NULL)
        return;
    d9d_map_plan_free(w->plan);
    d9d_mapper_free(w->mapper);
    d9d_adapters_merge_free(w->merge);
    d9d_checkpoint_close(w->ckpt);
    free(w);
}

const d9d_map_plan *d9d_weights_plan(const d9d_weights *w)
{
    return w->plan;
}

d9d_status d9d_weights_read(const d9d_weights *w, const d9d_params *params, const d9d_log *log)
{
    d9d_params_io *io;
    d9d_tensor_sink sink;
    d9d_status st;

    D9D_TRY(d9d_params_io_open(params, D9D_PARAMS_DATA, &io));
    sink = d9d_params_io_sink(io);
    st = d9d_map_plan_run(w->plan, &sink, 0, log);
    d9d_params_io_close(io);
    return st;
}
