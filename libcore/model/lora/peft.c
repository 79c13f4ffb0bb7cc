/* peft.c - parameter-efficient fine-tuning: which parameters are trained.  See
 * d9d/model/lora/peft.h.
 */
#include "d9d/model/lora/peft.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/config/name_pattern.h"

enum { MAX_NAME = 256 /* bytes of names in a message */ };

/* --- configuration ------------------------------------------------------------------------- */

#define PATTERN_KEY                                                                                \
    D9D_KEY_STR(d9d_peft_section, module_name_pattern, D9D_REQUIRED,                               \
                "regular expression that the whole dotted name of a module matches", .min = 1)

static const d9d_key params_keys[] = {
    D9D_KEY_INT(d9d_peft_params, r, D9D_REQUIRED, 1, 1 << 16, "rank: columns of each factor"),
    D9D_KEY_REAL(d9d_peft_params, alpha, D9D_REQUIRED, 0, 1e6,
                 "the product of the factors is scaled by alpha / r",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(d9d_peft_params, dropout, "0", 0, 1,
                 "dropout probability of an adapter's input; experts support only 0",
                 .flags = D9D_BELOW_MAX | D9D_FLOAT32),
    D9D_KEY_BOOL(d9d_peft_params, use_rslora, "false",
                 "rank-stabilized LoRA: the product is scaled by alpha / sqrt(r)"),
    D9D_KEY_END,
};
static const d9d_table params_table =
    D9D_TABLE(d9d_peft_params, "lora_params", params_keys, "the adapters");
static const d9d_key lora_keys[] = {
    PATTERN_KEY,
    D9D_KEY_TABLE(d9d_peft_section, params, &params_table, "the adapters"),
    D9D_KEY_END,
};
static const d9d_key full_keys[] = {PATTERN_KEY, D9D_KEY_END};
static const d9d_key method_elem = {.kind = D9D_KIND_UNION,
                                    .def = D9D_REQUIRED,
                                    .names = d9d_peft_tag,
                                    .choices = d9d_peft_choices,
                                    .doc = "one method"};
static const d9d_key stack_keys[] = {
    D9D_KEY_LIST(d9d_peft_section, methods, D9D_REQUIRED, &method_elem, "one after another",
                 .min = 1),
    D9D_KEY_END,
};
static const d9d_table lora_table = D9D_TABLE(d9d_peft_section, "lora", lora_keys,
                                              "low-rank adapters of linear layers and experts");
static const d9d_table full_table =
    D9D_TABLE(d9d_peft_section, "full_tune", full_keys, "all parameters of some modules");
static const d9d_table stack_table =
    D9D_TABLE(d9d_peft_section, "stack", stack_keys, "several methods");

const char *const d9d_peft_tag[] = {"kind", NULL};
const d9d_table *const d9d_peft_choices[] = {&lora_table, &full_table, &stack_table, NULL};

/* --- modules by name ------------------------------------------------------------------------ */

/* A method and its progress. */
typedef struct peft_method {
    const d9d_peft_section *section;
    d9d_status (*apply)(const struct peft_method *m, const char *name, d9d_module *module);
    bool (*fits)(const d9d_module *module); /* can it be applied to the module? */
    bool params; /* also to single parameters, such as a table of the vocabulary */
    d9d_name_pattern *pattern;
    size_t matched, applied;
    d9d_arena arena;
    D9D_VEC(const char *) names; /* of all modules that it can be applied to */
} peft_method;

/* A parameter with a dotted name, token_embedding.special.weight, is matched like a module of its
 * own: by its whole name, or by a prefix that ends before a dot. */
static d9d_status param_visit(peft_method *m, const char *owner, const char *local, d9d_param *p)
{
    char *name = d9d_arena_printf(&m->arena, "%s%s%s", owner, owner[0] != '\0' ? "." : "", local);
    bool match = false;

    if (name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "peft: the name of %s", local);
    D9D_TRY(d9d_name_pattern_match(m->pattern, name, &match));
    for (char *point = strrchr(name, '.'); !match && point != NULL; point = strrchr(name, '.')) {
        *point = '\0';
        if (strlen(name) <= strlen(owner))
            break;
        D9D_TRY(d9d_name_pattern_match(m->pattern, name, &match));
    }
    m->matched += match;
    m->applied += match;
    p->spec.trainable |= match && !p->spec.is_buffer;
    p->spec.is_mutable_buffer |= match && p->spec.is_buffer;
    return D9D_OK;
}

static d9d_status params_visit(peft_method *m, const char *name, const d9d_module *module)
{
    for (size_t i = 0; m->params && i < module->entries.len; i++) {
        const struct d9d_module_entry *e = &module->entries.data[i];

        if (e->param != NULL)
            D9D_TRY(param_visit(m, name, e->name, e->param));
    }
    return D9D_OK;
}

static d9d_status module_visit(void *arg, const char *name, d9d_module *module)
{
    const bool fits = ((peft_method *)arg)->fits(module);
    peft_method *m = arg;
    bool match = false;

    if (fits) {
        const char *copy = d9d_arena_strdup(&m->arena, name);

        if (copy == NULL)
            return D9D_FAIL(D9D_ENOMEM, "peft: the name of %s", name);
        D9D_TRY(D9D_VEC_PUSH(&m->names, copy));
    }
    D9D_TRY(d9d_name_pattern_match(m->pattern, name, &match));
    m->matched += match;
    if (!match)
        D9D_TRY(params_visit(m, name, module));
    if (!match || !fits)
        return D9D_OK;
    m->applied++;
    return m->apply(m, name, module);
}

/* --- the methods ----------------------------------------------------------------------------- */

static bool has_matrix(const d9d_module *module)
{
    return d9d_lora_matrix(module) != NULL;
}

static bool is_any(const d9d_module *module)
{
    (void)module;
    return true;
}

static d9d_status lora_apply(const peft_method *m, const char *name, d9d_module *module)
{
    const d9d_peft_params *p = &m->section->params;
    const double alpha = p->use_rslora ? p->alpha * sqrt((double)p->r) : p->alpha;
    const d9d_lora_opts opts = {p->r, alpha, p->dropout};

    if (p->dropout > 0 && d9d_lora_matrix(module)->spec.shape.ndim == 3)
        return D9D_FAIL(
            D9D_ENOTSUP,
            "peft: module_name_pattern \"%s\": adapters of experts support no dropout, and %s is a "
            "stack of experts; give experts a method of their own, without dropout",
            m->section->module_name_pattern, name);
    if (d9d_lora_matrix(module)->lora.adapter != NULL)
        return D9D_FAIL(D9D_ECONFIG, "peft: module_name_pattern \"%s\": %s has an adapter already",
                        m->section->module_name_pattern, name);
    return d9d_lora_add(module, &opts);
}

static d9d_status set_trainable(void *arg, d9d_param *p)
{
    const bool yes = *(const bool *)arg;

    p->spec.trainable = yes && !p->spec.is_buffer;
    p->spec.is_mutable_buffer = yes && p->spec.is_buffer;
    return D9D_OK;
}

static d9d_status full_tune_apply(const peft_method *m, const char *name, d9d_module *module)
{
    bool yes = true;

    (void)m, (void)name;
    return d9d_module_each(module, set_trainable, &yes);
}

/* --- one method ------------------------------------------------------------------------------ */

static const char *last_component(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL ? dot + 1 : name;
}

/* The name, or the end of a name, that is most similar to the pattern; the whole name if its end
 * matches. */
static const char *nearest_name(const peft_method *m, const char *pattern)
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
static d9d_status fail_unmatched(peft_method *m)
{
    const char *pattern = m->section->module_name_pattern, *near;
    char plain[MAX_NAME], say[2 * MAX_NAME] = "";
    size_t n = 0;

    for (const char *p = pattern; *p != '\0' && n + 1 < sizeof(plain); p++)
        if (*p != '\\')
            plain[n++] = *p;
    plain[n] = '\0';
    D9D_TRY(D9D_VEC_PUSH(&m->names, NULL));
    near = nearest_name(m, plain);
    if (near != NULL)
        (void)snprintf(say, sizeof(say), "; did you mean %.*s?", MAX_NAME, near);
    else if (m->names.len > 2) /* the root has no name */
        (void)snprintf(say, sizeof(say), "; there are %.*s to %.*s", MAX_NAME / 2,
                       m->names.data[m->names.data[0][0] == '\0'], MAX_NAME / 2,
                       m->names.data[m->names.len - 2]);
    return D9D_FAIL(D9D_ECONFIG, "peft: module_name_pattern \"%s\": of %zu modules %s%s", pattern,
                    m->names.len - 1,
                    m->matched > 0 ? "with a matrix to adapt it matches none" : "it matches none",
                    say);
}

static d9d_status method_run(peft_method *m, d9d_module *root, bool part)
{
    d9d_status st;

    D9D_TRY_OR(st,
               d9d_name_pattern_create("peft: module_name_pattern", m->section->module_name_pattern,
                                       &m->pattern),
               out);
    D9D_TRY_OR(st, d9d_module_walk(root, module_visit, m), out);
    if (m->applied == 0 && !part)
        st = fail_unmatched(m);
out:
    d9d_name_pattern_free(m->pattern);
    D9D_VEC_RELEASE(&m->names);
    d9d_arena_release(&m->arena);
    return st;
}

/* In the order of d9d_peft_choices; "stack" applies several. */
static d9d_status apply(const d9d_union *peft, d9d_module *root, bool part)
{
    const d9d_peft_section *section = peft->value;
    const d9d_union *methods = section->methods.items;
    const peft_method kinds[] = {
        {.section = section, .apply = lora_apply, .fits = has_matrix},
        {.section = section, .apply = full_tune_apply, .fits = is_any, .params = true},
    };
    peft_method m;

    if (d9d_peft_choices[peft->which] == &stack_table) {
        for (size_t i = 0; i < section->methods.n; i++)
            D9D_TRY(apply(&methods[i], root, part));
        return D9D_OK;
    }
    m = kinds[peft->which];
    return method_run(&m, root, part);
}

d9d_status d9d_peft_apply(const d9d_union *peft, d9d_module *root, bool part)
{
    bool no = false;

    if (peft->which < 0)
        return D9D_OK;
    D9D_TRY(d9d_module_each(root, set_trainable, &no));
    return apply(peft, root, part);
}

d9d_status d9d_peft_params_of(const d9d_params *all, bool adapters, d9d_arena *a, d9d_params *out)
{
    d9d_params some = {.p = d9d_arena_alloc(a, (all->n + 1) * sizeof(d9d_param *))};

    if (some.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "peft: no memory for a list of %zu parameters", all->n);
    for (size_t i = 0; i < all->n; i++)
        if ((all->p[i]->lora.adapts != NULL) == adapters)
            some.p[some.n++] = all->p[i];
    *out = some;
    return D9D_OK;
}
