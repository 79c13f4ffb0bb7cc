/* model_choice.c - the provider of a config.json, and the section "auto", which names none.  See
 * model_choice.h, and d9d/model/provider.h.
 */
#include "model/family/model_choice.h"

#include <string.h>

#include "d9d/model/hf/hf_config.h"
#include "model/family/family_parts.h"
#include "model/hf/hf_config_fields.h"

bool d9di_model_accepts_type(const d9d_model_provider *p, const char *type)
{
    for (const char *const *t = p->model_types; t != NULL && *t != NULL; t++)
        if (strcmp(*t, type) == 0)
            return true;
    return false;
}

/* A model of several media has a text model inside, whose tensors have other names. */
static d9d_status fail_text_config(const char *path, const char *type, const json_t *text)
{
    const char *inner = json_string_value(json_object_get(text, "model_type"));

    return D9D_FAIL(
        D9D_ENOTSUP,
        "%s: model_type: \"%.64s\" is not supported: it has a text_config, of more than "
        "text; save its text model alone with transformers (model_type \"%.64s\")",
        path, type, inner != NULL ? inner : "of text_config");
}

/* "llama, mistral, qwen3" */
static d9d_status fail_model_type(const d9d_table *const *choices, const char *path,
                                  const char *type)
{
    d9d_buf list = {0};
    d9d_status st = D9D_OK;

    for (; *choices != NULL; choices++) {
        const d9d_model_provider *p = (*choices)->row;

        for (const char *const *t = p->model_types; t != NULL && *t != NULL && st == D9D_OK; t++)
            st = d9d_buf_printf(&list, "%s%s", list.len > 0 ? ", " : "", *t);
    }
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: model_type: \"%.64s\" is not supported; there are %s, and plugins bring "
                      "others (man d9d-plugin)",
                      path, type, list.data);
    d9d_buf_release(&list);
    return st;
}

d9d_status d9di_model_choice_find(const json_t *doc, const char *path, d9d_union *out)
{
    const char *type;
    int which = 0;

    D9D_TRY(d9di_hf_model_type(doc, path, &type));
    while (out->choices[which] != NULL && !d9di_model_accepts_type(out->choices[which]->row, type))
        which++;
    if (out->choices[which] == NULL && json_is_object(json_object_get(doc, "text_config")))
        return fail_text_config(path, type, json_object_get(doc, "text_config"));
    if (out->choices[which] == NULL)
        return fail_model_type(out->choices, path, type);
    out->which = which;
    out->choice = out->choices[which];
    return D9D_OK;
}

/* --- auto ------------------------------------------------------------------------------------- */

static const d9d_key auto_keys[] = {D9D_MODEL_SECTION_KEYS, D9DI_FAMILY_JOB_KEYS, D9D_KEY_END};

static d9d_status auto_check(const void *section, const char *path)
{
    const d9d_model_section *s = section;

    return s->hf_config != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "%s.hf_config: \"auto\" needs a config.json, which names the family; "
                          "left out, it is that of source_checkpoint",
                          path);
}

static const d9d_model_provider auto_provider = {.size = sizeof(d9d_model_provider),
                                                 .table = &d9d_model_auto_section};
const d9d_table d9d_model_auto_section = {.name = "auto",
                                          .size = sizeof(d9d_family_section),
                                          .keys = auto_keys,
                                          .doc = "the family that reads hf_config",
                                          .check = auto_check,
                                          .row = &auto_provider};

static bool has_key(const d9d_table *t, const char *name)
{
    for (const d9d_key *k = t->keys; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return true;
    return false;
}

/* Set what differs from the defaults, and `router` where the section has it. */
static void options_write(const d9d_family_section *s, const d9d_table *choice, json_t **doc)
{
    const d9d_block_router *r = &s->router;
    json_t *splits = json_object();

    if (has_key(choice, "router") || r->bias_rate != 0.001 || r->aux_loss != 0 || r->z_loss != 0 ||
        r->capacity != 0)
        d9d_json_set(doc, "router",
                     json_pack("{s:f, s:f, s:f, s:f}", "bias_update_rate", (double)r->bias_rate,
                               "aux_loss_coef", (double)r->aux_loss, "z_loss_coef",
                               (double)r->z_loss, "capacity_factor", (double)r->capacity));
    for (size_t i = 0; i < s->split_vocab_size.n; i++)
        d9d_json_set(&splits, s->split_vocab_size.names[i],
                     json_integer(s->split_vocab_size.values[i]));
    if (s->split_vocab_size.n > 0)
        d9d_json_set(doc, "split_vocab_size", json_incref(splits));
    json_decref(splits);
    if (s->max_positions > 0)
        d9d_json_set(doc, "max_positions", json_integer(s->max_positions));
    if (s->pipeline_num_virtual_layers_pre > 0)
        d9d_json_set(doc, "pipeline_num_virtual_layers_pre",
                     json_integer(s->pipeline_num_virtual_layers_pre));
    if (s->pipeline_num_virtual_layers_post > 0)
        d9d_json_set(doc, "pipeline_num_virtual_layers_post",
                     json_integer(s->pipeline_num_virtual_layers_post));
}

/* Bind the section of a provider that has one of its own; what it does not know is an error. */
static d9d_status own_section_bind(const d9d_family_section *s, d9d_arena *a, d9d_union *u)
{
    const char *where = d9d_arena_printf(a, "model_provider (%s)", u->choice->name);
    json_t *doc = json_pack("{s:o, s:s, s:s}", "hf_config", d9d_json_str(s->head.hf_config),
                            "dtype", d9d_model_dtype_names[s->head.dtype], "checkpointing",
                            d9d_model_recompute_words[s->head.checkpointing]);
    d9d_status st;

    options_write(s, u->choice, &doc);
    u->value = d9d_arena_alloc(a, u->choice->size);
    if (doc == NULL || where == NULL || u->value == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "model_provider: out of memory");
    else
        st = d9d_config_bind(u->choice, doc, where, NULL, a, u->value);
    json_decref(doc);
    return st;
}

d9d_status d9d_model_section_resolve(const d9d_union *section, d9d_arena *a, d9d_union *out)
{
    const d9d_family_section *s = section->value;
    const d9d_model_provider *p;
    json_t *doc;
    d9d_status st;

    *out = *section;
    if (section->choice->row != &auto_provider)
        return D9D_OK;
    D9D_TRY(d9d_hf_config_load(s->head.hf_config, &doc));
    st = d9di_model_choice_find(doc, s->head.hf_config, out);
    json_decref(doc);
    D9D_TRY(st);
    p = out->choice->row;
    return p->family != NULL && p->read == NULL ? D9D_OK : own_section_bind(s, a, out);
}
