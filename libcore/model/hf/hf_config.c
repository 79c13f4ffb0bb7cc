/* hf_config.c - see d9d/model/hf/hf_config.h. */
#include "model/hf/hf_config_fields.h"

#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/ckpt/dir/checkpoint.h"

/* --- files -------------------------------------------------------------------------------- */

d9d_status d9d_hf_config_locate(const char *path, d9d_arena *a, const char **file,
                                const char **beside)
{
    const bool is_dir = d9d_fs_is_dir(path);
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const bool alone = !is_dir && strcmp(name, D9D_HF_CONFIG_NAME) != 0;

    *file = is_dir ? d9d_fs_join(a, path, D9D_HF_CONFIG_NAME) : d9d_arena_strdup(a, path);
    *beside = alone    ? NULL
              : is_dir ? d9d_arena_strdup(a, path)
              : slash == NULL
                  ? d9d_arena_strdup(a, ".")
                  : d9d_arena_strndup(a, path, slash == path ? 1 : (size_t)(slash - path));
    return *file == NULL || (*beside == NULL && !alone)
               ? D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path)
               : D9D_OK;
}

d9d_status d9d_hf_config_load(const char *path, json_t **out)
{
    d9d_arena a = {0};
    const char *file, *beside;
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_hf_config_locate(path, &a, &file, &beside), out);
    if (beside != NULL && !d9d_fs_exists(file))
        D9D_TRY_OR(st, d9d_checkpoint_check_folder(beside), out);
    D9D_TRY_OR(st, d9d_json_read(file, D9D_HF_CONFIG_MAX, &doc), out);
    if (!json_is_object(doc)) {
        st = D9D_FAIL(D9D_EFORMAT, "%s: must be an object", file);
        goto out;
    }
    if (beside != NULL && d9di_hf_member(doc, "model_type") == NULL)
        D9D_TRY_OR(st, d9d_checkpoint_check_folder(beside), out); /* a run has a config.json too */
    if (beside != NULL)
        D9D_TRY_OR(st, d9di_hf_config_quantization_beside(doc, beside), out);
    D9D_TRY_OR(st, d9di_hf_config_text_part(&doc, file), out);
    *out = json_incref(doc);
out:
    json_decref(doc);
    d9d_arena_release(&a);
    return st;
}

/* --- dtypes ---------------------------------------------------------------------------------- */

/* Names in the two generations of transformers. */
static const char *const dtype_fields[] = {"dtype", "torch_dtype"};

static bool is_floating(int t)
{
    return t == D9D_F32 || t == D9D_BF16 || t == D9D_F16 || t == D9D_F64 || t == D9D_F8_E4M3 ||
           t == D9D_F8_E5M2;
}

/* The dtype in one of the fields; -1: it has none. */
static d9d_status dtype_read(const json_t *doc, const char *where, const char *field, int *out)
{
    const json_t *v = d9di_hf_member(doc, field);
    const char *word = json_string_value(v);
    d9d_buf text = {0};
    d9d_status st;

    *out = word != NULL ? d9d_dtype_find(word) : -1;
    if (v == NULL || is_floating(*out))
        return D9D_OK;
    st = d9d_json_put(&text, v, -1);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ECONFIG, "%s: %s: %.64s is no floating-point type of weights", where,
                      field, text.data);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9d_hf_config_dtype(const json_t *doc, const char *where, d9d_dtype otherwise,
                               d9d_dtype *out)
{
    int new, old;

    D9D_TRY(dtype_read(doc, where, dtype_fields[0], &new));
    D9D_TRY(dtype_read(doc, where, dtype_fields[1], &old));
    if (new >= 0 && old >= 0 && new != old)
        return D9D_FAIL(D9D_ECONFIG, "%s: dtype is \"%s\" and torch_dtype is \"%s\"", where,
                        d9d_dtype_name((d9d_dtype) new), d9d_dtype_name((d9d_dtype)old));
    *out = new >= 0 ? (d9d_dtype) new : old >= 0 ? (d9d_dtype)old : otherwise;
    return D9D_OK;
}

d9d_status d9d_hf_config_set_dtype(json_t *doc, d9d_dtype dtype)
{
    const bool has_new = d9di_hf_member(doc, dtype_fields[0]) != NULL;
    const bool has[] = {has_new, !has_new || d9di_hf_member(doc, dtype_fields[1]) != NULL};
    int bad = 0;

    for (int i = 0; i < 2; i++)
        if (has[i])
            bad |= json_object_set_new(doc, dtype_fields[i], json_string(d9d_dtype_name(dtype)));
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

/* --- the attention mask ---------------------------------------------------------------------- */

static const char mask_field[] = "attention_mask";

bool d9d_hf_config_has_prefix_mask(const json_t *doc)
{
    const char *word = json_string_value(json_object_get(doc, mask_field));

    return word != NULL && strcmp(word, "prefix") == 0;
}

d9d_status d9d_hf_config_set_prefix_mask(json_t *doc, bool prefix)
{
    (void)json_object_del(doc, mask_field);
    if (prefix && json_object_set_new(doc, mask_field, json_string("prefix")) != 0)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    return D9D_OK;
}
