/* quantization.c - quantization_config of config.json.  See d9d/ckpt/quant/dequant.h. */
#include <string.h>
#include <strings.h>

#include "ckpt/quant/dequant_method.h"

static const d9di_dequant_method *const methods[] = {
    [D9D_QUANTIZATION_NONE] = NULL,
    [D9D_QUANTIZATION_FP8] = &d9di_dequant_fp8,
    [D9D_QUANTIZATION_MXFP4] = &d9di_dequant_mxfp4,
    [D9D_QUANTIZATION_PACKED] = &d9di_dequant_packed,
    [D9D_QUANTIZATION_PACKED_ZEROS] = &d9di_dequant_packed_zeros,
    [D9D_QUANTIZATION_BYTES] = &d9di_dequant_bytes,
    [D9D_QUANTIZATION_NVFP4] = &d9di_dequant_nvfp4,
    [D9D_QUANTIZATION_MXFP4_PACKED] = &d9di_dequant_mxfp4_packed,
    [D9D_QUANTIZATION_BNB4] = &d9di_dequant_bnb4,
    [D9D_QUANTIZATION_BNB8] = &d9di_dequant_bnb8,
    [D9D_QUANTIZATION_GPTQ] = &d9di_dequant_gptq,
    [D9D_QUANTIZATION_AWQ] = &d9di_dequant_awq,
    [D9D_QUANTIZATION_FBGEMM_FP8] = &d9di_dequant_fbgemm_fp8,
    [D9D_QUANTIZATION_MODELOPT_FP8] = &d9di_dequant_modelopt_fp8,
    [D9D_QUANTIZATION_MODELOPT_NVFP4] = &d9di_dequant_modelopt_nvfp4,
    [D9D_QUANTIZATION_MODELOPT_MIXED] = &d9di_dequant_modelopt_mixed,
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

/* --- names ------------------------------------------------------------------------------------ */

/* Is `name` a scale's name by this method, and are its values there? */
static bool has_values(const d9d_tensor_source *src, const char *name, const d9di_dequant_method *m)
{
    const char *scales = m->suffix[D9DI_DEQUANT_SCALES], *values = m->suffix[D9DI_DEQUANT_VALUES];
    const size_t n = strlen(name), k = strlen(scales);

    if (n <= k || strcmp(name + n - k, scales) != 0)
        return false;
    for (size_t i = 0; i < src->n; i++) {
        const char *other = src->at(src->self, i)->name;

        if (strncmp(other, name, n - k) == 0 && strcmp(other + n - k, values) == 0)
            return true;
    }
    return false;
}

/* Or those of a method that is configured like this one? */
static bool has_any_values(const d9d_tensor_source *src, const char *name,
                           const d9di_dequant_method *m)
{
    for (; m != NULL; m = m->or_else)
        if (has_values(src, name, m))
            return true;
    return false;
}

/* Names of methods, each once. */
typedef struct name_list {
    const char *a[N_METHODS];
    size_t n;
} name_list;

static void names_add(name_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->a[i], name) == 0)
            return;
    l->a[l->n++] = name;
}

/* "a", "b" and "c", with these quotes and this word. */
static d9d_status names_put(const name_list *l, const char *quote, const char *word, d9d_buf *out)
{
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0 && i + 1 < l->n)
            D9D_TRY(d9d_buf_printf(out, ", "));
        else if (i > 0)
            D9D_TRY(d9d_buf_printf(out, " %s ", word));
        D9D_TRY(d9d_buf_printf(out, "%s%s%s", quote, l->a[i], quote));
    }
    return D9D_OK;
}

d9d_status d9d_quantization_guess(const d9d_tensor_source *src, const char **scales, d9d_buf *names)
{
    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;
        name_list l = {.n = 0};

        for (int m = 1; m < N_METHODS; m++)
            if (has_any_values(src, name, methods[m]))
                names_add(&l, methods[m]->name);
        if (l.n > 0) {
            *scales = name;
            return names_put(&l, "", "or", names);
        }
    }
    *scales = NULL;
    return D9D_OK;
}

/* --- the configuration ------------------------------------------------------------------------ */

static bool is_named(const json_t *method, const char *name)
{
    return json_is_string(method) && strcmp(json_string_value(method), name) == 0;
}

static d9d_status fail_method(const json_t *method, const char *where)
{
    d9d_buf text = {0}, list = {0};
    name_list l = {.n = 0};
    d9d_status st = method != NULL ? d9d_json_put(&text, method, -1)
                                   : d9d_buf_printf(&text, "a missing quant_method");

    for (int m = 1; m < N_METHODS; m++)
        names_add(&l, methods[m]->name);
    if (st == D9D_OK)
        st = names_put(&l, "\"", "and", &list);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s.quant_method: %.64s is not supported; %s are "
                      "decoded when they are read, of others take the unquantised weights",
                      where, text.data, list.data);
    d9d_buf_release(&text);
    d9d_buf_release(&list);
    return st;
}

d9d_status d9di_dequant_fail_member(const char *where, const char *name, const json_t *v,
                                    const char *only)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v != NULL ? v : json_null(), -1);

    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s.%.64s: %.64s is not decoded, only %s; of "
                      "others take the unquantised weights",
                      where, name, text.data, only);
    d9d_buf_release(&text);
    return st;
}

static bool is_same(const json_t *a, const json_t *b)
{
    return json_is_string(a) && json_is_string(b)
               ? strcasecmp(json_string_value(a), json_string_value(b)) == 0
               : json_equal(a, b) != 0;
}

d9d_status d9di_dequant_is_in(const char *where, const char *list, const json_t *v, bool *out)
{
    json_t *all;

    D9D_TRY(d9d_json_parse(where, list, strlen(list), &all));
    *out = v == NULL;
    for (size_t i = 0; i < json_array_size(all); i++)
        *out = *out || is_same(json_array_get(all, i), v);
    json_decref(all);
    return D9D_OK;
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
                            "%s.%.64s: the decoder of %s does not know "
                            "this field",
                            where, name, m->name);
    }
    return D9D_OK;
}

/* Of several with one name, the one that says it is this; if none does, the first explains what it
 * needs.  Older files have no quant_method: what else they say is enough. */
static d9d_quantization_method method_of(const json_t *o)
{
    const json_t *name = json_object_get(o, "quant_method");
    int first = D9D_QUANTIZATION_NONE;

    for (int m = N_METHODS - 1; m > 0; m--) {
        if (name != NULL && !is_named(name, methods[m]->name))
            continue;
        if (methods[m]->is_of != NULL && methods[m]->is_of(o))
            return (d9d_quantization_method)m;
        if (name != NULL)
            first = m;
    }
    return (d9d_quantization_method)first;
}

/* The members, of which messages say that they are of `where`, a file and an object in it. */
static d9d_status members_read(const json_t *o, const char *where, d9d_quantization *out)
{
    d9d_quantization q = {.method = method_of(o)};

    if (q.method == D9D_QUANTIZATION_NONE)
        return fail_method(json_object_get(o, "quant_method"), where);
    D9D_TRY(check_members(methods[q.method], o, where));
    if (methods[q.method]->configure != NULL)
        D9D_TRY(methods[q.method]->configure(o, where, &q));
    *out = q;
    return D9D_OK;
}

/* Members of Model Optimizer's file beside config.json, whose path is `where`. */
static d9d_status beside_read(const json_t *members, const char *where, d9d_quantization *out)
{
    const char *slash = strrchr(where, '/');
    json_t *o = json_copy((json_t *)(uintptr_t)members);
    d9d_buf label = {0};
    d9d_status st = d9d_buf_printf(&label, "%.*s" D9D_QUANTIZATION_BESIDE ": quantization",
                                   slash != NULL ? (int)(slash + 1 - where) : 0, where);

    if (st == D9D_OK && json_object_set_new(o, "quant_method", json_string("modelopt")) != 0)
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    if (st == D9D_OK)
        st = members_read(o, label.data, out);
    d9d_buf_release(&label);
    json_decref(o);
    return st;
}

d9d_status d9d_quantization_read(const json_t *config, const char *where, d9d_quantization *out)
{
    const json_t *o = json_object_get(config, D9D_QUANTIZATION_FIELD),
                 *beside = json_object_get(o, "quantization");
    d9d_buf label = {0};
    d9d_status st;

    *out = (d9d_quantization){.method = D9D_QUANTIZATION_NONE};
    if (o == NULL || json_is_null(o))
        return D9D_OK;
    if (!json_is_object(o))
        return D9D_FAIL(D9D_ECONFIG, "%s: " D9D_QUANTIZATION_FIELD ": must be an object", where);
    if (json_is_object(beside))
        return beside_read(beside, where, out);
    st = d9d_buf_printf(&label, "%s: " D9D_QUANTIZATION_FIELD, where);
    if (st == D9D_OK)
        st = members_read(o, label.data, out);
    d9d_buf_release(&label);
    return st;
}
