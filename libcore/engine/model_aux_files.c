/* model_aux_files.c - see engine/model_aux_files.h. */
#include "engine/model_aux_files.h"

#include <string.h>

#include "d9d/base/fs.h"

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

d9d_status d9di_model_aux_files_find_any(const d9di_model_aux_files_places *c,
                                         const char *const *names, d9d_arena *a, const char **out)
{
    const char *in[FOLDERS];

    D9D_TRY(list_folders(c, a, in));
    *out = NULL;
    for (int i = 0; i < FOLDERS && *out == NULL; i++)
        for (int k = 0; names[k] != NULL && *out == NULL; k++)
            D9D_TRY(find_file(in[i], names[k], a, out));
    return D9D_OK;
}

d9d_status d9di_model_aux_files_find(const d9di_model_aux_files_places *c, const char *name,
                                     d9d_arena *a, const char **out)
{
    return d9di_model_aux_files_find_any(c, (const char *const[]){name, NULL}, a, out);
}
