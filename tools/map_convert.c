/* map_convert.c - see map_convert.h. */
#include "map_convert.h"

#include <inttypes.h>

d9d_status map_plugins_open(const struct map_opts *o, d9d_plugins **out)
{
    json_t *names = json_array(), *doc = NULL;
    d9d_status st;

    for (size_t i = 0; i < o->plugins.n; i++)
        d9d_json_add(&names, d9d_json_str(o->plugins.item[i]));
    if (names != NULL)
        doc = json_pack("{s:o}", "plugin", names);
    st = doc != NULL ? d9d_plugins_open(doc, "--plugin", out)
                     : D9D_FAIL(D9D_ENOMEM, "--plugin: no memory for its names");
    json_decref(doc);
    return st;
}

d9d_status map_convert_opts(const tool_run *r, const struct map_opts *o, d9d_plugins *plugins,
                            d9d_convert_opts *out)
{
    static const d9d_dtype dtype_of[] = {D9D_F32, D9D_F32, D9D_BF16, D9D_F16};

    *out = (d9d_convert_opts){.to = (d9d_convert_to)o->to,
                              .expert_layout = (d9d_convert_experts)o->experts,
                              .cast = o->dtype > 0,
                              .dtype = dtype_of[o->dtype],
                              .overflow = (d9d_cast_overflow)o->overflow,
                              .shard_bytes = (uint64_t)o->shard_size,
                              .mapper = o->mapper,
                              .adapter = o->adapter,
                              .into = o->into,
                              .config = r->n_args > 0 ? o->model : NULL,
                              .log = r->log};
    out->adapter_kinds = d9d_plugins_adapter_kinds(plugins);
    return d9d_plugins_models(plugins, &out->choices);
}

static d9d_status report_written(const tool_run *r, const d9d_convert *c, const char *dst)
{
    const d9d_map_plan *p = d9d_convert_plan(c);

    if (r->json && !r->mute)
        return tool_put_json(json_pack("{s:o, s:I, s:I}", "path", d9d_json_str(dst), "tensors",
                                       (json_int_t)d9d_map_plan_output_count(p), "bytes",
                                       (json_int_t)d9d_map_plan_bytes(p)));
    d9d_log_info(r->log, "wrote %s: %zu tensors, %" PRIu64 " bytes", dst,
                 d9d_map_plan_output_count(p), d9d_map_plan_bytes(p));
    return D9D_OK;
}

static d9d_status open_here(tool_run *r, const struct map_opts *o, const char *src,
                            d9d_plugins **plugins, d9d_convert **out)
{
    d9d_convert_opts opt;

    D9D_TRY(map_plugins_open(o, plugins));
    D9D_TRY(map_convert_opts(r, o, *plugins, &opt));
    return src != NULL ? d9d_convert_open(src, &opt, out)
                       : d9d_convert_open_random(o->model, (uint64_t)o->seed, &opt, out);
}

/* ECONFIG if a rank has another file under a name. */
static d9d_status check_same_files(tool_run *r, const struct map_opts *o, const char *src,
                                   const d9d_plugins *plugins, d9d_bootstrap *bootstrap)
{
    const size_t n = d9d_plugins_count(plugins);
    const char **from = d9d_arena_alloc(&r->arena, (n + 5) * sizeof(*from));

    if (from == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the names of files");
    from[0] = src;
    from[1] = o->model;
    from[2] = o->mapper;
    from[3] = o->adapter;
    from[4] = o->into;
    for (size_t i = 0; i < n; i++)
        from[5 + i] = d9d_plugins_file(plugins, i);
    return d9d_job_check_same_files(bootstrap, from, n + 5);
}

/* Opens the conversion on all ranks.  All have the same plan; each makes its share of the
 * output. */
static d9d_status open_on_all_ranks(tool_run *r, const struct map_opts *o, const char *src,
                                    d9d_bootstrap *bootstrap, d9d_plugins **plugins,
                                    d9d_convert **out)
{
    D9D_TRY(rank_args_check_options(r, bootstrap, o));
    D9D_TRY(d9d_bootstrap_agree_status(bootstrap, open_here(r, o, src, plugins, out)));
    return check_same_files(r, o, src, *plugins, bootstrap);
}

d9d_status map_convert(tool_run *r, const void *options)
{
    const struct map_opts *o = options;
    const char *src = r->n_args > 1 ? r->args[0] : NULL, *dst = r->args[r->n_args - 1];
    d9d_convert_run_opts opts = {.replace = o->force, .jobs = (int)o->jobs};
    d9d_plugins *plugins = NULL;
    d9d_convert *c = NULL;
    d9d_status st;

    if (src == NULL && o->model == NULL)
        return D9D_FAIL(D9D_ECONFIG, "init needs --model CONFIG.json");
    D9D_TRY(tool_join(r, &opts.bootstrap));
    opts.log = r->log;
    st = open_on_all_ranks(r, o, src, opts.bootstrap, &plugins, &c);
    if (st == D9D_OK)
        st = d9d_convert_run(c, dst, &opts);
    if (st == D9D_OK)
        st = report_written(r, c, dst);
    d9d_convert_close(c);
    d9d_plugins_close(plugins);
    return tool_leave(r, opts.bootstrap, st);
}
