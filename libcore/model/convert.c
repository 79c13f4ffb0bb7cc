/* convert.c - see d9d/model/convert.h. */
#include "d9d/model/convert.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/manifest.h"
#include "d9d/model/hf_config.h"

struct d9d_convert {
    d9d_convert_options opt;
    d9d_arena arena;
    const char *src; /* NULL: random weights */
    json_t *doc;     /* config.json of the source */
    d9d_qwen3_config config;
    d9d_layout from, to;
    d9d_dtype dtype; /* of most of the output, for config.json */
    d9d_checkpoint *ckpt;
    d9d_qwen3_random *random;
    d9d_source source;
    d9d_mapper *mapper;
    d9d_map_plan *plan;
};

/* --- the member "d9d" of config.json -------------------------------------------------- */

static const char *const expert_words[] = {"per-expert", "fused"};

/* How the HuggingFace checkpoint behind this one kept its experts. */
static d9d_layout remembered(const json_t *doc)
{
    const char *word = json_string_value(json_object_get(json_object_get(doc, "d9d"), "experts"));

    return word != NULL && strcmp(word, expert_words[1]) == 0 ? D9D_LAYOUT_HF_FUSED : D9D_LAYOUT_HF;
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
    return c->from == D9D_LAYOUT_D9D ? remembered(c->doc) : c->from;
}

static d9d_status mark_layout(const d9d_convert *c, json_t *doc)
{
    d9d_layout hf = c->from == D9D_LAYOUT_D9D ? remembered(c->doc) : c->from;
    json_t *mark;

    (void)json_object_del(doc, "d9d");
    if (c->to != D9D_LAYOUT_D9D)
        return D9D_OK;
    mark = json_pack("{s:s, s:s}", "layout", "d9d", "experts",
                     expert_words[hf == D9D_LAYOUT_HF_FUSED]);
    if (mark == NULL || json_object_set_new(doc, "d9d", mark) != 0)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    return D9D_OK;
}

/* --- opening ------------------------------------------------------------------------------ */

static d9d_status read_config(d9d_convert *c, const char *path)
{
    const char *file = d9d_fs_is_dir(path) ? d9d_fs_join(&c->arena, path, D9D_HF_CONFIG_NAME)
                                           : d9d_arena_strdup(&c->arena, path);

    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
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

static d9d_status write_weights(const d9d_convert *c, const char *dir, int jobs, const d9d_log *log)
{
    d9d_shard_sink *shards = NULL;
    d9d_sink sink;
    d9d_status st;

    D9D_TRY(d9d_shard_sink_create(dir, c->opt.shard_bytes, &shards));
    sink = d9d_shard_sink_sink(shards);
    D9D_TRY_OR(st, d9d_plan_run(c->plan, &sink, jobs, log), out);
    st = d9d_shard_sink_end(shards);
out:
    d9d_shard_sink_free(shards);
    return st;
}

/* The source's own bytes where nothing in it changes. */
static d9d_status copy_config(const d9d_convert *c, const char *dir)
{
    d9d_arena a = {0};
    char *from = d9d_fs_join(&a, c->src, D9D_HF_CONFIG_NAME);
    char *to = d9d_fs_join(&a, dir, D9D_HF_CONFIG_NAME);
    d9d_status st = from == NULL || to == NULL ? D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir)
                                               : d9d_fs_copy(from, to);

    d9d_arena_release(&a);
    return st;
}

static d9d_status write_config(const d9d_convert *c, const char *dir)
{
    json_t *doc = json_deep_copy(c->doc);
    d9d_dtype now;
    d9d_status st;

    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    D9D_TRY_OR(st, mark_layout(c, doc), out);
    D9D_TRY_OR(st, d9d_hf_config_dtype(doc, dir, c->dtype, &now), out);
    if (c->opt.cast && now != c->opt.dtype)
        D9D_TRY_OR(st, d9d_hf_config_set_dtype(doc, c->opt.dtype), out);
    st = c->src != NULL && json_equal(doc, c->doc) ? copy_config(c, dir)
                                                   : d9d_hf_config_write(dir, doc);
out:
    json_decref(doc);
    return st;
}

static d9d_status write_all(const d9d_convert *c, const char *dir, int jobs, const d9d_log *log)
{
    static const char *const rewritten[] = {D9D_HF_CONFIG_NAME, NULL};

    D9D_TRY(write_weights(c, dir, jobs, log));
    if (c->src != NULL)
        D9D_TRY(d9d_checkpoint_copy_others(c->src, dir, rewritten));
    D9D_TRY(write_config(c, dir));
    return d9d_manifest_write(dir, NULL, jobs, log);
}

d9d_status d9d_convert_run(d9d_convert *c, const char *dst, bool replace, int jobs,
                           const d9d_log *log)
{
    d9d_outdir o;
    d9d_status st;

    if (c->src != NULL && replace)
        D9D_TRY(d9d_outdir_spares(dst, c->src));
    D9D_TRY(d9d_outdir_begin(&o, dst, replace ? D9D_OUTDIR_REPLACE : 0));
    D9D_TRY_OR(st, write_all(c, o.tmp, jobs, log), out);
    st = d9d_outdir_commit(&o);
out:
    d9d_outdir_release(&o);
    return st;
}
