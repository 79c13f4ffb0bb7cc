/* family_into.c - a model's weights in the place of those in a folder that has more, such as a
 * multimodal model: their names there, and whether they are of the same model.
 */
#include <string.h>

#include "d9d/base/json.h"
#include "model/family/family_parts.h"

/* --- names ----------------------------------------------------------------------------------- */

/* The name that a tensor of the layout has in files with these prefixes; NULL: out of memory. */
static const char *name_there(const d9d_hf_parts *parts, const d9d_hf_prefixes *as,
                              const char *name, d9d_arena *a)
{
    const size_t k = strlen(parts->hf.head);
    const char *head;

    if (strncmp(name, parts->hf.head, k) != 0 || name[k] != '.')
        return d9d_hf_name_as(parts, as, name, a);
    head = d9d_hf_name_as(parts, as, parts->hf.head, a);
    return head != NULL ? d9d_arena_printf(a, "%s%s", head, name + k) : NULL;
}

static d9d_status rename_add(const d9d_hf_parts *parts, const d9d_hf_prefixes *as, const char *name,
                             d9d_arena *a, d9d_mapper *m)
{
    const char *there = name_there(parts, as, name, a);

    if (there == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", name);
    return strcmp(name, there) == 0 ? D9D_OK : d9d_mapper_rename(m, name, there);
}

d9d_status d9d_family_rename_as(const void *config, const d9d_tensor_source *files, d9d_mapper *m)
{
    const d9d_hf_parts *parts = d9di_family_naming(config).parts;
    const d9d_hf_prefixes *as = d9d_hf_prefixes_of(parts, files);
    d9d_arena a = {0};
    d9d_mapper *names;
    d9d_status st;

    D9D_TRY(d9d_mapper_create(&names));
    for (size_t i = 0; i < d9d_mapper_output_count(m); i++)
        D9D_TRY_OR(st, rename_add(parts, as, d9d_mapper_output(m, i), &a, names), out);
    st = d9d_mapper_compose(m, names);
    names = NULL;
out:
    d9d_mapper_free(names);
    d9d_arena_release(&a);
    return st;
}

bool d9d_family_is_spare(const void *config, const char *name)
{
    const d9d_family_config *c = config;
    const d9d_hf_naming naming = d9di_family_naming(c);

    return d9d_hf_is_unused(&naming, name) ||
           (((const d9d_family_dims *)c->dims)->tie_word_embeddings &&
            d9di_family_is_lm_head(c, name));
}

/* --- the same model -------------------------------------------------------------------------- */

/* The values of all keys, whether the file has them or not. */
static d9d_status values_of(const d9d_family_config *c, const char *where, json_t **out)
{
    const d9d_family *f = c->family;
    const d9d_hf_family fields = {f->name, f->model_types, f->config, f->fields, true};
    json_t *doc = json_loads(c->document, 0, NULL);
    d9d_status st;

    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    st = d9d_hf_family_resolve(&fields, doc, where, out);
    json_decref(doc);
    return st;
}

/* Does a key decide what a model computes of its weights? */
static bool computes(const d9d_key *k)
{
    return !d9d_family_is_dropout(k) && strcmp(k->name, "initializer_range") != 0 &&
           strcmp(k->name, "pad_token_id") != 0;
}

static d9d_status fail_differ(const char *key, const json_t *a, const char *where, const json_t *b,
                              const char *other_where)
{
    d9d_buf x = {0}, y = {0};
    d9d_status st = d9d_json_put(&x, a, -1);

    if (st == D9D_OK)
        st = d9d_json_put(&y, b, -1);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ECONFIG, "%s is of another model than %s: %s is %s there, and %s here",
                      where, other_where, key, y.data, x.data);
    d9d_buf_release(&x);
    d9d_buf_release(&y);
    return st;
}

d9d_status d9d_family_check_equal(const void *config, const char *where, const void *other,
                                  const char *other_where)
{
    const d9d_family_config *c = config, *o = other;
    json_t *here = NULL, *there = NULL;
    d9d_status st;

    if (c->family != o->family)
        return D9D_FAIL(D9D_ECONFIG, "%s is of %s, and %s of %s", where, c->family->name,
                        other_where, o->family->name);
    D9D_TRY_OR(st, values_of(c, where, &here), out);
    D9D_TRY_OR(st, values_of(o, other_where, &there), out);
    for (const d9d_key *k = c->family->config->keys; k->name != NULL && st == D9D_OK; k++) {
        const json_t *a = json_object_get(here, k->name), *b = json_object_get(there, k->name);

        if (computes(k) && !json_equal(a, b))
            st = fail_differ(k->name, a, where, b, other_where);
    }
out:
    json_decref(here);
    json_decref(there);
    return st;
}
