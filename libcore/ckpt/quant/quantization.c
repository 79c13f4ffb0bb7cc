/* quantization.c - quantization_config of config.json.  See d9d/ckpt/quant/dequant.h. */
#include <string.h>

#include "ckpt/quant/dequant_method.h"

static const d9di_dequant_method *const methods[] = {
    [D9D_QUANTIZATION_NONE] = NULL,
    [D9D_QUANTIZATION_FP8] = &d9di_dequant_fp8,
    [D9D_QUANTIZATION_MXFP4] = &d9di_dequant_mxfp4,
    [D9D_QUANTIZATION_PACKED] = &d9di_dequant_packed,
};
enum { N_METHODS = sizeof(methods) / sizeof(methods[0]) };

const d9di_dequant_method *d9di_dequant_method_of(d9d_quantization_method m)
{
    return methods[m];
}

const char *d9d_quantization_name(d9d_quantization_method method)
{
    return methods[method] != NULL ? methods[method]->name : "none";
}

/* Does the source have the values of these scales? */
static bool has_values(const d9d_tensor_source *src, const char *scales,
                       const d9di_dequant_method *m)
{
    const size_t n = strlen(scales) - strlen(m->scales);

    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;

        if (strncmp(name, scales, n) == 0 && strcmp(name + n, m->values) == 0)
            return true;
    }
    return false;
}

d9d_quantization_method d9d_quantization_guess(const d9d_tensor_source *src, const char **scales)
{
    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;
        const size_t n = strlen(name);

        for (int m = 1; m < N_METHODS; m++) {
            const size_t k = strlen(methods[m]->scales);

            if (n > k && strcmp(name + n - k, methods[m]->scales) == 0 &&
                has_values(src, name, methods[m])) {
                *scales = name;
                return (d9d_quantization_method)m;
            }
        }
    }
    return D9D_QUANTIZATION_NONE;
}

static d9d_status fail_method(const json_t *method, const char *where)
{
    d9d_buf text = {0}, list = {0};
    d9d_status st = method != NULL ? d9d_json_put(&text, method, -1)
                                   : d9d_buf_printf(&text, "a missing quant_method");

    for (int m = 1; m < N_METHODS && st == D9D_OK; m++)
        st = d9d_buf_printf(&list, "%s\"%s\"",
                            m == 1              ? ""
                            : m + 1 < N_METHODS ? ", "
                                                : " and ",
                            methods[m]->name);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: " D9D_QUANTIZATION_FIELD ".quant_method: %.64s is not supported; %s are "
                      "decoded when they are read, of others take the unquantised weights",
                      where, text.data, list.data);
    d9d_buf_release(&text);
    d9d_buf_release(&list);
    return st;
}

static bool is_among(const char *const *names, const char *name)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

static bool is_nothing(const json_t *v)
{
    return json_is_null(v) || (json_is_object(v) && json_object_size(v) == 0);
}

/* A member that nobody reads could change what the numbers mean. */
static d9d_status check_members(const d9di_dequant_method *m, const json_t *o, const char *where)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)o, name, v)
    {
        if (!is_nothing(v) && !is_among(m->members, name))
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: " D9D_QUANTIZATION_FIELD ".%.64s: the decoder of %s does not know "
                            "this field",
                            where, name, m->name);
    }
    return D9D_OK;
}

d9d_status d9d_quantization_read(const json_t *config, const char *where, d9d_quantization *out)
{
    const json_t *o = json_object_get(config, D9D_QUANTIZATION_FIELD);
    const json_t *method = json_object_get(o, "quant_method");
    d9d_quantization q = {D9D_QUANTIZATION_NONE, {0, 0}};

    *out = q;
    if (o == NULL || json_is_null(o))
        return D9D_OK;
    if (!json_is_object(o))
        return D9D_FAIL(D9D_ECONFIG, "%s: " D9D_QUANTIZATION_FIELD ": must be an object", where);
    for (int m = 1; m < N_METHODS && json_is_string(method); m++)
        if (strcmp(json_string_value(method), methods[m]->name) == 0)
            q.method = (d9d_quantization_method)m;
    if (q.method == D9D_QUANTIZATION_NONE)
        return fail_method(method, where);
    D9D_TRY(check_members(methods[q.method], o, where));
    if (methods[q.method]->configure != NULL)
        D9D_TRY(methods[q.method]->configure(o, where, &q));
    *out = q;
    return D9D_OK;
}
