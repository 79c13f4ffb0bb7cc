/* convert_into.c - see convert_into.h. */
#include "convert/convert_into.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/quant/dequant.h"
#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"

/* Names of the folder's tensors in the source begin with this: they may be the source's too. */
#define FROM_FOLDER "into:"

struct d9di_convert_into {
    d9d_arena arena;
    const char *dir, *config_path;
    json_t *doc; /* config.json, of a multimodal model the whole */
    d9d_model_spec model;
    d9d_checkpoint *ckpt;
    d9d_tensor_source files;
    d9d_map by_name; /* index + 1 in it */
    /* What is taken: its names in the source, and its places in `files`. */
    d9d_safetensors_tensor *taken;
    size_t *at, n;
    d9d_tensor_source own; /* the source before, whose tensors come first */
};

/* --- the folder ------------------------------------------------------------------------------ */

static d9d_status read_model(d9di_convert_into *x, const d9d_table *const *choices)
{
    d9d_quantization q;
    json_t *text = NULL;
    const char *beside;
    d9d_status st;

    D9D_TRY(d9d_hf_config_locate(x->dir, &x->arena, &x->config_path, &beside));
    D9D_TRY(d9d_hf_config_load(x->config_path, &text));
    D9D_TRY_OR(st, d9d_quantization_read(text, x->config_path, &q), out);
    if (q.method != D9D_QUANTIZATION_NONE) {
        st =
            D9D_FAIL(D9D_ECONFIG, "%s: its weights are quantised (%s), those of --into must not be",
                     x->dir, d9d_quantization_name(q.method));
        goto out;
    }
    D9D_TRY_OR(st, d9d_model_spec_of(choices, text, x->config_path, &x->arena, &x->model), out);
    st = d9d_json_read(x->config_path, D9D_HF_CONFIG_MAX, &x->doc);
out:
    json_decref(text);
    return st;
}

static d9d_status index_files(d9di_convert_into *x)
{
    for (size_t i = 0; i < x->files.n; i++) {
        const char *name = x->files.at(x->files.self, i)->name;

        D9D_TRY(d9d_map_put(&x->by_name, name, strlen(name), (void *)(uintptr_t)(i + 1)));
    }
    return D9D_OK;
}

/* A tensor of the folder; NULL: it has none of this name. */
static const d9d_safetensors_tensor *file_find(const d9di_convert_into *x, const char *name)
{
    const uintptr_t i = (uintptr_t)d9d_map_get(&x->by_name, name, strlen(name));

    return i > 0 ? x->files.at(x->files.self, i - 1) : NULL;
}

static d9d_status open_folder(d9di_convert_into *x, const char *dir,
                              const d9d_table *const *choices)
{
    x->dir = d9d_arena_strdup(&x->arena, dir);
    if (x->dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    if (!d9d_fs_is_dir(dir))
        return D9D_FAIL(D9D_ENOTFOUND, "%s: is no folder of a model", dir);
    D9D_TRY(read_model(x, choices));
    if (x->model.provider->family == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s has no tensors that it does not compute", dir,
                        x->model.provider->table->name);
    D9D_TRY(d9d_checkpoint_open(dir, &x->ckpt));
    x->files = d9d_checkpoint_source(x->ckpt);
    D9D_TRY(index_files(x));
    if (d9di_convert_into_layout(x) == D9D_LAYOUT_D9D)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: has the layout d9d, which has a model alone; --into takes a folder of "
                        "HuggingFace's",
                        dir);
    return D9D_OK;
}

d9d_status d9di_convert_into_open(const char *dir, const d9d_table *const *choices,
                                  d9di_convert_into **out)
{
    d9di_convert_into *x = calloc(1, sizeof(*x));
    d9d_status st;

    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    st = open_folder(x, dir, choices);
    if (st == D9D_OK)
        *out = x;
    else
        d9di_convert_into_close(x);
    return st;
}

void d9di_convert_into_close(d9di_convert_into *x)
{
    if (x == NULL)
        return;
    d9d_map_release(&x->by_name);
    d9d_checkpoint_close(x->ckpt);
    json_decref(x->doc);
    d9d_arena_release(&x->arena);
    free(x);
}

const char *d9di_convert_into_dir(const d9di_convert_into *x)
{
    return x->dir;
}
d9d_weights_layout d9di_convert_into_layout(const d9di_convert_into *x)
{
    return d9d_model_layout(&x->model, &x->files);
}
/* Give a document and the parts of a multimodal one a dtype, where they say one. */
static d9d_status set_dtypes(json_t *doc, d9d_dtype to)
{
    const char *name;
    json_t *v;

    json_object_foreach(doc, name, v)
    {
        if (json_object_get(v, "dtype") != NULL || json_object_get(v, "torch_dtype") != NULL)
            D9D_TRY(d9d_hf_config_set_dtype(v, to));
    }
    return d9d_hf_config_set_dtype(doc, to);
}

d9d_status d9di_convert_into_config(const d9di_convert_into *x, const d9d_dtype *dtype,
                                    d9d_buf *text)
{
    json_t *doc = json_deep_copy(x->doc);
    d9d_status st = doc != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");

    if (st == D9D_OK && dtype != NULL)
        st = set_dtypes(doc, *dtype);
    if (st == D9D_OK)
        st = d9d_hf_config_text(doc, x->config_path, text);
    json_decref(doc);
    return st;
}

d9d_status d9di_convert_into_check_model(const d9di_convert_into *x, const d9d_model_spec *m,
                                         const char *where)
{
    if (m->provider->family == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s is of %s, and %s of %s", where, m->provider->table->name,
                        x->config_path, x->model.provider->table->name);
    return d9d_family_check_equal(m->config, where, x->model.config, x->config_path);
}

/* --- a source with its tensors --------------------------------------------------------------- */

static const d9d_safetensors_tensor *both_at(void *self, size_t i)
{
    d9di_convert_into *x = self;

    return i < x->own.n ? x->own.at(x->own.self, i) : &x->taken[i - x->own.n];
}

static const char *both_path(void *self, size_t i)
{
    d9di_convert_into *x = self;

    return i < x->own.n ? x->own.path(x->own.self, i)
                        : x->files.path(x->files.self, x->at[i - x->own.n]);
}

static d9d_status both_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    d9di_convert_into *x = self;

    return i < x->own.n ? x->own.read(x->own.self, i, at, dst, n)
                        : x->files.read(x->files.self, x->at[i - x->own.n], at, dst, n);
}

static void prefetch_of(const d9d_tensor_source *s, size_t i, uint64_t at, uint64_t n)
{
    if (s->prefetch != NULL)
        s->prefetch(s->self, i, at, n);
}

static void both_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    d9di_convert_into *x = self;

    if (i < x->own.n)
        prefetch_of(&x->own, i, at, n);
    else
        prefetch_of(&x->files, x->at[i - x->own.n], at, n);
}

static void both_fingerprint(void *self, d9d_hasher *h)
{
    d9di_convert_into *x = self;

    if (x->own.fingerprint != NULL)
        x->own.fingerprint(x->own.self, h);
    x->files.fingerprint(x->files.self, h);
}

static d9d_status both_is_spare(void *self, size_t i, bool *out)
{
    d9di_convert_into *x = self;

    *out = false;
    return i < x->own.n && x->own.is_spare != NULL ? x->own.is_spare(x->own.self, i, out) : D9D_OK;
}

static d9d_status take(d9di_convert_into *x, d9d_mapper *m, size_t i)
{
    const d9d_safetensors_tensor *t = x->files.at(x->files.self, i);
    const char *from = d9d_arena_printf(&x->arena, FROM_FOLDER "%s", t->name);

    if (from == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", x->dir);
    x->at[x->n] = i;
    x->taken[x->n] = *t;
    x->taken[x->n++].name = from;
    return d9d_mapper_rename(m, from, t->name);
}

/* Cast what m makes to the folder's types. */
static d9d_status cast_outputs(const d9di_convert_into *x, d9d_mapper *m)
{
    d9d_mapper *casts;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_mapper_create(&casts));
    for (size_t i = 0; i < d9d_mapper_output_count(m) && st == D9D_OK; i++) {
        const char *name = d9d_mapper_output(m, i);
        const d9d_safetensors_tensor *t = file_find(x, name);

        if (t != NULL)
            st = d9d_mapper_cast(casts, name, t->dtype);
    }
    if (st == D9D_OK)
        return d9d_mapper_compose(m, casts);
    d9d_mapper_free(casts);
    return st;
}

d9d_status d9di_convert_into_add(d9di_convert_into *x, d9d_mapper *m, d9d_tensor_source *src)
{
    D9D_TRY(d9d_family_rename_as(x->model.config, &x->files, m));
    D9D_TRY(cast_outputs(x, m));
    x->taken = d9d_arena_alloc(&x->arena, (x->files.n + 1) * sizeof(*x->taken));
    x->at = d9d_arena_alloc(&x->arena, (x->files.n + 1) * sizeof(*x->at));
    if (x->taken == NULL || x->at == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", x->dir);
    for (size_t i = 0; i < x->files.n; i++)
        if (d9d_family_is_left_out(x->model.config, x->files.at(x->files.self, i)->name))
            D9D_TRY(take(x, m, i));
    x->own = *src;
    *src = (d9d_tensor_source){.self = x,
                               .n = x->own.n + x->n,
                               .at = both_at,
                               .path = both_path,
                               .read = both_read,
                               .prefetch = both_prefetch,
                               .fingerprint = both_fingerprint,
                               .is_spare = both_is_spare};
    return D9D_OK;
}

size_t d9di_convert_into_count(const d9di_convert_into *x, size_t part, const char **what)
{
    return d9d_family_left_out(x->model.config, &x->files, part, what);
}

/* --- what is made ---------------------------------------------------------------------------- */

static d9d_status check_output(const d9di_convert_into *x, const d9d_safetensors_tensor *made)
{
    const d9d_safetensors_tensor *t = file_find(x, made->name);

    if (t == NULL)
        return D9D_FAIL(D9D_EMISMATCH, "%s: has no tensor %s", x->dir, made->name);
    if (t->ndim != made->ndim ||
        memcmp(t->shape, made->shape, (size_t)t->ndim * sizeof(*t->shape)) != 0)
        return D9D_FAIL(D9D_EMISMATCH, "%s: %s has another shape than that of the source", x->dir,
                        made->name);
    return D9D_OK;
}

d9d_status d9di_convert_into_check_plan(const d9di_convert_into *x, const d9d_map_plan *plan)
{
    d9d_map made = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < d9d_map_plan_output_count(plan); i++) {
        const d9d_safetensors_tensor *t = d9d_map_plan_output(plan, i);

        D9D_TRY_OR(st, check_output(x, t), out);
        D9D_TRY_OR(st, d9d_map_put(&made, t->name, strlen(t->name), x->doc), out);
    }
    for (size_t i = 0; i < x->files.n && st == D9D_OK; i++) {
        const char *name = x->files.at(x->files.self, i)->name;

        if (!d9d_map_has(&made, name, strlen(name)) && !d9d_family_is_spare(x->model.config, name))
            st =
                D9D_FAIL(D9D_EMISMATCH, "%s: %s is no tensor of the model, nor of a part beside it",
                         x->dir, name);
    }
out:
    d9d_map_release(&made);
    return st;
}
