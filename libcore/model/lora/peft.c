/* peft.c - parameter-efficient fine-tuning: which parameters are trained.  See
 * d9d/model/lora/peft.h.
 */
#include "d9d/model/lora/peft.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/config/name_pattern.h"
#include "model/lora/peft_methods.h"

enum { MAX_NAME = 256 /* bytes of names in a message */ };

/* --- modules by name ------------------------------------------------------------------------ */

static const char all_linear[] = "all-linear";

/* A method and its progress. */
typedef struct peft_run {
    const d9d_peft_method *method;
    const void *section;
    const d9d_peft_target *target; /* the section's first member */
    d9d_name_pattern *pattern;     /* NULL: all linear layers */
    size_t matched, applied;
    bool *layer_seen; /* by layers_to_transform */
    d9d_arena arena;
    D9D_VEC(const char *) names;   /* of all modules that it can be applied to */
    D9D_VEC(const char *) adapted; /* of those that got an adapter */
} peft_run;

/* A linear layer of a layer, which is no router and no stack of experts. */
static bool is_linear_of_layer(const char *name, const d9d_module *module)
{
    static const char router[] = ".router.gate";
    const d9d_param *w = d9d_adapter_matrix(module);
    const size_t n = strlen(name), k = strlen(router);

    return w != NULL && w->spec.shape.ndim == 2 && d9d_param_layer_of(name) >= 0 &&
           (n < k || strcmp(name + n - k, router) != 0);
}

/* Is it in one of the layers that are meant? */
static bool is_layer_meant(peft_run *m, const char *name)
{
    const d9d_list *layers = &m->target->layers_to_transform;
    const char *inside = d9d_arena_printf(&m->arena, "%s.", name);
    const int64_t layer = inside != NULL ? d9d_param_layer_of(inside) : -1;
    bool is_meant = layers->n == 0;

    for (size_t i = 0; i < layers->n; i++)
        if (((const int64_t *)layers->items)[i] == layer)
            is_meant = m->layer_seen[i] = true;
    return is_meant;
}

static d9d_status name_match(peft_run *m, const char *name, const d9d_module *module, bool *out)
{
    *out = module != NULL && is_linear_of_layer(name, module);
    if (m->pattern != NULL)
        D9D_TRY(d9d_name_pattern_match(m->pattern, name, out));
    *out = *out && is_layer_meant(m, name);
    return D9D_OK;
}

/* A parameter with a dotted name, token_embedding.special.weight, is matched like a module of its
 * own: by its whole name, or by a prefix that ends before a dot. */
static d9d_status param_visit(peft_run *m, const char *owner, const char *local, d9d_param *p)
{
    char *name = d9d_arena_printf(&m->arena, "%s%s%s", owner, owner[0] != '\0' ? "." : "", local);
    bool match = false;

    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "peft: the name of %s", local);
    D9D_TRY(name_match(m, name, NULL, &match));
    for (char *point = strrchr(name, '.'); !match && point != NULL; point = strrchr(name, '.')) {
        *point = '\0';
        if (strlen(name) <= strlen(owner))
            break;
        D9D_TRY(name_match(m, name, NULL, &match));
    }
    m->matched += match;
    m->applied += match;
    p->spec.trainable |= match && !p->spec.is_buffer;
    p->spec.is_mutable_buffer |= match && p->spec.is_buffer;
    return D9D_OK;
}

static d9d_status params_visit(peft_run *m, const char *name, const d9d_module *module)
{
    for (size_t i = 0; i < module->entries.len; i++) {
        const struct d9d_module_entry *e = &module->entries.data[i];

        if (e->param != NULL)
            D9D_TRY(param_visit(m, name, e->name, e->param));
    }
    return D9D_OK;
}

static d9d_status set_trainable(void *arg, d9d_param *p)
{
    const bool yes = *(const bool *)arg;

    p->spec.trainable = yes && !p->spec.is_buffer;
    p->spec.is_mutable_buffer = yes && p->spec.is_buffer;
    return D9D_OK;
}

static d9d_status adapter_add(peft_run *m, const char *name, d9d_module *module)
{
    const d9d_param *w = d9d_adapter_matrix(module);
    const char *word = m->method->table->name, *pattern = m->target->module_name_pattern;
    const d9d_adapter_kind *kind = NULL;
    d9d_adapter_opts opts = {0};
    d9d_status st;

    D9D_TRY(D9D_VEC_PUSH(&m->adapted, m->names.data[m->names.len - 1]));
    D9D_TRY(D9D_PLUGIN_CALL(word, m->method, adapt, m->section, name, w, &kind, &opts));
    if (kind == NULL)
        return D9D_FAIL(D9D_EINVAL, "peft: %s has no adapter for %s", word, name);
    if (kind->files != NULL && kind != m->method->kind)
        return D9D_FAIL(
            D9D_ECONFIG,
            "peft: %s gives %s adapters with files of their own, and its table does not "
            "name the kind, by which they are read",
            word, name);
    if (w->peft.adapter != NULL)
        return D9D_FAIL(D9D_ECONFIG, "peft: module_name_pattern \"%s\": %s has an adapter already",
                        pattern, name);
    if (w->spec.shape.ndim == 3 && !d9d_adapter_is_low_rank(kind))
        return D9D_FAIL(D9D_ENOTSUP,
                        "peft: module_name_pattern \"%s\": %s is a stack of experts, whose "
                        "adapters are \"lora\", not \"%s\"",
                        pattern, name, word);
    st = d9d_adapter_add(module, kind, &opts);
    return st == D9D_OK ? D9D_OK
                        : D9D_FAIL(st, "peft: module_name_pattern \"%s\": %s: %s", pattern, name,
                                   d9d_err_message());
}

/* A table of a vocabulary is matched by its own name too, as its parameter has it. */
static d9d_status table_match(peft_run *m, const char *name, const d9d_module *module, bool *match)
{
    const d9d_param *w = d9d_adapter_matrix(module);
    static const char weight[] = ".weight";

    for (size_t i = 0; i < module->entries.len && !*match; i++) {
        const struct d9d_module_entry *e = &module->entries.data[i];
        const char *table = e->param == w
                                ? d9d_arena_printf(&m->arena, "%s.%.*s", name,
                                                   (int)(strlen(e->name) - strlen(weight)), e->name)
                                : NULL;

        if (table != NULL)
            D9D_TRY(name_match(m, table, NULL, match));
    }
    return D9D_OK;
}

static d9d_status module_visit(void *arg, const char *name, d9d_module *module)
{
    peft_run *m = arg;
    const bool adapts = m->method->adapt != NULL;
    const bool fits = !adapts || d9d_adapter_matrix(module) != NULL;
    bool match = false, yes = true;

    if (fits) {
        const char *copy = d9d_arena_strdup(&m->arena, name);

        if (copy == NULL)
            return D9D_FAIL(D9D_ENOMEM, "peft: the name of %s", name);
        D9D_TRY(D9D_VEC_PUSH(&m->names, copy));
    }
    D9D_TRY(name_match(m, name, module, &match));
    if (adapts && !match && d9d_adapter_is_table(module))
        D9D_TRY(table_match(m, name, module, &match));
    m->matched += match;
    if (!match && !adapts)
        D9D_TRY(params_visit(m, name, module));
    if (!match || !fits)
        return D9D_OK;
    m->applied++;
    return adapts ? adapter_add(m, name, module) : d9d_module_each(module, set_trainable, &yes);
}

/* --- one method ------------------------------------------------------------------------------ */

static const char *last_component(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL ? dot + 1 : name;
}

/* The name, or the end of a name, that is most similar to the pattern; the whole name if its end
 * matches. */
static const char *nearest_name(const peft_run *m, const char *pattern)
{
    const char *near = d9d_config_did_you_mean(pattern, m->names.data);

    for (size_t i = 0; near == NULL && i + 1 < m->names.len; i++) {
        const char *const one[] = {last_component(m->names.data[i]), NULL};

        near = d9d_config_did_you_mean(last_component(pattern), one);
        if (near != NULL && strcmp(near, last_component(pattern)) == 0)
            near = m->names.data[i];
    }
    return near;
}

/* Fail with the name that was probably meant, or the first and the last of all. */
static d9d_status fail_unmatched(peft_run *m)
{
    const char *pattern = m->target->module_name_pattern, *near;
    char plain[MAX_NAME], say[2 * MAX_NAME] = "";
    size_t n = 0;

    for (const char *p = pattern; *p != '\0' && n + 1 < sizeof(plain); p++)
        if (*p != '\\')
            plain[n++] = *p;
    plain[n] = '\0';
    D9D_TRY(D9D_VEC_PUSH(&m->names, NULL));
    near = nearest_name(m, plain);
    if (near != NULL)
        (void)d9d_num_format(say, sizeof(say), "; did you mean %.*s?", MAX_NAME, near);
    else if (m->names.len > 2) /* the root has no name */
        (void)d9d_num_format(say, sizeof(say), "; there are %.*s to %.*s", MAX_NAME / 2,
                             m->names.data[m->names.data[0][0] == '\0'], MAX_NAME / 2,
                             m->names.data[m->names.len - 2]);
    return D9D_FAIL(D9D_ECONFIG, "peft: module_name_pattern \"%s\": of %zu modules %s%s", pattern,
                    m->names.len - 1,
                    m->matched > 0 ? "with a matrix to adapt it matches none" : "it matches none",
                    say);
}

/* A layer that is listed and has no module that matches is a mistake. */
static d9d_status layers_check(const peft_run *m)
{
    const d9d_list *layers = &m->target->layers_to_transform;

    for (size_t i = 0; i < layers->n; i++)
        if (!m->layer_seen[i])
            return D9D_FAIL(D9D_ECONFIG,
                            "peft: layers_to_transform has %lld, and \"%s\" matches nothing in "
                            "layer %lld",
                            (long long)((const int64_t *)layers->items)[i],
                            m->target->module_name_pattern,
                            (long long)((const int64_t *)layers->items)[i]);
    return D9D_OK;
}

static d9d_status method_apply(peft_run *m, d9d_module *root, bool part)
{
    const char *pattern = m->target->module_name_pattern;

    m->layer_seen = d9d_arena_alloc(&m->arena, m->target->layers_to_transform.n + 1);
    if (m->layer_seen == NULL)
        return D9D_FAIL(D9D_ENOMEM, "peft: no memory for a list of layers");
    if (strcmp(pattern, all_linear) != 0)
        D9D_TRY(d9d_name_pattern_create("peft: module_name_pattern", pattern, &m->pattern));
    D9D_TRY(d9d_module_walk(root, module_visit, m));
    if (part)
        return D9D_OK;
    D9D_TRY(layers_check(m));
    return m->applied == 0 ? fail_unmatched(m)
                           : d9di_peft_patterns_check(m->method->table, m->section, m->adapted.data,
                                                      m->adapted.len);
}

static d9d_status method_run(const d9d_peft_method *method, const void *section, d9d_module *root,
                             bool part)
{
    peft_run m = {.method = method, .section = section, .target = section};
    const d9d_status st = method_apply(&m, root, part);

    d9d_name_pattern_free(m.pattern);
    D9D_VEC_RELEASE(&m.names);
    D9D_VEC_RELEASE(&m.adapted);
    d9d_arena_release(&m.arena);
    return st;
}

/* The union's row: a method, or NULL for the list of several. */
static d9d_status apply(const d9d_union *peft, d9d_module *root, bool part)
{
    const d9d_list *methods = &((const d9di_peft_stack *)peft->value)->methods;

    if (d9d_peft_prompt_of(peft) != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "peft: prompt_tuning stands alone: no other method can train beside it");
    if (peft->choice->row != NULL)
        return method_run(peft->choice->row, peft->value, root, part);
    for (size_t i = 0; i < methods->n; i++)
        D9D_TRY(apply(&((const d9d_union *)methods->items)[i], root, part));
    return D9D_OK;
}

d9d_status d9d_peft_apply(const d9d_union *peft, d9d_model *m, bool part)
{
    const d9d_peft_prompt *prompt = d9d_peft_prompt_of(peft);
    bool no = false;

    if (peft->which < 0)
        return D9D_OK;
    D9D_TRY(d9d_module_each(m->module, set_trainable, &no));
    if (prompt != NULL)
        return d9d_model_add_prompt(m, prompt->num_virtual_tokens);
    D9D_TRY(apply(peft, m->module, part));
    return d9d_adapter_share(m->module);
}

d9d_status d9d_peft_params_of(const d9d_params *all, bool adapters, d9d_arena *a, d9d_params *out)
{
    d9d_params some = {.p = d9d_arena_alloc(a, (all->n + 1) * sizeof(d9d_param *))};

    if (some.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "peft: no memory for a list of %zu parameters", all->n);
    for (size_t i = 0; i < all->n; i++)
        if ((all->p[i]->peft.adapts != NULL) == adapters)
            some.p[some.n++] = all->p[i];
    *out = some;
    return D9D_OK;
}
