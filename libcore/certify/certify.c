/* certify.c - see d9d/certify/certify.h. */
#include "d9d/certify/certify.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "certify/certify_parts.h"
#include "certify/small_config.h"
#include "d9d/base/fs.h"
#include "d9d/base/plugin_call.h"
#include "d9d/comm/exchange.h"
#include "d9d/job/preemption.h"
#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/models/models.h"

enum { SMALL_PARAMETERS = 1 << 20 }; /* a model with more is made smaller */

/* --- the checks ------------------------------------------------------------------------------- */

const d9d_certificate_about d9d_certificate_abouts[] = {
    {"files", "HuggingFace's files, mapped to the suite's layout and back, have the same bytes in "
              "every tensor and the same `config.json`"},
    {"golden", "logits, losses, every gradient and ten steps of AdamW are those of stored float64 "
               "vectors, where `--golden` names some"},
    {"gradients", "the gradient of each tensor is that of finite differences of the loss, along "
                  "random directions"},
    {"recompute", "activation checkpointing, full and selective, gives the same bits"},
    {"steps", "AdamW learns a repeated batch, and a run that was stopped and resumed ends with the "
              "same bits"},
    {"adapters",
     "new LoRA adapters change no bit, files in peft's layout keep them, and the merged "
     "model has the loss of model and adapters"},
    {"generation", "greedy decoding with the KV cache takes the tokens that recomputed prefixes "
                   "give"},
    {"memory", "a training step takes the memory that was planned, to the byte without experts"},
    {"meshes", "all ranks of the launch compute the losses and gradient norms of one"},
    {NULL, NULL},
};
static const struct {
    d9di_certify_fn *run;
    bool together; /* on all ranks; others on rank 0 alone */
} checks[] = {
    {d9di_certify_files, false},      {d9di_certify_golden, false}, {d9di_certify_gradients, false},
    {d9di_certify_recompute, false},  {d9di_certify_steps, false},  {d9di_certify_adapters, false},
    {d9di_certify_generation, false}, {d9di_certify_memory, false}, {d9di_certify_meshes, true},
};
enum { N_CHECKS = sizeof(checks) / sizeof(checks[0]) };
_Static_assert((int)N_CHECKS == (int)D9D_CERTIFICATE_CHECKS, "the certificate has a line for each");
_Static_assert(sizeof(d9d_certificate_abouts) == (N_CHECKS + 1) * sizeof(d9d_certificate_about),
               "each check has a name");

d9d_status d9di_certify_skip(d9d_certificate_check *out, const char *why)
{
    out->result = D9D_CERTIFICATE_SKIPPED;
    out->detail = why;
    return D9D_OK;
}

d9d_status d9di_certify_detail(d9di_certify *c, d9d_certificate_check *out, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    out->detail = d9d_arena_strdup(c->arena, text);
    return out->detail != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "certificate: out of memory");
}

d9d_status d9di_certify_path(d9di_certify *c, const char *name, const char **out)
{
    *out = d9d_fs_join(c->arena, c->dir, name);
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "certificate: out of memory");
}

/* A failure of this machine says nothing of the family. */
static bool is_of_machine(d9d_status st)
{
    return st == D9D_ENOMEM || st == D9D_EOOM || st == D9D_EIO || st == D9D_EINTR;
}

/* One sentence is said once: the checks behind the first name it. */
static d9d_status put_failure(d9di_certify *c, d9d_certificate_check *out, const char *why)
{
    D9D_TRY(d9di_certify_detail(c, out, "%s", why));
    for (size_t i = 0; i < c->out->n; i++)
        if (c->out->check[i].detail != NULL && strcmp(c->out->check[i].detail, out->detail) == 0)
            return d9di_certify_detail(c, out, "as in %s", c->out->check[i].name);
    return D9D_OK;
}

static d9d_status run_check(d9di_certify *c, size_t i)
{
    d9d_certificate_check *out = &c->out->check[c->out->n];
    d9d_status st;

    *out = (d9d_certificate_check){
        .name = d9d_certificate_abouts[i].name, .figure = NAN, .limit = NAN};
    st = checks[i].run(c, out);
    if (is_of_machine(st))
        return st;
    if (st != D9D_OK)
        D9D_TRY(put_failure(c, out, d9d_err_message()));
    if (st != D9D_OK || (out->result == D9D_CERTIFICATE_OK && !(out->figure <= out->limit)))
        out->result = D9D_CERTIFICATE_FAILED;
    c->out->n++;
    return D9D_OK;
}

/* After a signal there is no certificate, but a failure. */
static d9d_status check_signals(d9di_certify *c, d9d_status st)
{
    const char *reason = d9d_preemption_reason(c->signals);

    if (st != D9D_EINTR && (st != D9D_OK || reason == NULL))
        return st;
    c->out->n = 0;
    return D9D_FAIL(D9D_EVERIFY, "%s: no certificate", reason != NULL ? reason : "a signal");
}

/* The checks of all ranks together, or those of rank 0. */
static d9d_status run_checks(d9di_certify *c, bool together)
{
    d9d_status st = check_signals(c, D9D_OK);

    for (size_t i = 0; i < N_CHECKS && st == D9D_OK; i++)
        if (checks[i].together == together)
            st = check_signals(c, run_check(c, i));
    return st;
}

static d9d_status count_failed(const d9d_certificate *out)
{
    size_t failed = 0;

    for (size_t i = 0; i < out->n; i++)
        failed += out->check[i].result == D9D_CERTIFICATE_FAILED;
    return failed == 0
               ? D9D_OK
               : D9D_FAIL(D9D_EVERIFY, "%s: %zu of %zu checks failed", out->source, failed, out->n);
}

/* --- the model -------------------------------------------------------------------------------- */

/* A section of this name, or one whose model_type it is. */
static const d9d_model_provider *find_family(const d9d_table *const *choices, const char *name)
{
    for (; *choices != NULL; choices++)
        if (strcmp((*choices)->name, name) == 0 && *choices != &d9d_model_auto_section)
            return (*choices)->row;
    return NULL;
}

static d9d_status refuse_name(const char *model, const d9d_table *const *choices)
{
    const char *names[256];
    const char *near;
    size_t n = 0;

    for (; *choices != NULL && n < 255; choices++)
        if (*choices != &d9d_model_auto_section)
            names[n++] = (*choices)->name;
    names[n] = NULL;
    near = d9d_config_did_you_mean(model, names);
    return D9D_FAIL(D9D_ECONFIG, "%s: neither a folder nor a family%s%s%s", model,
                    near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                    near != NULL ? "\"?" : "");
}

/* The head that the configuration itself says, if no task is asked for. */
static d9d_head_kind head_of(const d9di_certify *c, const d9d_model_spec *spec)
{
    const d9d_family_config *family = spec->provider->family != NULL ? spec->config : NULL;

    return c->opts->task != NULL || family == NULL ? c->head : family->head;
}

/* Other heads are made by the task. */
static bool has_in_files(const d9d_model_spec *spec, d9d_head_kind head)
{
    return spec->provider->family != NULL &&
           ((const d9d_family_config *)spec->config)->head == head;
}

/* Sizes of the model of a config.json, built without memory for its parameters. */
static d9d_status measure_model(d9di_certify *c, const json_t *doc, const char *file)
{
    d9d_model_spec spec;
    d9d_arena a = {0};
    d9d_params params;
    d9d_model *m = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_model_spec_of(c->choices, doc, file, &a, &spec), done);
    spec.opts.dtype = D9D_F32;
    D9D_TRY_OR(st,
               D9D_PLUGIN_CALL(spec.provider->table->name, spec.provider, create, spec.config,
                               D9D_WHOLE_MODEL, &spec.opts, &m),
               done);
    D9D_TRY_OR(st, d9d_module_params(m->module, &a, &params), done);
    c->provider = spec.provider;
    c->head = head_of(c, &spec);
    c->head_in_files = has_in_files(&spec, c->head);
    c->has_experts = m->has_experts;
    c->vocab = d9di_small_task_ids(&spec, c->head, m->vocab);
    c->length = m->max_positions < D9DI_SMALL_LENGTH ? m->max_positions : D9DI_SMALL_LENGTH;
    c->out->layers = m->layers;
    c->out->parameters = 0;
    for (size_t i = 0; i < params.n; i++)
        c->out->parameters += d9d_shape_numel(&params.p[i]->spec.shape);
    c->untrainable = d9d_model_spec_trainable(&spec) == D9D_OK
                         ? NULL
                         : d9d_arena_strdup(c->arena, d9d_err_message());
done:
    d9d_model_free(m);
    d9d_arena_release(&a);
    return st;
}

static bool has_weights(d9d_arena *a, const char *dir)
{
    const char *one = d9d_fs_join(a, dir, "model.safetensors");
    const char *several = d9d_fs_join(a, dir, D9D_CHECKPOINT_INDEX_NAME);

    return one != NULL && several != NULL && d9d_fs_is_dir(dir) &&
           (d9d_fs_exists(one) || d9d_fs_exists(several));
}

static d9d_status read_folder(d9di_certify *c, const char *dir)
{
    const char *file, *beside;

    D9D_TRY(d9d_hf_config_locate(dir, c->arena, &file, &beside));
    D9D_TRY(d9d_hf_config_load(file, &c->out->config));
    D9D_TRY(measure_model(c, c->out->config, file));
    c->out->shrunk = c->out->parameters > SMALL_PARAMETERS;
    c->out->own_weights = !c->out->shrunk && has_weights(c->arena, dir);
    return D9D_OK;
}

/* The provider, and its config.json, which may be large. */
static d9d_status read_model(d9di_certify *c, const char *model)
{
    c->provider = find_family(c->choices, model);
    if (c->provider == NULL)
        c->provider = d9d_model_find(c->choices, model);
    if (c->opts->task != NULL)
        D9D_TRY(d9di_small_task_find(c->opts->task, &c->head));
    else if (c->provider != NULL && c->provider->family != NULL && c->provider->family->encoder)
        c->head = D9D_HEAD_MASKED_LM;
    if (c->provider != NULL)
        return d9di_small_config_make(c->provider, c->head, c->arena, &c->out->config);
    return d9d_fs_exists(model) ? read_folder(c, model) : refuse_name(model, c->choices);
}

static d9d_status shrink_config(d9di_certify *c)
{
    json_t *small;

    if (!c->out->shrunk)
        return D9D_OK;
    D9D_TRY(d9di_small_config_shrink(c->provider, c->out->config, c->arena, &small));
    json_decref(c->out->config);
    c->out->config = small;
    return D9D_OK;
}

/* The model as HuggingFace's files: the folder itself, or random weights. */
static d9d_status write_model(d9di_certify *c, const char *model)
{
    const char *config, *file;

    if (c->out->own_weights) {
        c->folder = model;
        return D9D_OK;
    }
    D9D_TRY(shrink_config(c));
    D9D_TRY(d9di_certify_path(c, "config", &config));
    D9D_TRY(d9di_certify_path(c, "config/" D9D_HF_CONFIG_NAME, &file));
    D9D_TRY(d9di_certify_path(c, "model", &c->folder));
    D9D_TRY(d9d_fs_mkdirs(config));
    D9D_TRY(d9d_hf_config_write(config, c->out->config, NULL));
    D9D_TRY(measure_model(c, c->out->config, file));
    return d9di_small_model_write(
        file,
        &(d9di_small_model_opts){.choices = c->choices,
                                 .seed = c->opts->seed,
                                 .head = c->head_in_files ? &c->head : NULL},
        c->folder);
}

/* --- the whole -------------------------------------------------------------------------------- */

static d9d_status name_model(d9di_certify *c, const char *model)
{
    const char *type = json_string_value(json_object_get(c->out->config, "model_type"));

    c->out->source = d9d_arena_strdup(c->arena, model);
    c->out->family = c->provider->table->name;
    c->out->model_type = d9d_arena_strdup(c->arena, type != NULL ? type : "");
    c->out->task = d9d_head_name(c->head);
    c->out->seed = c->opts->seed;
    return c->out->source != NULL && c->out->model_type != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "certificate: out of memory");
}

static d9d_status dir_begin(d9d_arena *a, d9d_outdir *o)
{
    const char *named = getenv("TMPDIR");
    const char *tmp = named != NULL && named[0] != '\0' ? named : "/tmp";
    const char *path = d9d_fs_join(a, tmp, "d9d-certify");

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "certificate: out of memory");
    if (!d9d_fs_is_dir(tmp))
        return D9D_FAIL(D9D_ECONFIG, "TMPDIR: %s is no directory", tmp);
    return d9d_outdir_begin(o, path, D9D_OUTDIR_REPLACE, NULL);
}

/* What rank 0 does alone, in a folder of its own. */
static d9d_status certify_alone(d9di_certify *c, const char *model, d9d_outdir *dir)
{
    if (d9d_bootstrap_rank(c->opts->bootstrap) != 0)
        return D9D_OK;
    D9D_TRY(dir_begin(c->arena, dir));
    c->dir = dir->tmp;
    D9D_TRY(write_model(c, model));
    return run_checks(c, false);
}

/* Other ranks learn what rank 0 has made. */
static d9d_status join_model(d9di_certify *c)
{
    const char *file;
    json_t *doc;
    d9d_status st;

    if (d9d_bootstrap_rank(c->opts->bootstrap) == 0)
        return D9D_OK;
    file = d9d_fs_join(c->arena, c->folder, D9D_HF_CONFIG_NAME);
    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "certificate: out of memory");
    D9D_TRY(d9d_hf_config_load(file, &doc));
    st = measure_model(c, doc, file);
    json_decref(doc);
    return st;
}

static d9d_status certify_together(d9di_certify *c, const char *model, d9d_outdir *dir)
{
    d9d_bootstrap *ranks = c->opts->bootstrap;

    D9D_TRY(d9d_bootstrap_agree_status(ranks, certify_alone(c, model, dir)));
    D9D_TRY(d9d_bootstrap_broadcast_text(ranks, c->arena, &c->dir));
    D9D_TRY(d9d_bootstrap_broadcast_text(ranks, c->arena, &c->folder));
    D9D_TRY(d9d_bootstrap_agree_status(ranks, join_model(c)));
    D9D_TRY(d9d_bootstrap_agree_status(ranks, run_checks(c, true)));
    return d9d_bootstrap_agree_status(ranks, count_failed(c->out));
}

static d9d_status prepare(d9di_certify *c, const char *model)
{
    D9D_TRY(d9d_plugins_models(c->opts->plugins, &c->choices));
    D9D_TRY(read_model(c, model));
    D9D_TRY(name_model(c, model));
    return d9di_certify_golden_check(c);
}

d9d_status d9d_certify(const char *model, const d9d_certify_opts *opts, d9d_arena *a,
                       d9d_certificate *out)
{
    d9di_certify c = {.opts = opts, .arena = a, .out = out};
    d9d_outdir dir = {0};
    d9d_status st;

    *out = (d9d_certificate){.family = NULL};
    D9D_TRY(d9d_bootstrap_agree_status(opts->bootstrap, prepare(&c, model)));
    D9D_TRY(d9d_preemption_open(D9D_PREEMPTION_NO_LIMIT, opts->log, &c.signals));
    st = certify_together(&c, model, &dir);
    d9d_outdir_release(&dir);
    d9d_preemption_close(c.signals);
    return st;
}

void d9d_certificate_release(d9d_certificate *c)
{
    json_decref(c->config);
    c->config = NULL;
}
