/* hf_sentence_modules.c - see d9d/model/hf/sentence_modules.h. */
#include "d9d/model/hf/sentence_modules.h"

#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/model/hf/hf_config.h"

/* Names of a pooling: as a member that is true, and as the value of pooling_mode. */
static const struct mode {
    const char *member, *word;
    d9d_pooling pooling; /* NONE: it is not computed */
} modes[] = {
    {"pooling_mode_cls_token", "cls", D9D_POOLING_FIRST},
    {"pooling_mode_mean_tokens", "mean", D9D_POOLING_MEAN},
    {"pooling_mode_lasttoken", "lasttoken", D9D_POOLING_LAST},
    {"pooling_mode_max_tokens", "max", D9D_POOLING_NONE},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", D9D_POOLING_NONE},
    {"pooling_mode_weightedmean_tokens", "weightedmean", D9D_POOLING_NONE},
};
enum { N_MODES = sizeof(modes) / sizeof(modes[0]) };

/* Does the document choose mode i? */
static bool is_chosen(const json_t *doc, size_t i)
{
    const json_t *word = json_object_get(doc, "pooling_mode");
    bool any = json_is_true(json_object_get(doc, modes[i].member));

    if (json_is_string(word))
        any |= strcmp(json_string_value(word), modes[i].word) == 0;
    for (size_t k = 0; k < json_array_size(word); k++) {
        const char *one = json_string_value(json_array_get(word, k));

        any |= one != NULL && strcmp(one, modes[i].word) == 0;
    }
    return any;
}

/* One of the modes that are computed, alone: several are concatenated. */
static d9d_status pooling_find(const json_t *doc, const char *file, d9d_pooling *out)
{
    const struct mode *first = NULL;

    for (size_t i = 0; i < N_MODES; i++) {
        if (!is_chosen(doc, i))
            continue;
        if (first != NULL)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s: %s and %s: one pooling is computed, not several side by side",
                            file, first->member, modes[i].member);
        first = &modes[i];
    }
    if (first == NULL || first->pooling == D9D_POOLING_NONE)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: %s%s is not computed, only pooling_mode_cls_token, "
                        "pooling_mode_mean_tokens and pooling_mode_lasttoken",
                        file, first != NULL ? first->member : "its pooling",
                        first != NULL ? "" : ", which is none of those known,");
    *out = first->pooling;
    return D9D_OK;
}

static d9d_status pooling_read(const char *dir, const char *path, d9d_arena *a,
                               d9d_hf_sentence_modules *out)
{
    const char *file = d9d_arena_printf(a, "%s/%s/%s", dir, path, D9D_HF_CONFIG_NAME);
    json_t *doc;
    d9d_status st;

    if (file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    D9D_TRY(d9d_json_read(file, D9D_HF_CONFIG_MAX, &doc));
    st = pooling_find(doc, file, &out->pooling);
    json_decref(doc);
    out->pooling_file = file;
    return st;
}

/* Beyond "sentence_transformers.models." or a newer path of the package. */
static const char *last_word(const char *type)
{
    const char *dot = strrchr(type, '.');

    return dot != NULL ? dot + 1 : type;
}

static d9d_status module_read(const json_t *module, size_t i, const char *dir, d9d_arena *a,
                              d9d_hf_sentence_modules *out)
{
    const char *type = json_string_value(json_object_get(module, "type")),
               *path = json_string_value(json_object_get(module, "path"));

    if (type == NULL || path == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: module %zu needs a \"type\" and a \"path\"", out->file,
                        i);
    if (strstr(path, "..") != NULL || path[0] == '/')
        return D9D_FAIL(D9D_EFORMAT, "%s: module %zu: %.64s is not a path in the folder", out->file,
                        i, path);
    if (strcmp(last_word(type), "Transformer") == 0)
        return D9D_OK;
    if (strcmp(last_word(type), "Pooling") == 0)
        return pooling_read(dir, path, a, out);
    if (strcmp(last_word(type), "Normalize") == 0) {
        out->normalize = true;
        return D9D_OK;
    }
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: module %zu is a %.64s, and vectors are computed by Transformer, Pooling "
                    "and Normalize alone",
                    out->file, i, last_word(type));
}

d9d_status d9d_hf_sentence_modules_read(const char *dir, d9d_arena *a, d9d_hf_sentence_modules *out)
{
    d9d_hf_sentence_modules m = {.file = d9d_fs_join(a, dir, "modules.json")};
    json_t *doc = NULL;
    d9d_status st = D9D_OK;

    if (m.file == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    *out = (d9d_hf_sentence_modules){.file = NULL};
    if (!d9d_fs_exists(m.file))
        return D9D_OK;
    D9D_TRY(d9d_json_read(m.file, D9D_HF_CONFIG_MAX, &doc));
    if (!json_is_array(doc))
        st = D9D_FAIL(D9D_EFORMAT, "%s: must be a list of modules", m.file);
    for (size_t i = 0; i < json_array_size(doc) && st == D9D_OK; i++)
        st = module_read(json_array_get(doc, i), i, dir, a, &m);
    json_decref(doc);
    if (st == D9D_OK)
        *out = m;
    return st;
}
