/* provider.c - see d9d/model/provider.h. */
#include "d9d/model/provider.h"

#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/plugin_call.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"
#include "model/family/model_choice.h"
#include "model/hf/hf_config_fields.h"

const char *const d9d_model_dtype_names[] = {"float32", "bfloat16", NULL};

/* In the order of d9d_model_recompute_mode. */
const char *const d9d_model_recompute_words[] = {"off", "full", "selective", NULL};

/* In the order of d9d_model_attention_mask. */
const char *const d9d_model_attention_mask_words[] = {"auto", "causal", "prefix", NULL};

/* false, true, or a word. */
static d9d_status recompute_parse(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    int *out = field;

    (void)a;
    for (int i = 0; d9d_model_recompute_words[i] != NULL; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), d9d_model_recompute_words[i]) == 0) {
            *out = i;
            return D9D_OK;
        }
    if (!json_is_boolean(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: must be false, true, \"off\", \"full\" or \"selective\"",
                        path);
    *out = json_is_true(v) ? D9D_RECOMPUTE_FULL : D9D_RECOMPUTE_OFF;
    return D9D_OK;
}
const d9d_key_custom d9d_model_recompute_key = {
    recompute_parse, "{\"enum\": [false, true, \"off\", \"full\", \"selective\"]}", sizeof(int)};

/* Read the dimensions of a provider without read(). */
static d9d_status dims_read(const d9d_hf_family *f, const json_t *doc, const char *path,
                            d9d_arena *a, const void **config)
{
    void *dims = f->dims != NULL ? d9d_arena_alloc(a, f->dims->size) : NULL;

    if (path == NULL)
        return D9D_FAIL(D9D_ECONFIG, "model_provider.hf_config: %s needs a config.json", f->name);
    if (f->dims == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: has neither dims nor read()", f->name);
    if (dims == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its dimensions", path);
    D9D_TRY(d9d_hf_family_bind(f, doc, path, a, dims));
    *config = dims;
    return D9D_OK;
}

/* Refuse a config.json that belongs to another of the providers that the section could name. */
static d9d_status name_check(const d9d_union *section, const json_t *doc, const char *path)
{
    const char *type = json_string_value(json_object_get(doc, "model_type"));
    const d9d_table *const *c = section->choices;

    if (type == NULL || d9di_model_accepts_type(section->choice->row, type))
        return D9D_OK;
    while (c != NULL && *c != NULL && !d9di_model_accepts_type((*c)->row, type))
        c++;
    return c == NULL || *c == NULL
               ? D9D_OK /* the family's check reports it */
               : D9D_FAIL(D9D_ECONFIG,
                          "model_provider.name: \"%s\" does not read model_type \"%s\" of %s; "
                          "\"%s\" does",
                          section->choice->name, type, path, (*c)->name);
}

/* Is it a class of this family: "Llama" and one of the usual ends? */
static bool is_class_of(const d9d_model_provider *p, const char *name)
{
    static const char *const ends[] = {
        "ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForSequenceClassification", "Model", NULL};
    const char *class_name = p->family != NULL ? p->family->class_name : NULL;
    const size_t n = class_name != NULL ? strlen(class_name) : 0;

    return n > 0 && strncmp(name, class_name, n) == 0 && d9di_hf_is_among(ends, name + n);
}

/* The class must not be that of another model_type.  One of no family is a trainer's own. */
static d9d_status class_check(const d9d_union *section, const json_t *doc, const char *path)
{
    const char *name = json_string_value(json_array_get(json_object_get(doc, "architectures"), 0));
    const char *type = json_string_value(json_object_get(doc, "model_type"));
    const d9d_table *const *c = section->choices;

    if (name == NULL || type == NULL || is_class_of(section->choice->row, name))
        return D9D_OK;
    while (c != NULL && *c != NULL &&
           (!is_class_of((*c)->row, name) || d9di_model_accepts_type((*c)->row, type)))
        c++;
    return c == NULL || *c == NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "%s: architectures: \"%.64s\" is a class of %s, and model_type is \"%s\"",
                          path, name, (*c)->name, type);
}

d9d_hf_family d9d_model_hf_family(const d9d_model_provider *p)
{
    const d9d_family *f = p->family;

    return (d9d_hf_family){.name = f != NULL ? f->name : p->table->name,
                           .model_types = p->model_types,
                           .dims = f != NULL ? f->config : p->dims,
                           .fields = f != NULL ? f->fields : p->fields};
}

/* Read config.json and check it: a provider never sees a file of another family or with undeclared
 * fields. */
static d9d_status config_read(const d9d_union *section, const char *path, d9d_arena *a,
                              const void **config, bool *prefix_mask)
{
    const d9d_model_provider *p = section->choice->row;
    const d9d_hf_family family = d9d_model_hf_family(p);
    json_t *doc = NULL;
    d9d_status st = D9D_OK;

    if (path != NULL) {
        D9D_TRY(d9d_hf_config_load(path, &doc));
        st = name_check(section, doc, path);
        if (st == D9D_OK)
            st = d9d_hf_family_check(&family, doc, path);
        if (st == D9D_OK)
            st = class_check(section, doc, path);
        *prefix_mask = d9d_hf_config_has_prefix_mask(doc);
    }
    if (st == D9D_OK)
        st = p->read != NULL ? D9D_PLUGIN_CALL(p->table->name, p, read, section->value, a, config)
             : p->family != NULL
                 ? d9d_family_read_section(p->family, section->value, doc, path, a, config)
                 : dims_read(&family, doc, path, a, config);
    json_decref(doc);
    return st;
}

d9d_status d9d_model_spec_read(const d9d_union *given, d9d_arena *a, d9d_model_spec *out)
{
    const d9d_model_section *head;
    const char *beside;
    d9d_model_spec s = {0};
    d9d_union section;

    D9D_TRY(d9d_model_section_resolve(given, a, &section));
    head = section.value;
    s.provider = section.choice->row;
    s.opts.dtype = (d9d_dtype)head->dtype;
    s.opts.recompute = (d9d_model_recompute_mode)head->checkpointing;
    if (head->hf_config != NULL)
        D9D_TRY(d9d_hf_config_locate(head->hf_config, a, &s.hf_config, &beside));
    D9D_TRY(config_read(&section, s.hf_config, a, &s.config, &s.opts.prefix_mask));
    if (head->attention_mask != D9D_ATTENTION_MASK_AUTO)
        s.opts.prefix_mask = head->attention_mask == D9D_ATTENTION_MASK_PREFIX;
    *out = s;
    return D9D_OK;
}

/* A section with nothing but hf_config. */
static d9d_status section_make(const d9d_table *choice, const char *path, d9d_arena *a, void **out)
{
    json_t *doc = json_pack("{s:s}", "hf_config", path);
    d9d_status st;

    *out = d9d_arena_alloc(a, choice->size);
    if (doc == NULL || *out == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    else
        st = d9d_config_bind(choice, doc, path, NULL, a, *out);
    json_decref(doc);
    return st;
}

d9d_status d9d_model_spec_of(const d9d_table *const *choices, const json_t *doc, const char *path,
                             d9d_arena *a, d9d_model_spec *out)
{
    d9d_union section = {.choices = choices};

    D9D_TRY(d9di_model_choice_find(doc, path, &section));
    D9D_TRY(section_make(section.choice, path, a, &section.value));
    return d9d_model_spec_read(&section, a, out);
}

d9d_status d9d_model_spec_set_head(d9d_model_spec *m, d9d_arena *a, const d9d_head *head)
{
    d9d_head h = *head;

    if (m->provider->set_head != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(m->provider->table->name, m->provider, set_head, m->config, a, &h,
                                &m->config));
    else if (h.kind == D9D_HEAD_MASKED_LM)
        return D9D_FAIL(D9D_ENOTSUP, "%s: has no head of a masked language model",
                        m->provider->table->name);
    else if (h.kind == D9D_HEAD_CLASSIFICATION && h.size == 0)
        return D9D_FAIL(D9D_ECONFIG, "task.num_labels: %s does not say how many labels there are",
                        m->provider->table->name);
    m->opts.head = h;
    return D9D_OK;
}

d9d_status d9d_model_spec_trainable(const d9d_model_spec *m)
{
    return m->provider->trainable != NULL
               ? D9D_PLUGIN_CALL(m->provider->table->name, m->provider, trainable, m->config)
               : D9D_OK;
}

d9d_weights_layout d9d_model_hf_layout(const d9d_model_spec *m, const json_t *doc)
{
    const d9d_family *f = m->provider->family;

    return d9d_hf_config_was_fused(doc) && (f == NULL || d9d_family_has_fused_layout(f))
               ? D9D_LAYOUT_HF_FUSED
               : D9D_LAYOUT_HF;
}

/* --- weights with other names ----------------------------------------------------------------- */

static bool has_prefix(const char *name, const char *part)
{
    return strncmp(name, part, strlen(part)) == 0;
}

static bool is_own_name(const d9d_hf_name_pair *pairs, const char *name)
{
    for (; pairs != NULL && pairs->own != NULL; pairs++)
        if (has_prefix(name, pairs->own))
            return true;
    return false;
}

/* If no name changes, both layouts are equal; the suite's is returned, in which any matrix may have
 * an adapter. */
d9d_weights_layout d9d_model_layout(const d9d_model_spec *m, const d9d_tensor_source *src)
{
    const d9d_hf_name_pair *pairs = m->provider->hf_names;

    if (m->provider->layout != NULL)
        return m->provider->layout(src);
    if (pairs == NULL || pairs->own == NULL)
        return D9D_LAYOUT_D9D;
    for (size_t i = 0; i < src->n; i++)
        if (is_own_name(m->provider->hf_names, src->at(src->self, i)->name))
            return D9D_LAYOUT_D9D;
    return D9D_LAYOUT_HF;
}

/* A tensor's name in the other layout: by the first pair whose prefix matches, or unchanged. */
static d9d_status name_map(const d9d_hf_name_pair *pairs, bool to_own, const char *name,
                           d9d_arena *a, const char **out)
{
    *out = name;
    for (; pairs != NULL && pairs->own != NULL; pairs++) {
        const char *from = to_own ? pairs->hf : pairs->own, *to = to_own ? pairs->own : pairs->hf;

        if (!has_prefix(name, from))
            continue;
        *out = d9d_arena_printf(a, "%s%s", to, name + strlen(from));
        return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: another name", name);
    }
    return D9D_OK;
}

static bool has_param(const d9d_params *of, const char *name)
{
    for (size_t i = 0; i < of->n; i++)
        if (strcmp(of->p[i]->name, name) == 0)
            return true;
    return false;
}

static d9d_status names_map(const d9d_model_spec *m, d9d_stage stage, const d9d_tensor_source *src,
                            d9d_weights_layout to, d9d_mapper *mapper)
{
    const d9d_weights_layout from = d9d_model_layout(m, src);
    const d9d_hf_name_pair *pairs =
        (from == D9D_LAYOUT_D9D) != (to == D9D_LAYOUT_D9D) ? m->provider->hf_names : NULL;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name, *there;

        D9D_TRY_OR(st, name_map(pairs, to == D9D_LAYOUT_D9D, name, &a, &there), out);
        if (stage.count == 1 || has_param(m->params, there))
            D9D_TRY_OR(st, d9d_mapper_rename(mapper, name, there), out);
    }
out:
    d9d_arena_release(&a);
    return st;
}

/* The provider's own mapping. */
static d9d_status provider_mapper(const d9d_model_spec *m, d9d_stage stage,
                                  const d9d_tensor_source *src, d9d_weights_layout to,
                                  d9d_mapper **out)
{
    d9d_mapper *mapper;
    d9d_status st;

    if (m->provider->mapper != NULL)
        return D9D_PLUGIN_CALL(m->provider->table->name, m->provider, mapper, m->config, stage, src,
                               to, out);
    D9D_TRY(d9d_mapper_create(&mapper));
    st = names_map(m, stage, src, to, mapper);
    if (st == D9D_OK)
        *out = mapper;
    else
        d9d_mapper_free(mapper);
    return st;
}

d9d_status d9d_model_spec_matrices(const d9d_model_spec *m, d9d_arena *a, d9d_model_matrices *out)
{
    *out = (d9d_model_matrices){0};
    return m->provider->matrices != NULL
               ? D9D_PLUGIN_CALL(m->provider->table->name, m->provider, matrices, m->config, a, out)
               : D9D_OK;
}

static bool source_has(const d9d_tensor_source *src, const char *name)
{
    for (size_t i = 0; i < src->n; i++)
        if (strcmp(src->at(src->self, i)->name, name) == 0)
            return true;
    return false;
}

static bool mapper_takes(const d9d_mapper *m, const char *name)
{
    for (size_t i = 0; i < d9d_mapper_input_count(m); i++)
        if (strcmp(d9d_mapper_input(m, i), name) == 0)
            return true;
    return false;
}

/* Named heads that the model does not have: left out, or kept where a model folder becomes another.
 */
static d9d_status named_heads_map(const d9d_model_spec *m, const d9d_tensor_source *src,
                                  d9d_mapper *mapper)
{
    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;

        if (strncmp(name, D9D_HEAD_NAMED, strlen(D9D_HEAD_NAMED)) == 0 &&
            !mapper_takes(mapper, name))
            D9D_TRY(m->params != NULL ? d9d_mapper_drop(mapper, name)
                                      : d9d_mapper_identity(mapper, name));
    }
    return D9D_OK;
}

d9d_status d9d_model_mapper(const d9d_model_spec *m, d9d_stage stage, const d9d_tensor_source *src,
                            d9d_weights_layout to, d9d_mapper **out)
{
    d9d_mapper *mapper;
    d9d_status st = D9D_OK;

    D9D_TRY(provider_mapper(m, stage, src, to, &mapper));
    for (size_t i = 0; m->params != NULL && i < m->params->n && st == D9D_OK; i++) {
        const d9d_param *p = m->params->p[i];

        if (p->spec.from_task && source_has(src, p->name) && !mapper_takes(mapper, p->name))
            st = d9d_mapper_identity(mapper, p->name);
    }
    if (st == D9D_OK)
        st = named_heads_map(m, src, mapper);
    if (st == D9D_OK)
        *out = mapper;
    else
        d9d_mapper_free(mapper);
    return st;
}

static d9d_status has_aux_files(const char *dir, d9d_arena *a, bool *out)
{
    d9d_fs_names names;

    *out = false;
    if (dir == NULL || !d9d_fs_is_dir(dir))
        return D9D_OK;
    D9D_TRY(d9d_checkpoint_aux_files(dir, a, NULL, &names));
    *out = names.n > 0;
    return D9D_OK;
}

d9d_status d9d_model_spec_aux_dir(const d9d_model_spec *m, d9d_arena *a, const char **out)
{
    const char *dirs[2] = {NULL, m->source}, *file;
    bool has = false;

    *out = NULL;
    if (m->hf_config != NULL)
        D9D_TRY(d9d_hf_config_locate(m->hf_config, a, &file, &dirs[0]));
    for (int i = 0; i < 2 && !has; i++) {
        D9D_TRY(has_aux_files(dirs[i], a, &has));
        if (has)
            *out = dirs[i];
    }
    return D9D_OK;
}
