/* convert.c - see d9d/model/convert.h. */
#include "d9d/model/convert.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/model/hf_config.h"

struct d9d_convert {
    d9d_convert_options opt;
    d9d_arena arena;
    const char *src; /* NULL: random weights */
    const char *config_path;
    json_t *doc; /* config.json of the source */
    d9d_qwen3_config config;
    d9d_layout from, to;
    d9d_dtype dtype; /* of most of the output, for config.json */
    d9d_checkpoint *ckpt;
    d9d_qwen3_random *random;
    d9d_source source;
    d9d_mapper *mapper;
    d9d_map_plan *plan;
};

/* --- layouts --------------------------------------------------------------------------- */

/* The HuggingFace layout of the source, or of the checkpoint behind it. */
static d9d_layout origin(const d9d_convert *c)
{
    if (c->from != D9D_LAYOUT_D9D)
        return c->from;
    return d9d_hf_config_was_fused(c->doc) ? D9D_LAYOUT_HF_FUSED : D9D_LAYOUT_HF;
}

static d9d_layout target(const d9d_convert *c)
{
    d9d_convert_to to = c->opt.to;

    if (to == D9D_CONVERT_OTHER)
        to = c->from == D9D_LAYOUT_D9D ? D9D_CONVERT_HF : D9D_CONVERT_D9D;
    if (to == D9D_CONVERT_D9D)
        return D9D_LAYOUT_D9D;
    if (c->opt.experts != D9D_EXPERTS_AS_BEFORE)
        return c->opt.experts == D9D_EXPERTS_FUSED ? D9D_LAYOUT_HF_FUSED : D9D_LAYOUT_HF;
    return origin(c);
}

/* Experts in another layout are for another generation of transformers. */
static d9d_status mark_layout(const d9d_convert *c, json_t *doc)
{
    d9d_hf_config_unmark(doc);
    if (c->to == D9D_LAYOUT_D9D)
        return d9d_hf_config_mark(doc, &c->config, origin(c) == D9D_LAYOUT_HF_FUSED);
    if (c->config.experts == 0 || c->to == origin(c))
        return D9D_OK;
    return d9d_hf_config_set_generation(doc, c->to == D9D_LAYOUT_HF_FUSED ? 5 : 4);
}

/* --- opening ------------------------------------------------------------------------------ */

static d9d_status read_config(d9d_convert *c, const char *path)
{
    const char *file = d9d_fs_is_dir(path) ? d9d_fs_join(&c->arena, path, D9D_HF_CONFIG_NAME)
                                           : d9d_arena_strdup(&c->arena, path);

    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    c->config_path = file;
    D9D_TRY(d9d_hf_config_load(file, &c->doc));
    D9D_TRY(d9d_hf_config_parse(c->doc, file, &c->arena, &c->config));
    return d9d_hf_config_dtype(c->doc, file, D9D_F32, &c->dtype);
}

static d9d_status make_plan(d9d_convert *c, const char *name)
{
    d9d_plan_options opt = {.cast = c->opt.cast,
                            .cast_to = c->opt.dtype,
                            .source = name,
                            .mapper = c->config.experts > 0 ? "qwen3_moe" : "qwen3",
                            .problem = c->opt.problem,
                            .arg = c->opt.arg};

    c->from = d9d_qwen3_layout(&c->source);
    d9d_qwen3_fit(&c->source, &c->config);
    c->to = target(c);
    D9D_TRY(d9d_qwen3_mapper(&c->config, D9D_WHOLE_MODEL, &c->source, c->to, &c->mapper));
    return d9d_plan_create(c->mapper, &c->source, &opt, &c->plan);
}

static d9d_status open_files(d9d_convert *c, const char *src)
{
    c->src = d9d_arena_strdup(&c->arena, src);
    if (c->src == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
    D9D_TRY(read_config(c, src));
    D9D_TRY(d9d_checkpoint_open(src, &c->ckpt));
    c->source = d9d_checkpoint_source(c->ckpt);
    return make_plan(c, src);
}

static d9d_status open_random(d9d_convert *c, const char *config, uint64_t seed)
{
    D9D_TRY(read_config(c, config));
    if (c->opt.cast)
        c->dtype = c->opt.dtype;
    D9D_TRY(d9d_qwen3_random_open(&c->config, c->dtype, seed, &c->random));
    c->source = d9d_qwen3_random_source(c->random);
    return make_plan(c, config);
}

static d9d_status create(const d9d_convert_options *opt, d9d_convert **out)
{
    d9d_convert *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "convert: out of memory");
    c->opt = *opt;
    *out = c;
    return D9D_OK;
}

static d9d_status keep(d9d_convert *c, d9d_status st, d9d_convert **out)
{
    if (st == D9D_OK)
        *out = c;
    else
        d9d_convert_close(c);
    return st;
}

d9d_status d9d_convert_open(const char *src, const d9d_convert_options *opt, d9d_convert **out)
{
    d9d_convert *c = NULL;

    D9D_TRY(create(opt, &c));
    return keep(c, open_files(c, src), out);
}

d9d_status d9d_convert_random(const char *config, uint64_t seed, const d9d_convert_options *opt,
                              d9d_convert **out)
{
    d9d_convert *c = NULL;

    D9D_TRY(create(opt, &c));
    return keep(c, open_random(c, config, seed), out);
}

void d9d_convert_close(d9d_convert *c)
{
    if (c == NULL)
        return;
    d9d_plan_free(c->plan);
    d9d_mapper_free(c->mapper);
    d9d_checkpoint_close(c->ckpt);
    d9d_qwen3_random_close(c->random);
    json_decref(c->doc);
    d9d_arena_release(&c->arena);
    free(c);
}

const d9d_map_plan *d9d_convert_plan(const d9d_convert *c)
{
    return c->plan;
}

/* --- running --------------------------------------------------------------------------------- */

/* config.json as it goes with the weights. */
static d9d_status add_config(const d9d_convert *c, d9d_shard_sink *s)
{
    json_t *doc = json_deep_copy(c->doc);
    d9d_buf text = {0};
    d9d_dtype now;
    d9d_status st;

    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    D9D_TRY_OR(st, mark_layout(c, doc), out);
    D9D_TRY_OR(st, d9d_hf_config_dtype(doc, D9D_HF_CONFIG_NAME, c->dtype, &now), out);
    if (c->opt.cast && now != c->opt.dtype)
        D9D_TRY_OR(st, d9d_hf_config_set_dtype(doc, c->opt.dtype), out);
    D9D_TRY_OR(st, d9d_hf_config_text(doc, c->config_path, &text), out);
    st = d9d_shard_sink_text(s, D9D_HF_CONFIG_NAME, text.data, text.len);
out:
    d9d_buf_release(&text);
    json_decref(doc);
    return st;
}

static d9d_status add_others(const d9d_convert *c, d9d_shard_sink *s)
{
    static const char *const rewritten[] = {D9D_HF_CONFIG_NAME, NULL};
    d9d_arena a = {0};
    d9d_fs_names names = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpoint_others(c->src, rewritten, &a, &names), out);
    for (size_t i = 0; i < names.n; i++) {
        const char *path = d9d_fs_join(&a, c->src, names.name[i]);

        if (path == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", c->src);
            goto out;
        }
        D9D_TRY_OR(st, d9d_shard_sink_copy(s, names.name[i], path), out);
    }
out:
    d9d_arena_release(&a);
    return st;
}

static d9d_status write_all(const d9d_convert *c, const char *dir, int jobs, const d9d_log *log)
{
    d9d_shard_sink *s = NULL;
    d9d_sink sink;
    d9d_hash key;
    d9d_status st;

    D9D_TRY(d9d_plan_key(c->plan, &key));
    D9D_TRY(d9d_shard_sink_create(dir, c->opt.shard_bytes, &s));
    D9D_TRY_OR(st, add_config(c, s), out);
    if (c->src != NULL)
        D9D_TRY_OR(st, add_others(c, s), out);
    d9d_shard_sink_resume(s, key, log);
    sink = d9d_shard_sink_sink(s);
    D9D_TRY_OR(st, d9d_plan_run(c->plan, &sink, jobs, log), out);
    D9D_TRY_OR(st, d9d_shard_sink_end(s), out);
    if (c->src != NULL)
        D9D_TRY_OR(st, d9d_checkpoint_copy_dirs(c->src, dir, log), out);
    st = d9d_shard_sink_manifest(s, NULL);
out:
    d9d_shard_sink_free(s);
    return st;
}

d9d_status d9d_convert_run(d9d_convert *c, const char *dst, bool replace, int jobs,
                           const d9d_log *log)
{
    const unsigned flags = D9D_OUTDIR_KEEP | (replace ? D9D_OUTDIR_REPLACE : 0);
    d9d_outdir o;
    d9d_status st;

    if (c->src != NULL && replace)
        D9D_TRY(d9d_outdir_spares(dst, c->src));
    D9D_TRY(d9d_outdir_begin(&o, dst, flags));
    D9D_TRY_OR(st, d9d_outdir_lock(&o), out);
    D9D_TRY_OR(st, write_all(c, o.tmp, jobs, log), out);
    st = d9d_outdir_commit(&o);
out:
    d9d_outdir_release(&o);
    return st;
}
