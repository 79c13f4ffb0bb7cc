/* weights.c - see d9d/model/weights.h. */
#include "d9d/model/weights.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/checkpoint.h"
#include "d9d/model/hf_config.h"
#include "d9d/model/qwen3_map.h"

/* One conversion: plan `src` into layout `to`, cast, and run it into the sink. */
typedef struct transfer {
    const d9d_qwen3_config *config;
    d9d_source src;
    const char *from; /* for sentences */
    d9d_layout to;
    d9d_dtype dtype;
    d9d_sink sink;
} transfer;

/* Plan it and, unless `only_check`, run it. */
static d9d_status transfer_run(const transfer *t, bool only_check, const d9d_log *log)
{
    const d9d_plan_options opt = {
        .cast = true, .cast_to = t->dtype, .source = t->from, .mapper = "qwen3"};
    d9d_mapper *mapper = NULL;
    d9d_map_plan *plan = NULL;
    d9d_status st;

    D9D_TRY(d9d_qwen3_mapper(t->config, D9D_WHOLE_MODEL, &t->src, t->to, &mapper));
    D9D_TRY_OR(st, d9d_plan_create(mapper, &t->src, &opt, &plan), out);
    if (!only_check)
        st = d9d_plan_run(plan, &t->sink, 0, log);
out:
    d9d_plan_free(plan);
    d9d_mapper_free(mapper);
    return st;
}

static d9d_dtype dtype_of(const d9d_params *params)
{
    return params->n > 0 ? params->p[0]->dtype : D9D_F32;
}

d9d_status d9d_weights_check(const d9d_qwen3_config *c, d9d_dtype dtype, const char *dir)
{
    d9d_checkpoint *ckpt;
    d9d_status st;

    D9D_TRY(d9d_checkpoint_open(dir, &ckpt));
    st = transfer_run(&(transfer){.config = c,
                                  .src = d9d_checkpoint_source(ckpt),
                                  .from = dir,
                                  .to = D9D_LAYOUT_D9D,
                                  .dtype = dtype},
                      true, NULL);
    d9d_checkpoint_close(ckpt);
    return st;
}

d9d_status d9d_weights_load(const d9d_qwen3_config *c, const d9d_params *params, const char *dir,
                            const d9d_log *log)
{
    d9d_checkpoint *ckpt = NULL;
    d9d_params_io *io = NULL;
    d9d_status st;

    D9D_TRY(d9d_checkpoint_open(dir, &ckpt));
    D9D_TRY_OR(st, d9d_params_io_open(params, D9D_PARAMS_DATA, &io), out);
    st = transfer_run(&(transfer){.config = c,
                                  .src = d9d_checkpoint_source(ckpt),
                                  .from = dir,
                                  .to = D9D_LAYOUT_D9D,
                                  .dtype = dtype_of(params),
                                  .sink = d9d_params_io_sink(io)},
                      false, log);
out:
    d9d_params_io_close(io);
    d9d_checkpoint_close(ckpt);
    return st;
}

/* --- export ---------------------------------------------------------------------------- */

/* The configuration to write, and the layout that goes with it; none (NULL) for a model that
 * HuggingFace's format cannot say. */
static d9d_status config_make(const d9d_qwen3_config *c, d9d_dtype dtype, const char *hf_config,
                              json_t **doc, d9d_layout *layout)
{
    *layout = D9D_LAYOUT_HF;
    if (hf_config == NULL) {
        d9d_status st = d9d_hf_config_make(c, dtype, doc);

        if (st == D9D_ENOTSUP)
            *layout = D9D_LAYOUT_D9D;
        return st == D9D_ENOTSUP ? D9D_OK : st;
    }
    D9D_TRY(d9d_hf_config_load(hf_config, doc));
    if (json_object_get(*doc, "num_local_experts") != NULL)
        *layout = D9D_LAYOUT_HF_FUSED;
    (void)json_object_del(*doc, "d9d");
    return d9d_hf_config_set_dtype(*doc, dtype);
}

/* What stands beside a config.json goes with it. */
static d9d_status others_copy(const char *hf_config, const char *dir)
{
    static const char *const except[] = {D9D_HF_CONFIG_NAME, NULL};
    const char *slash = strrchr(hf_config, '/'), *name = slash != NULL ? slash + 1 : hf_config;
    char *from;
    d9d_status st;

    if (d9d_fs_is_dir(hf_config))
        return d9d_checkpoint_copy_others(hf_config, dir, except);
    if (strcmp(name, D9D_HF_CONFIG_NAME) != 0)
        return D9D_OK;
    from = slash != NULL ? strndup(hf_config, (size_t)(slash - hf_config) + 1) : strdup(".");
    if (from == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its directory's name", hf_config);
    st = d9d_checkpoint_copy_others(from, dir, except);
    free(from);
    return st;
}

static d9d_status shards_write(const transfer *t, const char *dir, const d9d_log *log)
{
    d9d_shard_sink *shards = NULL;
    transfer into = *t;
    d9d_status st;

    D9D_TRY(d9d_shard_sink_create(dir, D9D_SHARD_BYTES, &shards));
    into.sink = d9d_shard_sink_sink(shards);
    D9D_TRY_OR(st, transfer_run(&into, false, log), out);
    st = d9d_shard_sink_end(shards);
out:
    d9d_shard_sink_free(shards);
    return st;
}

static d9d_status files_write(const d9d_qwen3_config *c, d9d_params_io *io, d9d_dtype dtype,
                              const char *dir, const char *hf_config, const d9d_log *log)
{
    transfer t = {.config = c, .src = d9d_params_io_source(io), .from = "model", .dtype = dtype};
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY_OR(st, config_make(c, dtype, hf_config, &doc, &t.to), out);
    D9D_TRY_OR(st, shards_write(&t, dir, log), out);
    if (doc != NULL)
        D9D_TRY_OR(st, d9d_hf_config_write(dir, doc), out);
    if (hf_config != NULL)
        st = others_copy(hf_config, dir);
out:
    json_decref(doc);
    return st;
}

d9d_status d9d_weights_check_export(const d9d_qwen3_config *c, const char *hf_config)
{
    json_t *doc = NULL;
    d9d_status st = hf_config == NULL ? d9d_hf_config_make(c, D9D_F32, &doc) : D9D_OK;

    json_decref(doc);
    return st;
}

d9d_status d9d_weights_export(const d9d_qwen3_config *c, const d9d_params *params, const char *dir,
                              const char *hf_config, const d9d_log *log)
{
    d9d_params_io *io = NULL;
    d9d_outdir out = {0};
    d9d_status st;

    D9D_TRY(d9d_params_io_open(params, D9D_PARAMS_DATA, &io));
    D9D_TRY_OR(st, d9d_outdir_begin(&out, dir, 0), done);
    D9D_TRY_OR(st, files_write(c, io, dtype_of(params), out.tmp, hf_config, log), done);
    st = d9d_outdir_commit(&out);
done:
    d9d_outdir_release(&out);
    d9d_params_io_close(io);
    return st;
}
