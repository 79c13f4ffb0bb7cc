/* model_aux_files.c - see engine/model_aux_files.h. */
#include "engine/model_aux_files.h"

#include <string.h>

#include "d9d/base/fs.h"

#define MAX_FILE (UINT64_C(1) << 20)

/* The folders of the weights and of the provider's hf_config; NULL if there is none. */
enum { FOLDERS = 2 };

static d9d_status list_folders(const d9di_model_aux_files_places *c, d9d_arena *a,
                               const char *out[FOLDERS])
{
    const d9d_model_section *head = c->provider->value;
    const char *config = head->hf_config;
    const char *slash = config != NULL ? strrchr(config, '/') : NULL;

    out[0] = c->source;
    out[1] = config != NULL ? "." : NULL;
    if (config != NULL && d9d_fs_is_dir(config))
        out[1] = config;
    else if (slash != NULL &&
             (out[1] = d9d_arena_strndup(a, config, (size_t)(slash - config))) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its folder", config);
    return D9D_OK;
}

/* *out is NULL if the file does not exist. */
static d9d_status find_file(const char *folder, const char *name, d9d_arena *a, const char **out)
{
    *out = NULL;
    if (folder == NULL)
        return D9D_OK;
    *out = d9d_fs_join(a, folder, name);
    if (*out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its path", name);
    if (!d9d_fs_exists(*out))
        *out = NULL;
    return D9D_OK;
}

d9d_status d9di_model_aux_files_find(const d9di_model_aux_files_places *c, const char *name,
                                     d9d_arena *a, const char **out)
{
    const char *in[FOLDERS];

    D9D_TRY(list_folders(c, a, in));
    *out = NULL;
    for (int i = 0; i < FOLDERS && *out == NULL; i++)
        D9D_TRY(find_file(in[i], name, a, out));
    return D9D_OK;
}

static d9d_status read_id(const char *path, const json_t *v, d9d_token_ids *out)
{
    const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

    if (id < 0 || id > INT32_MAX)
        return D9D_FAIL(D9D_EFORMAT, "%s: eos_token_id: must be a token's number, or several",
                        path);
    return D9D_VEC_PUSH(out, (uint32_t)id);
}

static d9d_status read_ids(const char *path, const json_t *v, d9d_token_ids *out)
{
    if (!json_is_array(v))
        return read_id(path, v, out);
    for (size_t i = 0; i < json_array_size(v); i++)
        D9D_TRY(read_id(path, json_array_get(v, i), out));
    return D9D_OK;
}

static d9d_status read_eos_file(const char *path, d9d_token_ids *out)
{
    d9d_buf text = {0};
    json_t *doc = NULL;
    const json_t *v;
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_read(path, MAX_FILE, &text), out);
    D9D_TRY_OR(st, d9d_json_parse(path, text.data != NULL ? text.data : "", text.len, &doc), out);
    v = json_object_get(doc, "eos_token_id");
    if (v == NULL) /* of a multimodal model */
        v = json_object_get(json_object_get(doc, "text_config"), "eos_token_id");
    if (v != NULL && !json_is_null(v))
        st = read_ids(path, v, out);
out:
    json_decref(doc);
    d9d_buf_release(&text);
    return st;
}

static d9d_status read_eos_folder(const char *folder, d9d_arena *a, d9d_token_ids *out)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    const size_t before = out->len;
    const char *path;

    for (int i = 0; i < 2 && out->len == before; i++) {
        D9D_TRY(find_file(folder, names[i], a, &path));
        if (path != NULL)
            D9D_TRY(read_eos_file(path, out));
    }
    return D9D_OK;
}

d9d_status d9di_model_aux_files_read_eos(const d9di_model_aux_files_places *c, d9d_token_ids *out)
{
    const size_t before = out->len;
    const char *in[FOLDERS];
    d9d_arena a = {0};
    d9d_status st = list_folders(c, &a, in);

    for (int i = 0; i < FOLDERS && st == D9D_OK && out->len == before; i++)
        st = read_eos_folder(in[i], &a, out);
    d9d_arena_release(&a);
    return st;
}
