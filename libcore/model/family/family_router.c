/* family_router.c - routers that config.json cannot express, in its member "d9d".  See
 * family_parts.h.
 */
#include <string.h>

#include "d9d/base/num_format.h"
#include "model/family/family_parts.h"
#include "model/hf/hf_config_fields.h"

bool d9di_family_routers_equal(const d9d_block_router *a, const d9d_block_router *b)
{
    const bool alike = !d9d_block_router_is_custom(a) && !d9d_block_router_is_custom(b);

    return alike || (a->score == b->score && a->groups == b->groups &&
                     a->top_groups == b->top_groups && a->group_max == b->group_max &&
                     a->scale == b->scale && a->expert_bias == b->expert_bias);
}

/* The only members of "d9d.router". */
static d9d_status members_check(const json_t *router, const char *where)
{
    static const char *const names[] = {"score", "groups", "top_groups", "scale", D9D_ROUTER_BIAS};
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)router, name, v)
    {
        bool known = false;

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            known = known || strcmp(names[i], name) == 0;
        if (!known)
            return D9D_FAIL(D9D_ECONFIG, "%s: d9d.router.%.64s is unknown", where, name);
    }
    return D9D_OK;
}

d9d_status d9di_family_router_read(const json_t *doc, const char *where, d9d_block_router *out)
{
    const json_t *mark = json_object_get(doc, "d9d");
    const d9di_hf_reader router = {d9di_hf_member(mark, "router"), where, true};
    const json_t *score = d9di_hf_member(router.doc, "score");
    const char *word = json_string_value(score);
    const d9d_block_router native = *out;

    if (router.doc == NULL)
        return D9D_OK;
    D9D_TRY(members_check(router.doc, where));
    if (score != NULL && (word == NULL || strcmp(word, "sigmoid") != 0))
        return d9di_hf_refuse(&router, "d9d.router.score", score);
    out->score = score != NULL ? D9D_SCORE_SIGMOID : D9D_SCORE_SOFTMAX;
    D9D_TRY(d9di_hf_i64(&router, "groups", 1, &out->groups));
    D9D_TRY(d9di_hf_i64(&router, "top_groups", 1, &out->top_groups));
    D9D_TRY(d9di_hf_f64(&router, router.doc, "scale", 1, &out->scale));
    D9D_TRY(d9di_hf_bool(&router, D9D_ROUTER_BIAS, &out->expert_bias));
    if (out->top_groups > out->groups)
        return D9D_FAIL(D9D_ECONFIG, "%s: d9d.router has the best %lld of %lld group%s of experts",
                        where, (long long)out->top_groups, (long long)out->groups,
                        D9D_PLURAL(out->groups));
    if (d9di_family_routers_equal(&native, out)) /* it says what is so without it */
        *out = native;
    return D9D_OK;
}

json_t *d9di_family_router_to_json(const d9d_block_router *r)
{
    json_t *mark = json_pack("{s:I, s:I, s:f, s:b}", "groups", (json_int_t)r->groups, "top_groups",
                             (json_int_t)r->top_groups, "scale", r->scale != 0 ? r->scale : 1,
                             D9D_ROUTER_BIAS, r->expert_bias);

    if (r->score == D9D_SCORE_SIGMOID)
        d9d_json_set(&mark, "score", json_string("sigmoid"));
    return mark;
}

void d9d_family_set_router(d9d_family_config *c, const d9d_block_router *job)
{
    d9d_family_dims *dims = (d9d_family_dims *)(uintptr_t)c->dims;
    const d9d_block_router file = dims->router;

    dims->router = *job;
    if (c->custom_router) { /* what determines the model comes from its file */
        dims->router.score = file.score;
        dims->router.groups = file.groups;
        dims->router.top_groups = file.top_groups;
        dims->router.group_max = file.group_max;
        dims->router.scale = file.scale;
        dims->router.expert_bias = file.expert_bias;
    }
    c->custom_router = !d9di_family_routers_equal(&c->native_router, &dims->router);
}

/* --- the loss of transformers ---------------------------------------------------------------- */

static bool is_of_router_loss(const d9d_family *f, const char *name)
{
    for (const d9d_hf_field *row = f->fields; row != NULL && row->name != NULL; row++)
        if (strcmp(row->name, name) == 0)
            return row->rule == D9D_HF_RULE_ROUTER_LOSS;
    return false;
}

d9d_status d9d_family_lacks_router_loss(const d9d_family_config *c, bool *out)
{
    const d9d_family_dims *dims = c->dims;
    const json_t *coefficient;
    json_t *doc;

    *out = false;
    if (c->head != D9D_HEAD_CAUSAL_LM || dims->router.aux_loss != 0 ||
        !is_of_router_loss(c->family, "output_router_logits"))
        return D9D_OK;
    D9D_TRY(d9d_json_parse(D9D_HF_CONFIG_NAME, c->document, strlen(c->document), &doc));
    coefficient = d9di_hf_member(doc, "router_aux_loss_coef");
    *out = json_is_true(d9di_hf_member(doc, "output_router_logits")) &&
           (coefficient == NULL || json_number_value(coefficient) != 0);
    json_decref(doc);
    return D9D_OK;
}
