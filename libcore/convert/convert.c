/* convert.c - see d9d/convert/convert.h. */
#include "d9d/convert/convert.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/base/thread.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/content_hash.h"
#include "d9d/ckpt/mapper/mapper_spec.h"
#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/model/weights/random_weights.h"
#include "d9d/models/models.h"

#include "convert/convert_files.h"
#include "convert/convert_into.h"

struct d9d_convert {
    d9d_convert_opts opt;
    d9d_arena arena;
    const char *src;         /* NULL: random weights */
    const char *aux_dir;     /* whose auxiliary files (tokenizer, ...) are copied; NULL: none */
    const char *config_path; /* or NULL */
    json_t *doc;             /* config.json of the source; may be NULL with a mapper description */
    d9d_mapper_spec *spec;   /* or NULL */
    const d9d_model_spec *model; /* given by the caller, or that of config.json; NULL: none */
    d9d_model_spec own;          /* that of config.json */
    bool given;                  /* by the caller, with a document for the output */
    d9d_weights_layout from, to;
    d9d_dtype dtype; /* dtype of most of the output, for config.json */
    bool decodes;    /* quantised tensors of the source, to this type */
    d9d_dtype decoded;
    d9d_checkpoint *ckpt;
    d9d_random_weights *random;
    d9di_convert_into *into;    /* NULL without opt.into */
    d9d_convert *shapes;        /* a conversion whose outputs are a source with shapes only */
    d9d_adapters *adapters;     /* read from opt.adapter */
    d9d_adapters_merge *merged; /* NULL without adapters */
    d9d_tensor_source source;
    d9d_mapper *mapper;
    d9d_map_plan *plan;
};

/* --- layouts --------------------------------------------------------------------------- */

/* The HuggingFace layout of the source, or of the checkpoint that it was converted from. */
static d9d_weights_layout hf_layout(const d9d_convert *c)
{
    if (c->from != D9D_LAYOUT_D9D)
        return c->from;
    return d9d_model_hf_layout(c->model, c->doc);
}

static d9d_weights_layout output_layout(const d9d_convert *c)
{
    d9d_convert_to to = c->opt.to;

    if (c->doc == NULL)
        return D9D_LAYOUT_D9D;
    if (c->into != NULL)
        return d9di_convert_into_layout(c->into);
    if (to == D9D_CONVERT_OTHER)
        to = c->from == D9D_LAYOUT_D9D ? D9D_CONVERT_HF : D9D_CONVERT_D9D;
    if (to == D9D_CONVERT_D9D)
        return D9D_LAYOUT_D9D;
    if (c->opt.expert_layout != D9D_CONVERT_EXPERTS_UNCHANGED)
        return c->opt.expert_layout == D9D_CONVERT_EXPERTS_FUSED ? D9D_LAYOUT_HF_FUSED
                                                                 : D9D_LAYOUT_HF;
    return hf_layout(c);
}

/* Has the model experts that one of the layouts of files has in tensors of their own? */
static bool has_experts(const d9d_convert *c)
{
    d9d_arena a = {0};
    d9d_model_matrices of = {0};
    bool has = false;

    if (d9d_model_spec_matrices(c->model, &a, &of) == D9D_OK)
        for (size_t i = 0; i < of.n; i++)
            has |=
                of.items[i].hf.tensor != NULL && strstr(of.items[i].hf.tensor, "{expert}") != NULL;
    d9d_arena_release(&a);
    return has;
}

/* Set the member "d9d" of a document that goes with weights in the suite's layout. */
static d9d_status mark_own(const d9d_convert *c, json_t *doc)
{
    const d9d_model_provider *p = c->model->provider;
    const bool fused = hf_layout(c) == D9D_LAYOUT_HF_FUSED;

    return p->mark != NULL
               ? D9D_PLUGIN_CALL(p->table->name, p, mark, c->model->config, doc, fused)
               : d9d_hf_config_mark(doc, d9d_head_name(D9D_HEAD_CAUSAL_LM), fused, json_object());
}

/* Another expert layout belongs to another generation of transformers, and without its head a model
 * is of another class. */
static d9d_status set_layout_mark(const d9d_convert *c, json_t *doc)
{
    const d9d_model_provider *p = c->model->provider;

    if (c->given)
        return D9D_OK; /* it was made for this layout */
    d9d_hf_config_unmark(doc);
    if (c->to == D9D_LAYOUT_D9D)
        return mark_own(c, doc);
    if (p->hf_head != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(p->table->name, p, hf_head, c->model->config, doc));
    if (c->to == hf_layout(c) || !has_experts(c))
        return D9D_OK;
    return d9d_hf_config_set_generation(doc, c->to == D9D_LAYOUT_HF_FUSED ? 5 : 4);
}

/* --- opening ------------------------------------------------------------------------------ */

static const d9d_table *const *choices_of(const d9d_convert *c)
{
    return c->opt.choices != NULL ? c->opt.choices : d9d_model_choices;
}

static d9d_status read_config(d9d_convert *c, const char *path)
{
    const char *file, *beside;

    D9D_TRY(d9d_hf_config_locate(path, &c->arena, &file, &beside));
    if (c->src != NULL && path == c->src && d9d_fs_is_dir(path) && !d9d_fs_exists(file)) {
        D9D_TRY(d9d_checkpoint_check_folder(path));
        return D9D_FAIL(D9D_ENOTFOUND, "%s: is not there; --model names the model's", file);
    }
    c->config_path = file;
    D9D_TRY(d9d_hf_config_load(file, &c->doc));
    D9D_TRY(d9d_model_spec_of(choices_of(c), c->doc, file, &c->arena, &c->own));
    c->model = &c->own;
    return d9d_hf_config_dtype(c->doc, file, D9D_F32, &c->dtype);
}

static void log_problem(void *arg, const char *sentence)
{
    d9d_log_warn(((const d9d_convert *)arg)->opt.log, "%s", sentence);
}

static d9d_status make_plan(d9d_convert *c, const char *name, const char *mapper)
{
    d9d_map_plan_opts opt = {.cast = c->opt.cast,
                             .cast_to = c->opt.dtype,
                             .overflow = c->opt.overflow,
                             .keep_suffix = c->spec == NULL ? "." D9D_ROUTER_BIAS : NULL,
                             .floating = c->spec == NULL && c->into == NULL,
                             .source = name,
                             .mapper = mapper,
                             .on_problem = log_problem,
                             .arg = c};

    return d9d_map_plan_create(c->mapper, &c->source, &opt, &c->plan);
}

/* The name of the mapping in messages. */
static const char *model_name(const d9d_convert *c)
{
    const char *type = json_string_value(json_object_get(c->doc, "model_type"));

    return type != NULL && !c->given ? type : c->model->provider->table->name;
}

/* Say what the model does not compute, and the output does not have. */
static void warn_of_left_out(const d9d_convert *c, const char *name)
{
    const d9d_model_provider *p = c->model->provider;

    for (size_t i = 0; p->family != NULL && i < D9D_FAMILY_LEFT_OUT; i++) {
        const char *what;
        const size_t n = d9d_family_left_out(c->model->config, &c->source, i, &what);

        if (n > 0)
            d9d_log_warn(c->opt.log, "%s: %zu tensor%s of %s %s left out: %s does not compute %s",
                         name, n, D9D_PLURAL(n), what, n == 1 ? "is" : "are", p->table->name,
                         n == 1 ? "it" : "them");
    }
}

/* Say what comes from the folder that the weights go into. */
static void say_taken(const d9d_convert *c)
{
    for (size_t i = 0; i < D9D_FAMILY_LEFT_OUT; i++) {
        const char *what;
        const size_t n = d9di_convert_into_count(c->into, i, &what);

        if (n > 0)
            d9d_log_info(c->opt.log, "%s: %zu tensor%s of %s go%s along",
                         d9di_convert_into_dir(c->into), n, D9D_PLURAL(n), what,
                         n == 1 ? "es" : "");
    }
}

/* Plan the weights' way into the folder. */
static d9d_status plan_into(d9d_convert *c, const char *name)
{
    D9D_TRY(d9di_convert_into_check_model(c->into, c->model, c->config_path));
    D9D_TRY(d9di_convert_into_add(c->into, c->mapper, &c->source));
    D9D_TRY(make_plan(c, name, model_name(c)));
    D9D_TRY(d9di_convert_into_check_plan(c->into, c->plan));
    say_taken(c);
    return D9D_OK;
}

static d9d_status plan_model(d9d_convert *c, const char *name)
{
    const d9d_model_provider *p = c->model->provider;

    warn_of_left_out(c, name);
    c->from = d9d_model_layout(c->model, &c->source);
    if (!c->given && p->infer != NULL)
        p->infer((void *)(uintptr_t)c->own.config, &c->source);
    c->to = output_layout(c);
    D9D_TRY(d9d_model_mapper(c->model, D9D_WHOLE_MODEL, &c->source, c->to, &c->mapper));
    return c->into != NULL ? plan_into(c, name) : make_plan(c, name, model_name(c));
}

static d9d_status plan_spec(d9d_convert *c, const char *name)
{
    D9D_TRY(d9d_mapper_spec_build(c->spec, &c->source, &c->mapper));
    return make_plan(c, name, c->opt.mapper);
}

/* Read config.json if there is one. */
static d9d_status read_any_config(d9d_convert *c)
{
    const char *file = d9d_fs_join(&c->arena, c->src, D9D_HF_CONFIG_NAME);

    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", c->src);
    if (!d9d_fs_exists(file))
        return D9D_OK;
    c->config_path = file;
    return d9d_hf_config_load(file, &c->doc);
}

/* Merge adapters into the source, if there are any. */
static d9d_status merge_adapters(d9d_convert *c)
{
    const d9d_adapters *ad = c->opt.adapters;
    d9d_model_matrices of;
    d9d_weights_layout layout;

    if (ad == NULL && c->opt.adapter == NULL)
        return D9D_OK;
    D9D_TRY(d9d_model_spec_matrices(c->model, &c->arena, &of));
    if (ad == NULL) {
        D9D_TRY(d9d_adapters_read(c->opt.adapter, &of, c->opt.adapter_kinds, c->src, c->opt.log,
                                  &c->adapters));
        ad = c->adapters;
    }
    layout = d9d_model_layout(c->model, &c->source);
    D9D_TRY(d9d_adapters_merge_create(ad, &of, layout, &c->source,
                                      c->opt.cast && c->opt.dtype == D9D_F32, &c->merged));
    c->source = d9d_adapters_merge_source(c->merged);
    return D9D_OK;
}

/* Decode quantised tensors.  A mapper description also takes those that cannot be decoded. */
static d9d_status decode_tensors(d9d_convert *c)
{
    const char *where = c->config_path != NULL ? c->config_path : c->src;
    d9d_dtype named;
    d9d_quantization q;

    if (c->doc == NULL || c->given)
        return D9D_OK;
    if (c->spec != NULL &&
        (d9d_quantization_read(c->doc, where, &q) != D9D_OK || q.method == D9D_QUANTIZATION_NONE))
        return D9D_OK;
    D9D_TRY(d9d_hf_config_dtype(c->doc, where, D9D_BF16, &named));
    c->decoded = c->opt.cast ? c->opt.dtype : named == D9D_F32 ? D9D_F32 : D9D_BF16;
    D9D_TRY(d9d_hf_config_decode(c->doc, where, c->decoded, c->ckpt));
    c->decodes = d9d_checkpoint_decoded(c->ckpt) > 0;
    if (!c->decodes)
        return D9D_OK;
    D9D_TRY(d9d_quantization_read(c->doc, where, &q));
    d9d_log_info(c->opt.log,
                 "%s: %zu tensors are decoded from %s; config.json is written "
                 "without " D9D_QUANTIZATION_FIELD,
                 c->src, d9d_checkpoint_decoded(c->ckpt), d9d_quantization_name(q.method));
    return D9D_OK;
}

static d9d_status open_tensors(d9d_convert *c)
{
    D9D_TRY(d9d_checkpoint_open(c->src, &c->ckpt));
    D9D_TRY(decode_tensors(c));
    c->source = d9d_checkpoint_source(c->ckpt);
    D9D_TRY(merge_adapters(c));
    return c->spec != NULL ? plan_spec(c, c->src) : plan_model(c, c->src);
}

static d9d_status open_files(d9d_convert *c, const char *src)
{
    c->src = c->aux_dir = d9d_arena_strdup(&c->arena, src);
    if (c->src == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
    if (d9d_fs_exists(src) && !d9d_fs_is_dir(src))
        return D9D_FAIL(D9D_EPATH, "%s: is a file, must be the directory of a checkpoint", src);
    if (c->opt.config != NULL) {
        D9D_TRY(read_config(c, c->opt.config));
        D9D_TRY(d9d_hf_config_locate(c->opt.config, &c->arena, &c->config_path, &c->aux_dir));
    } else {
        D9D_TRY(c->spec != NULL ? read_any_config(c) : read_config(c, c->src));
    }
    if (c->opt.into != NULL)
        D9D_TRY(d9di_convert_into_open(c->opt.into, choices_of(c), &c->into));
    return open_tensors(c);
}

static d9d_status open_known(d9d_convert *c, const char *src, const d9d_model_spec *m,
                             const json_t *doc)
{
    const char *beside;

    c->src = d9d_arena_strdup(&c->arena, src);
    c->doc = doc != NULL ? json_deep_copy(doc) : NULL;
    if (c->src == NULL || (doc != NULL && c->doc == NULL))
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
    c->model = m;
    c->given = true;
    c->dtype = c->opt.dtype;
    if (c->opt.config != NULL)
        D9D_TRY(d9d_hf_config_locate(c->opt.config, &c->arena, &c->config_path, &beside));
    D9D_TRY(d9d_model_spec_aux_dir(m, &c->arena, &c->aux_dir));
    return open_tensors(c);
}

static d9d_status open_random(d9d_convert *c, const char *config, uint64_t seed)
{
    const d9d_model_provider *p;
    d9d_model_tensors of;
    d9d_dtype drawn;

    D9D_TRY(read_config(c, config));
    if (c->opt.cast)
        c->dtype = c->opt.dtype;
    drawn = c->dtype;
    if (drawn == D9D_F16) { /* no type that a model trains in: drawn as float32 and cast */
        drawn = D9D_F32;
        c->opt.cast = true;
        c->opt.dtype = D9D_F16;
    }
    p = c->model->provider;
    if (p->tensors == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s has no random weights", config, p->table->name);
    D9D_TRY(D9D_PLUGIN_CALL(p->table->name, p, tensors, c->model->config, &c->arena, &of));
    D9D_TRY(d9d_random_weights_open(&of, drawn, seed, &c->random));
    c->source = d9d_random_weights_source(c->random);
    return plan_model(c, config);
}

/* --- shapes only -------------------------------------------------------------------------- */

static const d9d_safetensors_tensor *shape_at(void *self, size_t i)
{
    return d9d_map_plan_output(((d9d_convert *)self)->plan, i);
}

static const char *shape_path(void *self, size_t i)
{
    (void)self;
    (void)i;
    return "";
}

static d9d_status shape_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    (void)at;
    (void)dst;
    (void)n;
    return D9D_FAIL(D9D_EINVAL, "tensor %s has a shape, but no bytes", shape_at(self, i)->name);
}

static d9d_status open_shapes(d9d_convert *c, const char *config)
{
    const bool to_hf = c->spec == NULL && c->opt.to == D9D_CONVERT_HF;
    const d9d_convert_opts opt = {.choices = c->opt.choices,
                                  .to = to_hf ? D9D_CONVERT_D9D : D9D_CONVERT_HF,
                                  .expert_layout = c->opt.expert_layout};

    D9D_TRY(read_config(c, config));
    D9D_TRY(d9d_convert_open_random(config, 0, &opt, &c->shapes));
    c->source = (d9d_tensor_source){.self = c->shapes,
                                    .n = d9d_map_plan_output_count(c->shapes->plan),
                                    .at = shape_at,
                                    .path = shape_path,
                                    .read = shape_read};
    return c->spec != NULL ? plan_spec(c, config) : plan_model(c, config);
}

/* --- open and close -------------------------------------------------------------------------- */

/* The folder decides the layout. */
static d9d_status check_into(const d9d_convert_opts *opt)
{
    if (opt->mapper != NULL)
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s: says what becomes of every tensor; --into %s cannot be asked for besides",
            opt->mapper, opt->into);
    if (opt->to == D9D_CONVERT_D9D || opt->expert_layout != D9D_CONVERT_EXPERTS_UNCHANGED)
        return D9D_FAIL(D9D_ECONFIG, "--into %s: the layout is that of this folder", opt->into);
    return D9D_OK;
}

static d9d_status create_convert(const d9d_convert_opts *opt, d9d_convert **out)
{
    d9d_convert *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "convert: out of memory");
    c->opt = *opt;
    *out = c;
    if (opt->into != NULL)
        D9D_TRY(check_into(opt));
    if (opt->mapper == NULL)
        return D9D_OK;
    if (opt->adapter != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: says what becomes of every tensor; the adapter %s cannot be merged "
                        "besides",
                        opt->mapper, opt->adapter);
    if (opt->to != D9D_CONVERT_OTHER || opt->expert_layout != D9D_CONVERT_EXPERTS_UNCHANGED)
        return D9D_FAIL(
            D9D_ECONFIG,
            "%s: says what becomes of every tensor; a layout cannot be asked for besides",
            opt->mapper);
    return d9d_mapper_spec_read(opt->mapper, &c->spec);
}

static d9d_status finish_open(d9d_convert *c, d9d_status st, d9d_convert **out)
{
    if (st == D9D_OK)
        *out = c;
    else
        d9d_convert_close(c);
    return st;
}

/* Refuse an expert layout that would have no effect. */
static d9d_status check_experts(const d9d_convert *c, const char *src)
{
    if (c->opt.expert_layout == D9D_CONVERT_EXPERTS_UNCHANGED || c->to != D9D_LAYOUT_D9D)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: goes to the layout d9d, which has experts in one way alone; "
                    "--expert-layout is of --to hf",
                    src);
}

d9d_status d9d_convert_open(const char *src, const d9d_convert_opts *opt, d9d_convert **out)
{
    d9d_convert *c = NULL;
    d9d_status st;

    D9D_TRY_OR(st, create_convert(opt, &c), out);
    D9D_TRY_OR(st, open_files(c, src), out);
    st = check_experts(c, src);
out:
    return finish_open(c, st, out);
}

d9d_status d9d_convert_open_model(const char *src, const d9d_model_spec *m, const json_t *doc,
                                  const d9d_convert_opts *opt, d9d_convert **out)
{
    d9d_convert *c = NULL;
    d9d_status st = create_convert(opt, &c);

    return finish_open(c, st == D9D_OK ? open_known(c, src, m, doc) : st, out);
}

d9d_status d9d_convert_open_random(const char *config, uint64_t seed, const d9d_convert_opts *opt,
                                   d9d_convert **out)
{
    d9d_convert *c = NULL;
    d9d_status st = create_convert(opt, &c);

    return finish_open(c, st == D9D_OK ? open_random(c, config, seed) : st, out);
}

d9d_status d9d_convert_open_shapes(const char *config, const d9d_convert_opts *opt,
                                   d9d_convert **out)
{
    d9d_convert *c = NULL;
    d9d_status st = create_convert(opt, &c);

    return finish_open(c, st == D9D_OK ? open_shapes(c, config) : st, out);
}

void d9d_convert_close(d9d_convert *c)
{
    if (c == NULL)
        return;
    d9d_map_plan_free(c->plan);
    d9d_mapper_free(c->mapper);
    d9d_adapters_merge_free(c->merged);
    d9d_adapters_free(c->adapters);
    d9d_checkpoint_close(c->ckpt);
    d9d_random_weights_close(c->random);
    d9di_convert_into_close(c->into);
    d9d_convert_close(c->shapes);
    d9d_mapper_spec_free(c->spec);
    json_decref(c->doc);
    d9d_arena_release(&c->arena);
    free(c);
}

const d9d_map_plan *d9d_convert_plan(const d9d_convert *c)
{
    return c->plan;
}

/* --- running --------------------------------------------------------------------------------- */

/* RFC 7396: objects are merged, null removes, all else replaces. */
static int merge_patch(json_t *doc, const json_t *patch)
{
    const char *key;
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)patch, key, value)
    {
        json_t *old = json_object_get(doc, key);

        if (json_is_null(value)) {
            (void)json_object_del(doc, key);
        } else if (!json_is_object(value)) {
            rc |= json_object_set_new(doc, key, json_deep_copy(value));
        } else {
            if (!json_is_object(old))
                rc |= json_object_set_new(doc, key, json_object());
            rc |= merge_patch(json_object_get(doc, key), value);
        }
    }
    return rc;
}

static d9d_status change_config(const d9d_convert *c, json_t *doc)
{
    const bool sets = c->opt.cast || c->decodes;
    const d9d_dtype to = c->opt.cast ? c->opt.dtype : c->decoded;
    d9d_dtype now;

    if (c->spec == NULL || c->decodes)
        (void)d9d_hf_config_unquantize(doc);
    if (c->spec != NULL && merge_patch(doc, d9d_mapper_spec_config(c->spec)) != 0)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    if (c->spec != NULL)
        return sets && json_object_size(doc) > 0 ? d9d_hf_config_set_dtype(doc, to) : D9D_OK;
    D9D_TRY(set_layout_mark(c, doc));
    D9D_TRY(d9d_hf_config_dtype(doc, D9D_HF_CONFIG_NAME, c->dtype, &now));
    return sets && now != to ? d9d_hf_config_set_dtype(doc, to) : D9D_OK;
}

/* The text of the config.json that belongs to the weights; empty: there is none. */
static d9d_status config_text(const d9d_convert *c, d9d_buf *text)
{
    json_t *doc;
    d9d_status st = D9D_OK;

    if (c->into != NULL)
        return d9di_convert_into_config(c->into, c->opt.cast ? &c->opt.dtype : NULL, text);
    doc = c->doc != NULL ? json_deep_copy(c->doc) : json_object();
    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    if (c->doc != NULL || c->spec != NULL)
        st = change_config(c, doc);
    if (st == D9D_OK && (json_object_size(doc) > 0 || c->doc != NULL))
        st = d9d_hf_config_text(doc, c->config_path, text);
    json_decref(doc);
    return st;
}

static d9d_status add_config(const d9d_convert *c, d9d_shard_sink *s)
{
    d9d_buf text = {0};
    d9d_status st = config_text(c, &text);

    if (st == D9D_OK && text.len > 0)
        st = d9d_shard_sink_text(s, D9D_HF_CONFIG_NAME, text.data, text.len);
    d9d_buf_release(&text);
    return st;
}

/* The source's other files, then those of the folder that the weights go into. */
static d9d_status list_files(const d9d_convert *c, d9d_arena *a, const d9d_log *log,
                             d9di_convert_files *f)
{
    if (c->aux_dir != NULL)
        D9D_TRY(d9di_convert_files_add(f, c->aux_dir, a, log));
    return c->into != NULL ? d9di_convert_files_add(f, d9di_convert_into_dir(c->into), a, log)
                           : D9D_OK;
}

static d9d_status add_aux_files(const d9d_convert *c, d9d_shard_sink *s, const d9d_log *log)
{
    d9d_arena a = {0};
    d9di_convert_files f = {0};
    d9d_status st = list_files(c, &a, log, &f);

    for (size_t i = 0; i < f.name.len && st == D9D_OK; i++)
        st = d9d_shard_sink_copy(s, f.name.data[i], f.path.data[i]);
    d9di_convert_files_release(&f);
    d9d_arena_release(&a);
    return st;
}

static bool is_root(const d9d_convert_run_opts *opt)
{
    return opt->bootstrap == NULL || d9d_bootstrap_rank(opt->bootstrap) == 0;
}

static d9d_status agree_status(const d9d_convert_run_opts *opt, d9d_status st)
{
    return opt->bootstrap != NULL ? d9d_bootstrap_agree_status(opt->bootstrap, st) : st;
}

/* --- fingerprint of the inputs ------------------------------------------------------------ */

static d9d_status hash_aux_files(const d9d_convert *c, d9d_arena *a, d9d_hasher *h)
{
    d9di_convert_files f = {0};
    d9d_status st = list_files(c, a, NULL, &f);

    if (st == D9D_OK)
        st = d9di_convert_files_hash(&f, h);
    d9di_convert_files_release(&f);
    return st;
}

static d9d_status hash_checkpoint(const char *dir, int jobs, d9d_hasher *h)
{
    d9d_hash of;

    D9D_TRY(d9d_content_hash_checkpoint(dir, jobs, &of));
    d9d_hasher_add(h, &of, sizeof(of));
    return D9D_OK;
}

/* Hash the plan, and size, time and content of the files that it reads. */
static d9d_status hash_inputs(const d9d_convert *c, int jobs, d9d_hash *out)
{
    d9d_arena a = {0};
    d9d_hasher *h = NULL;
    d9d_hash of;
    d9d_status st;

    D9D_TRY(d9d_hasher_create(&h));
    D9D_TRY_OR(st, d9d_map_plan_fingerprint(c->plan, &of), out);
    d9d_hasher_add(h, &of, sizeof(of));
    if (c->ckpt != NULL)
        D9D_TRY_OR(st, hash_checkpoint(c->src, jobs, h), out);
    if (c->into != NULL)
        D9D_TRY_OR(st, hash_checkpoint(d9di_convert_into_dir(c->into), jobs, h), out);
    D9D_TRY_OR(st, hash_aux_files(c, &a, h), out);
    *out = d9d_hasher_digest(h);
out:
    d9d_hasher_free(h);
    d9d_arena_release(&a);
    return st;
}

/* Collective: the first rank computes the hash and broadcasts it. */
static d9d_status share_input_hash(const d9d_convert *c, const d9d_convert_run_opts *opt,
                                   d9d_hash *out)
{
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_status st;

    *out = (d9d_hash){0};
    D9D_TRY(agree_status(opt, is_root(opt) ? hash_inputs(c, opt->jobs, out) : D9D_OK));
    if (opt->bootstrap == NULL || d9d_bootstrap_size(opt->bootstrap) == 1)
        return D9D_OK;
    all = d9d_arena_alloc(&a, (size_t)d9d_bootstrap_size(opt->bootstrap) * sizeof(*all));
    st =
        agree_status(opt, all != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", c->src));
    if (st == D9D_OK && all != NULL) {
        st = d9d_bootstrap_allgather(opt->bootstrap, out, sizeof(*out), &a, all);
        if (st == D9D_OK && all[0].n == sizeof(*out))
            memcpy(out, all[0].data, sizeof(*out));
    }
    d9d_arena_release(&a);
    return st;
}

/* Check that the inputs did not change meanwhile: else the outputs would mix two contents. */
static d9d_status check_inputs(const d9d_convert *c, int jobs, d9d_hash before)
{
    d9d_hash now;

    D9D_TRY(hash_inputs(c, jobs, &now));
    if (d9d_hash_equal(before, now))
        return D9D_OK;
    return D9D_FAIL(D9D_EIO, "%s: was changed while it was read; nothing is made of it", c->src);
}

/* --- running ------------------------------------------------------------------------------ */

/* Fingerprint of the outputs, equal on every rank: a hash of `inputs` and the plan's fingerprint.
 */
static d9d_status make_fingerprint(const d9d_convert *c, d9d_hash inputs, d9d_hash *out)
{
    d9d_hash all[2] = {inputs};

    D9D_TRY(d9d_map_plan_fingerprint(c->plan, &all[1]));
    *out = d9d_hash_bytes(all, sizeof(all));
    return D9D_OK;
}

static d9d_status open_sink(const d9d_convert *c, const char *dir, d9d_hash inputs,
                            const d9d_convert_run_opts *opt, d9d_shard_sink **out)
{
    d9d_shard_sink *s = NULL;
    d9d_hash key;
    d9d_status st;

    D9D_TRY(make_fingerprint(c, inputs, &key));
    D9D_TRY(d9d_shard_sink_create(dir, c->opt.shard_bytes, &s));
    D9D_TRY_OR(st, add_config(c, s), out);
    D9D_TRY_OR(st, add_aux_files(c, s, is_root(opt) ? opt->log : NULL), out);
    d9d_shard_sink_resume(s, key, opt->log);
    if (opt->bootstrap != NULL)
        d9d_shard_sink_ranks(s, opt->bootstrap);
    *out = s;
    s = NULL;
out:
    d9d_shard_sink_free(s);
    return st;
}

/* Default number of threads: copying threads wait for a disk and hold a chunk of memory each;
 * threads that draw random weights compute. */
static int default_jobs(const d9d_convert *c)
{
    enum { MAX_COPY_JOBS = 6 };
    const int cpus = d9d_thread_cpus();

    return c->src != NULL && cpus > MAX_COPY_JOBS ? MAX_COPY_JOBS : cpus;
}

static d9d_status fill_sink(const d9d_convert *c, d9d_shard_sink *s,
                            const d9d_convert_run_opts *opt)
{
    const d9d_tensor_sink sink = d9d_shard_sink_tensor_sink(s);

    D9D_TRY(
        d9d_map_plan_run(c->plan, &sink, opt->jobs > 0 ? opt->jobs : default_jobs(c), opt->log));
    return d9d_shard_sink_end(s);
}

/* The first rank creates and commits the directory; the others know its name. */
static d9d_status open_dir(const d9d_convert *c, const char *dst, const d9d_convert_run_opts *opt,
                           d9d_outdir *o)
{
    if (!is_root(opt))
        return d9d_outdir_join(o, dst);
    if (c->src != NULL && opt->replace)
        D9D_TRY(d9d_outdir_check_disjoint(dst, c->src));
    if (c->into != NULL && opt->replace)
        D9D_TRY(d9d_outdir_check_disjoint(dst, d9di_convert_into_dir(c->into)));
    D9D_TRY(d9d_outdir_begin(o, dst, D9D_OUTDIR_KEEP | (opt->replace ? D9D_OUTDIR_REPLACE : 0),
                             d9d_checkpoint_kind()));
    return d9d_outdir_lock(o);
}

static d9d_status commit_output(const d9d_convert *c, d9d_hash inputs, d9d_shard_sink *s,
                                const d9d_convert_run_opts *opt, d9d_outdir *o)
{
    if (!is_root(opt))
        return D9D_OK;
    D9D_TRY(check_inputs(c, opt->jobs, inputs));
    D9D_TRY(d9d_shard_sink_manifest(s, NULL));
    return d9d_outdir_commit(o);
}

d9d_status d9d_convert_check_data(const d9d_convert *c)
{
    return c->model != NULL && c->model->provider->family != NULL && c->ckpt != NULL
               ? d9d_family_check_tied(c->model->config, &c->source, false)
               : D9D_OK;
}

d9d_status d9d_convert_run(d9d_convert *c, const char *dst, const d9d_convert_run_opts *opt)
{
    d9d_shard_sink *s = NULL;
    d9d_outdir o = {0};
    d9d_hash inputs;
    d9d_status st;

    D9D_TRY_OR(st, share_input_hash(c, opt, &inputs), out);
    D9D_TRY_OR(st, agree_status(opt, d9d_convert_check_data(c)), out);
    D9D_TRY_OR(st, agree_status(opt, open_dir(c, dst, opt, &o)), out);
    D9D_TRY_OR(st, agree_status(opt, open_sink(c, o.tmp, inputs, opt, &s)), out);
    D9D_TRY_OR(st, agree_status(opt, fill_sink(c, s, opt)), out);
    st = agree_status(opt, commit_output(c, inputs, s, opt, &o));
out:
    d9d_shard_sink_free(s);
    d9d_outdir_release(&o);
    return st;
}
