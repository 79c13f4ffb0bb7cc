/* param_groups.c - assigns parameters to groups by their names.  See param_groups.h. */
#include "optim/param_groups.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/config/name_pattern.h"
#include "optim/optimizer.h"

/* --- configuration ---------------------------------------------------------------------------- */

static const d9d_key group_keys[] = {
    D9D_KEY_STR(d9d_optimizer_group, pattern, D9D_REQUIRED,
                "regular expression that the whole dotted name of a parameter matches; the first "
                "group that matches has the parameter",
                .min = 1),
    D9D_KEY_REAL(d9d_optimizer_group, lr_scale, "1", 0, 1e6, "factor of the learning rate",
                 .flags = D9D_FLOAT32),
    D9D_KEY_REAL(d9d_optimizer_group, weight_decay, "null", 0, 1e6,
                 "in place of the optimizer's; null: the same",
                 .flags = D9D_NULLABLE | D9D_FLOAT32),
    D9D_KEY_LIST(d9d_optimizer_group, betas, "null", &d9di_optimizer_beta_elem,
                 "in place of the optimizer's; null: the same", .min = 2, .max = 2,
                 .flags = D9D_NULLABLE),
    D9D_KEY_REAL(d9d_optimizer_group, eps, "null", 0, 1,
                 "in place of the optimizer's; null: the same",
                 .flags = D9D_NULLABLE | D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_ENUM(d9d_optimizer_group, kind, "null", d9di_optimizer_kind_names,
                 "of muon: what updates these parameters; null: as the optimizer says",
                 .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table group_table =
    D9D_TABLE(d9d_optimizer_group, "optimizer_group", group_keys, "values of some parameters");
const d9d_key d9d_optimizer_group_elem = {
    .kind = D9D_KIND_TABLE, .def = "{}", .table = &group_table, .doc = "one group"};

/* A key of a group that takes the place of the section's key of that name. */
typedef struct group_override {
    const char *name;
    size_t offset; /* in d9d_optimizer_group */
    d9d_key_kind kind;
} group_override;

static const group_override overrides[] = {
    {"weight_decay", offsetof(d9d_optimizer_group, weight_decay), D9D_KIND_REAL},
    {"betas", offsetof(d9d_optimizer_group, betas), D9D_KIND_LIST},
    {"eps", offsetof(d9d_optimizer_group, eps), D9D_KIND_REAL},
    {"kind", offsetof(d9d_optimizer_group, kind), D9D_KIND_ENUM},
};
enum { N_OVERRIDES = sizeof(overrides) / sizeof(overrides[0]) };

/* The key of a table, if it has one of this name and kind. */
static const d9d_key *key_find(const d9d_table *t, const char *name, d9d_key_kind kind)
{
    const d9d_key *k = d9d_config_find_key(t, name, strlen(name));

    return k != NULL && k->kind == kind ? k : NULL;
}

/* The "groups" of a section; empty for an optimizer without groups. */
static d9d_list section_groups(const d9d_union *section)
{
    const d9d_key *k = key_find(section->choice, "groups", D9D_KIND_LIST);
    const bool ours = k != NULL && k->elem->kind == D9D_KIND_TABLE &&
                      strcmp(k->elem->table->name, group_table.name) == 0;

    return ours ? *(const d9d_list *)((const char *)section->value + k->offset) : (d9d_list){0};
}

static double section_layer_lr_decay(const d9d_union *section)
{
    const d9d_key *k = key_find(section->choice, "layer_lr_decay", D9D_KIND_REAL);

    return k != NULL ? *(const double *)((const char *)section->value + k->offset) : 1;
}

static bool override_is_set(const group_override *o, const d9d_optimizer_group *g)
{
    const void *field = (const char *)g + o->offset;

    switch (o->kind) {
    case D9D_KIND_LIST: return ((const d9d_list *)field)->n > 0;
    case D9D_KIND_ENUM: return *(const int *)field >= 0;
    default: return !isnan(*(const double *)field);
    }
}

static size_t override_size(const group_override *o)
{
    return o->kind == D9D_KIND_LIST   ? sizeof(d9d_list)
           : o->kind == D9D_KIND_ENUM ? sizeof(int)
                                      : sizeof(double);
}

static json_t *pair_json(const double *v)
{
    return json_pack("[f, f]", v[0], v[1]);
}

/* The group's value as a configuration has it; NULL: out of memory. */
static json_t *override_json(const group_override *o, const d9d_optimizer_group *g)
{
    const void *field = (const char *)g + o->offset;

    switch (o->kind) {
    case D9D_KIND_LIST: return pair_json(((const d9d_list *)field)->items);
    case D9D_KIND_ENUM: return json_string(d9di_optimizer_kind_names[*(const int *)field]);
    default: return json_real(*(const double *)field);
    }
}

/* Group i, whose values take the place of the section's. */
typedef struct group_values {
    const d9d_optimizer_group *group;
    size_t i;
    d9d_arena *a;
} group_values;

/* Put the value into the field of the optimizer's key, whose range it must be in. */
static d9d_status override_bind(const group_override *o, const group_values *v, const d9d_key *key,
                                void *field)
{
    d9d_key keys[] = {*key, D9D_KEY_END};
    const d9d_table one = {.name = o->name, .size = sizeof(d9d_list), .keys = keys};
    json_t *doc = json_pack("{s:o}", o->name, override_json(o, v->group));
    d9d_list bound;
    char where[64];
    d9d_status st;

    snprintf(where, sizeof(where), "optimizer.groups[%zu]", v->i);
    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s.%s: no memory", where, o->name);
    keys->offset = 0;
    st = d9d_config_bind(&one, doc, where, NULL, v->a, &bound);
    json_decref(doc);
    if (st == D9D_OK)
        memcpy(field, &bound, override_size(o));
    return st;
}

/* Replace the value in a struct of table t and in the structs that it embeds.  *any: one of them
 * has the key. */
static d9d_status override_apply(const group_override *o, const group_values *v, const d9d_table *t,
                                 char *config, bool *any)
{
    const d9d_key *key = key_find(t, o->name, o->kind);

    if (key != NULL) {
        *any = true;
        D9D_TRY(override_bind(o, v, key, config + key->offset));
    }
    for (const d9d_key *k = t->keys; k->name != NULL; k++)
        if (k->kind == D9D_KIND_TABLE && (k->flags & D9D_NULLABLE) == 0)
            D9D_TRY(override_apply(o, v, k->table, config + k->offset, any));
    return D9D_OK;
}

/* The section's struct with the values of a group. */
static d9d_status config_make(const d9d_union *section, const d9d_optimizer_group *g, size_t i,
                              d9d_arena *a, const void **out)
{
    const d9d_table *t = section->choice;
    const group_values values = {g, i, a};
    char *config = d9d_arena_alloc(a, t->size);

    if (config == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the %zu bytes of a group", t->size);
    memcpy(config, section->value, t->size);
    for (size_t k = 0; k < N_OVERRIDES; k++) {
        const group_override *o = &overrides[k];
        bool any = !override_is_set(o, g);

        if (!any)
            D9D_TRY(override_apply(o, &values, t, config, &any));
        if (!any)
            return D9D_FAIL(D9D_ECONFIG, "optimizer.groups[%zu].%s: the optimizer %s has no %s", i,
                            o->name, t->name, o->name);
    }
    *out = config;
    return D9D_OK;
}

/* --- layers ------------------------------------------------------------------------------------
 */

/* How many layers the rates of whole[at] are below those of the head.  What is declared before the
 * first layer is the embedding, what follows the last one belongs to the head. */
static int64_t layers_below_head(const d9d_params *whole, size_t at, size_t first, int64_t layers)
{
    const int64_t layer = d9d_param_layer_of(whole->p[at]->name);

    return layer >= 0 ? layers - 1 - layer : at < first ? layers : 0;
}

/* The number of layers, and the first parameter of a layer. */
static void layers_count(const d9d_params *whole, int64_t *layers, size_t *first)
{
    *layers = 0;
    *first = whole->n;
    for (size_t i = whole->n; i-- > 0;) {
        const int64_t layer = d9d_param_layer_of(whole->p[i]->name);

        if (layer >= 0)
            *first = i;
        if (layer >= *layers)
            *layers = layer + 1;
    }
}

/* --- assignment --------------------------------------------------------------------------------
 */

/* What a pattern found among the parameters of the model. */
typedef struct group_match {
    size_t matched, taken; /* trained parameters; those of them that had no group before */
    size_t first;          /* the first that matches */
    size_t earlier;        /* its group before */
} group_match;

/* Give group g those parameters that match it and have no group yet. */
static d9d_status group_take(const d9d_name_pattern *pattern, const d9d_params *whole, size_t g,
                             size_t none, size_t *of, group_match *m)
{
    for (size_t i = 0; i < whole->n; i++) {
        bool match;

        if (!whole->p[i]->spec.trainable)
            continue;
        D9D_TRY(d9d_name_pattern_match(pattern, whole->p[i]->name, &match));
        if (!match)
            continue;
        if (m->matched++ == 0) {
            m->first = i;
            m->earlier = of[i];
        }
        if (of[i] == none) {
            of[i] = g;
            m->taken++;
        }
    }
    return D9D_OK;
}

/* A group without parameters is a mistake: no name matches, or earlier groups have them all. */
static d9d_status check_taken(const d9d_list *listed, const d9d_params *whole, size_t g,
                              const group_match *m)
{
    const d9d_optimizer_group *groups = listed->items;

    if (m->matched == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer.groups[%zu].pattern \"%s\": of %zu parameter%s it matches none "
                        "that is trained%s%s",
                        g, groups[g].pattern, whole->n, D9D_PLURAL(whole->n),
                        whole->n > 0 ? "; the first is " : "",
                        whole->n > 0 ? whole->p[0]->name : "");
    if (m->taken == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer.groups[%zu].pattern \"%s\": earlier groups have all %zu "
                        "parameter%s that it matches; %s is of groups[%zu] with \"%s\"",
                        g, groups[g].pattern, m->matched, D9D_PLURAL(m->matched),
                        whole->p[m->first]->name, m->earlier, groups[m->earlier].pattern);
    return D9D_OK;
}

static d9d_status group_assign(const d9d_list *listed, const d9d_params *whole, size_t g,
                               size_t *of)
{
    const char *text = ((const d9d_optimizer_group *)listed->items)[g].pattern;
    char key[64];
    d9d_name_pattern *pattern;
    group_match m = {0};
    d9d_status st;

    (void)snprintf(key, sizeof(key), "optimizer.groups[%zu].pattern", g);
    D9D_TRY(d9d_name_pattern_create(key, text, &pattern));
    st = group_take(pattern, whole, g, listed->n, of, &m);
    d9d_name_pattern_free(pattern);
    return st == D9D_OK ? check_taken(listed, whole, g, &m) : st;
}

/* Index in `whole` of a parameter, looked for from `from` on. */
static d9d_status whole_find(const d9d_params *whole, const d9d_param *p, size_t from, size_t *out)
{
    for (size_t k = 0; k < whole->n; k++) {
        const size_t i = (from + k) % whole->n;

        if (whole->p[i] == p || strcmp(whole->p[i]->name, p->name) == 0) {
            *out = i;
            return D9D_OK;
        }
    }
    return D9D_FAIL(D9D_EINVAL, "optimizer: %s is not among the %zu parameter%s of the model",
                    p->name, whole->n, D9D_PLURAL(whole->n));
}

static d9d_status groups_create(const d9d_union *section, const d9d_list *listed, d9d_arena *a,
                                d9di_optimizer_groups *g)
{
    g->n = listed->n + 1;
    g->layer_lr_decay = section_layer_lr_decay(section);
    g->v = d9d_arena_alloc(a, g->n * sizeof(*g->v));
    if (g->v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for %zu groups", g->n);
    for (size_t i = 0; i < listed->n; i++) {
        g->v[i].listed = (const d9d_optimizer_group *)listed->items + i;
        D9D_TRY(config_make(section, g->v[i].listed, i, a, &g->v[i].config));
    }
    g->v[listed->n].config = section->value;
    return D9D_OK;
}

/* The group of each parameter of the whole model. */
static d9d_status whole_assign(const d9d_list *listed, const d9d_params *whole,
                               d9di_optimizer_groups *g, size_t *of)
{
    for (size_t i = 0; i < whole->n; i++)
        of[i] = g->n - 1;
    for (size_t i = 0; i + 1 < g->n; i++)
        D9D_TRY(group_assign(listed, whole, i, of));
    for (size_t i = 0; i < whole->n; i++) {
        if (!whole->p[i]->spec.trainable)
            continue;
        g->v[of[i]].n_params++;
        g->v[of[i]].n_elements += d9d_shape_numel(&whole->p[i]->spec.shape);
    }
    return D9D_OK;
}

d9d_status d9di_optimizer_groups_assign(const d9d_union *section, const d9d_params *params,
                                        const d9d_params *whole, d9d_arena *a,
                                        d9di_optimizer_groups *out)
{
    const d9d_list listed = section_groups(section);
    size_t *of = d9d_arena_alloc(a, (whole->n + 1) * sizeof(*of)), first, at = 0;
    d9di_optimizer_groups g = {
        .of = d9d_arena_alloc(a, (params->n + 1) * sizeof(*g.of)),
        .lr_scale = d9d_arena_alloc(a, (params->n + 1) * sizeof(*g.lr_scale)),
    };

    if (of == NULL || g.of == NULL || g.lr_scale == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the groups of %zu parameters",
                        params->n);
    D9D_TRY(groups_create(section, &listed, a, &g));
    D9D_TRY(whole_assign(&listed, whole, &g, of));
    layers_count(whole, &g.layers, &first);
    if (g.layer_lr_decay != 1 && g.layers == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer.layer_lr_decay is %g, and none of the model's %zu parameter%s "
                        "has a name with \"layers.<number>.\"",
                        g.layer_lr_decay, whole->n, D9D_PLURAL(whole->n));
    for (size_t i = 0; i < params->n; i++) {
        const d9d_optimizer_group *group;

        D9D_TRY(whole_find(whole, params->p[i], at, &at));
        group = g.v[of[at]].listed;
        g.of[i] = of[at];
        g.lr_scale[i] = group != NULL ? group->lr_scale : 1;
        if (g.layer_lr_decay != 1)
            g.lr_scale[i] *=
                pow(g.layer_lr_decay, (double)layers_below_head(whole, at, first, g.layers));
        at++;
    }
    *out = g;
    return D9D_OK;
}

/* --- description ------------------------------------------------------------------------------ */

static double list_real(const d9d_list *list, size_t i)
{
    return ((const double *)list->items)[i];
}

static d9d_status describe_values(const d9d_optimizer_group *g, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, ", lr_scale %g", g->lr_scale));
    for (size_t k = 0; k < N_OVERRIDES; k++) {
        const void *field = (const char *)g + overrides[k].offset;

        if (!override_is_set(&overrides[k], g))
            continue;
        if (overrides[k].kind == D9D_KIND_LIST)
            D9D_TRY(d9d_buf_printf(out, ", %s %g %g", overrides[k].name, list_real(field, 0),
                                   list_real(field, 1)));
        else if (overrides[k].kind == D9D_KIND_ENUM)
            D9D_TRY(d9d_buf_printf(out, ", %s %s", overrides[k].name,
                                   d9di_optimizer_kind_names[*(const int *)field]));
        else
            D9D_TRY(d9d_buf_printf(out, ", %s %g", overrides[k].name, *(const double *)field));
    }
    return D9D_OK;
}

d9d_status d9di_optimizer_groups_describe(const d9di_optimizer_groups *g, d9d_buf *out)
{
    for (size_t i = 0; i < g->n && g->n > 1; i++) {
        const d9di_optimizer_group *v = &g->v[i];

        D9D_TRY(d9d_buf_printf(out, "; %s%s%s: %zu parameter%s of %lld element%s",
                               v->listed != NULL ? "group \"" : "the others",
                               v->listed != NULL ? v->listed->pattern : "",
                               v->listed != NULL ? "\"" : "", v->n_params, D9D_PLURAL(v->n_params),
                               (long long)v->n_elements, D9D_PLURAL(v->n_elements)));
        if (v->listed != NULL)
            D9D_TRY(describe_values(v->listed, out));
    }
    return g->layer_lr_decay == 1
               ? D9D_OK
               : d9d_buf_printf(out,
                                "; layer_lr_decay %g over %lld layer%s: embedding %.3g, head 1",
                                g->layer_lr_decay, (long long)g->layers, D9D_PLURAL(g->layers),
                                pow(g->layer_lr_decay, (double)g->layers));
}
