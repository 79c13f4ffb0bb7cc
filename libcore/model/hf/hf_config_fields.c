/* hf_config_fields.c - typed members of a config.json.  See hf_config_fields.h. */
#include "model/hf/hf_config_fields.h"

#include <math.h>
#include <string.h>

const json_t *d9di_hf_member(const json_t *doc, const char *name)
{
    const json_t *v = name == NULL ? NULL : json_object_get(doc, name);

    return v == NULL || json_is_null(v) ? NULL : v;
}

static d9d_status fail_type(const d9di_hf_reader *r, const char *name, const json_t *v,
                            const char *wanted)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v, -1);

    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ECONFIG, "%s: %s: expected %s, got %.64s", r->where, name, wanted,
                      text.data);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_hf_i64(const d9di_hf_reader *r, const char *name, int64_t otherwise, int64_t *out)
{
    const json_t *v = d9di_hf_member(r->doc, name);

    if (v == NULL && otherwise == D9DI_HF_REQUIRED)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s is missing", r->where, name);
    if (v != NULL && (!json_is_integer(v) || json_integer_value(v) < 0))
        return fail_type(r, name, v, "an integer of at least 0");
    *out = v == NULL ? otherwise : (int64_t)json_integer_value(v);
    return D9D_OK;
}

d9d_status d9di_hf_f64(const d9di_hf_reader *r, const json_t *from, const char *name,
                       double otherwise, double *out)
{
    const json_t *v = d9di_hf_member(from, name);

    if (v != NULL && (!json_is_number(v) || !isfinite(json_number_value(v))))
        return fail_type(r, name, v, "a number");
    *out = v == NULL ? otherwise : json_number_value(v);
    return D9D_OK;
}

d9d_status d9di_hf_bool(const d9di_hf_reader *r, const char *name, bool *out)
{
    const json_t *v = d9di_hf_member(r->doc, name);

    if (v != NULL && !json_is_boolean(v))
        return fail_type(r, name, v, "true or false");
    *out = v != NULL && json_is_true(v);
    return D9D_OK;
}

bool d9di_hf_is_among(const char *const *names, const char *name)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

d9d_status d9di_hf_refuse(const d9di_hf_reader *r, const char *field, const json_t *v)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v, -1);

    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP, "%s: %s: %.64s is not supported", r->where, field, text.data);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_hf_model_type(const json_t *doc, const char *where, const char **out)
{
    const json_t *v = d9di_hf_member(doc, "model_type");

    if (v == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: model_type is missing", where);
    if (!json_is_string(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: model_type: must be a text", where);
    *out = json_string_value(v);
    return D9D_OK;
}
