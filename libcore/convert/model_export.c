/* model_export.c - see d9d/convert/model_export.h. */
#include "d9d/convert/model_export.h"

#include "d9d/base/plugin_call.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/manifest.h"
#include "d9d/convert/convert.h"
#include "d9d/model/hf/hf_config.h"
#include "model/weights/weights_merge.h"

/* Make a config.json for a model that was not read from one; ENOTSUP if there is none. */
static d9d_status config_create(const d9d_model_spec *m, json_t **doc)
{
    if (m->provider->hf_config != NULL)
        return D9D_PLUGIN_CALL(m->provider->table->name, m->provider, hf_config, m->config,
                               m->opts.dtype, doc);
    return D9D_FAIL(D9D_ENOTSUP, "%s: without hf_config it has no config.json",
                    m->provider->table->name);
}

/* Load the config.json that the model was read from, with the head that it has now. */
static d9d_status config_reload(const d9d_model_spec *m, const d9d_log *log, json_t **doc)
{
    D9D_TRY(d9d_hf_config_load(m->hf_config, doc));
    if (d9d_hf_config_unquantize(*doc))
        d9d_log_info(log,
                     "config.json is written without " D9D_QUANTIZATION_FIELD
                     ": weights are exported as %s",
                     d9d_dtype_name(m->opts.dtype));
    return m->provider->hf_head != NULL
               ? D9D_PLUGIN_CALL(m->provider->table->name, m->provider, hf_head, m->config, *doc)
               : D9D_OK;
}

/* The config.json to write, and its layout.  NULL for a model that HuggingFace's format cannot
 * express and that was not read from one. */
static d9d_status config_build(const d9d_model_spec *m, const d9d_log *log, json_t **doc,
                               d9d_weights_layout *layout)
{
    d9d_status reloaded;

    *layout = D9D_LAYOUT_HF;
    if (m->hf_config == NULL) {
        d9d_status st = config_create(m, doc);

        if (st == D9D_ENOTSUP)
            *layout = D9D_LAYOUT_D9D;
        return st == D9D_ENOTSUP ? D9D_OK : st;
    }
    reloaded = config_reload(m, log, doc);
    if (reloaded == D9D_ENOTSUP) {
        *layout = D9D_LAYOUT_D9D;
        return d9d_hf_config_set_dtype(*doc, m->opts.dtype);
    }
    D9D_TRY(reloaded);
    *layout = d9d_model_hf_layout(m, *doc);
    d9d_hf_config_unmark(*doc);
    return d9d_hf_config_set_dtype(*doc, m->opts.dtype);
}

/* Write config.json and copy the auxiliary files. */
static d9d_status config_write(const json_t *doc, const d9d_model_spec *m, const char *dir,
                               const d9d_log *log)
{
    d9d_arena a = {0};
    const char *from = NULL, *aux_dir;
    d9d_status st = D9D_OK;

    if (m->hf_config != NULL)
        D9D_TRY_OR(st, d9d_hf_config_locate(m->hf_config, &a, &from, &aux_dir), out);
    if (doc != NULL)
        D9D_TRY_OR(st, d9d_hf_config_write(dir, doc, from), out);
    D9D_TRY_OR(st, d9d_model_spec_aux_dir(m, &a, &aux_dir), out);
    if (aux_dir != NULL)
        st = d9d_checkpoint_copy_aux_files(aux_dir, dir, log);
out:
    d9d_arena_release(&a);
    return st;
}

static d9d_status shards_write(const d9d_map_plan *plan, const char *dir, const d9d_log *log)
{
    d9d_shard_sink *shards = NULL;
    d9d_tensor_sink sink;
    d9d_status st;

    D9D_TRY(d9d_shard_sink_create(dir, D9D_SHARD_BYTES, &shards));
    sink = d9d_shard_sink_tensor_sink(shards);
    D9D_TRY_OR(st, d9d_map_plan_run(plan, &sink, 0, log), out);
    st = d9d_shard_sink_end(shards);
out:
    d9d_shard_sink_free(shards);
    return st;
}

static d9d_status tensors_write(const d9d_model_spec *m, const d9d_tensor_source *src,
                                d9d_weights_layout to, const char *dir, const d9d_log *log)
{
    const d9d_map_plan_opts opt = {.source = "model", .mapper = m->provider->table->name};
    d9d_mapper *mapper = NULL;
    d9d_map_plan *plan = NULL;
    d9d_status st;

    D9D_TRY(d9d_model_mapper(m, D9D_WHOLE_MODEL, src, to, &mapper));
    D9D_TRY_OR(st, d9d_map_plan_create(mapper, src, &opt, &plan), out);
    st = shards_write(plan, dir, log);
out:
    d9d_map_plan_free(plan);
    d9d_mapper_free(mapper);
    return st;
}

static d9d_status files_write(const d9d_model_spec *m, const d9d_tensor_source *src,
                              const char *dir, const d9d_log *log)
{
    json_t *doc = NULL;
    d9d_weights_layout to;
    d9d_status st;

    D9D_TRY_OR(st, config_build(m, log, &doc, &to), out);
    if (doc != NULL)
        D9D_TRY_OR(st, d9d_hf_config_set_prefix_mask(doc, m->opts.prefix_mask), out);
    D9D_TRY_OR(st, tensors_write(m, src, to, dir, log), out);
    st = config_write(doc, m, dir, log);
out:
    json_decref(doc);
    return st;
}

/* Check that the auxiliary files can be copied. */
static d9d_status aux_files_check(const d9d_model_spec *m)
{
    d9d_arena a = {0};
    const char *dir;
    const d9d_status st = d9d_model_spec_aux_dir(m, &a, &dir);

    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_model_export_check(const d9d_model_spec *m)
{
    json_t *doc = NULL;
    d9d_status st = aux_files_check(m);

    if (st == D9D_OK)
        st = m->hf_config == NULL ? config_create(m, &doc) : config_reload(m, NULL, &doc);
    json_decref(doc);
    return st;
}

d9d_status d9d_model_export_params(const d9d_model_spec *m, const d9d_params *params,
                                   const d9d_adapters *ad, const char *dir, const d9d_log *log)
{
    d9d_params_io *io = NULL;
    d9d_adapters_merge *merged = NULL;
    d9d_outdir out = {0};
    d9d_tensor_source src;
    d9d_status st;

    D9D_TRY(d9d_params_io_open(params, D9D_PARAMS_DATA, &io));
    D9D_TRY_OR(st, d9d_params_io_source(io, &src), done);
    D9D_TRY_OR(st, d9di_weights_merge(m, ad, &src, &merged), done);
    D9D_TRY_OR(st, d9d_outdir_begin(&out, dir, 0, NULL), done);
    D9D_TRY_OR(st, files_write(m, &src, out.tmp, log), done);
    D9D_TRY_OR(st, d9d_manifest_write(out.tmp, NULL, 0, log), done);
    st = d9d_outdir_commit(&out);
done:
    d9d_outdir_release(&out);
    d9d_adapters_merge_free(merged);
    d9d_params_io_close(io);
    return st;
}

d9d_status d9d_model_export_checkpoint(const d9d_model_spec *m, const char *saved,
                                       const d9d_adapters *ad, const char *dir,
                                       d9d_bootstrap *bootstrap, const d9d_log *log)
{
    d9d_convert_opts opt = {.cast = true,
                            .dtype = m->opts.dtype,
                            .shard_bytes = D9D_SHARD_BYTES,
                            .config = m->hf_config,
                            .adapters = ad,
                            .log = log};
    const d9d_convert_run_opts opts = {.bootstrap = bootstrap, .log = log};
    d9d_convert *convert = NULL;
    json_t *doc = NULL;
    d9d_weights_layout to;
    d9d_status st;

    st = config_build(m, log, &doc, &to);
    opt.to = to == D9D_LAYOUT_D9D ? D9D_CONVERT_D9D : D9D_CONVERT_HF;
    opt.expert_layout =
        to == D9D_LAYOUT_HF_FUSED ? D9D_CONVERT_EXPERTS_FUSED : D9D_CONVERT_EXPERTS_SEPARATE;
    if (st == D9D_OK)
        st = d9d_convert_open_model(saved, m, doc, &opt, &convert);
    if (bootstrap != NULL)
        st = d9d_bootstrap_agree_status(bootstrap, st);
    if (st == D9D_OK)
        st = d9d_convert_run(convert, dir, &opts);
    d9d_convert_close(convert);
    json_decref(doc);
    return st;
}
