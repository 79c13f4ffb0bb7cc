/* tokenizer_config.c - what tokenizer_config.json says of special tokens, compared with what the
 * tokenizer does. */
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/data/tokenizer/tokenizer.h"

enum { MAX_CONFIG = 64 << 20 };

/* A switch of tokenizer_config.json, its token, and where that stands. */
static const struct {
    const char *add, *token, *where;
    bool last;
} switches[] = {{"add_bos_token", "bos_token", "before", false},
                {"add_eos_token", "eos_token", "behind", true}};

/* The text of a token, by itself or as an object; NULL: none. */
static const char *token_of(const json_t *config, const char *name)
{
    const json_t *v = json_object_get(config, name);

    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

/* Is the id the first or the last of what stands around a text? */
static d9d_status stands_there(const d9d_tokenizer *tok, uint32_t id, bool last, bool *out)
{
    const uint32_t text = UINT32_MAX; /* no token's */
    const d9d_token_ids one = {.data = (uint32_t *)(uintptr_t)&text, .len = 1, .cap = 1};
    d9d_token_ids ids = {0};
    d9d_status st = d9d_tokenizer_add_special(tok, &one, NULL, &ids);

    *out = st == D9D_OK && ids.len > 0 && ids.data[last ? ids.len - 1 : 0] == id;
    D9D_VEC_RELEASE(&ids);
    return st;
}

static d9d_status explain(const d9d_tokenizer *tok, const json_t *config, const char *file,
                          d9d_buf *out)
{
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        const json_t *said = json_object_get(config, switches[i].add);
        const char *token = token_of(config, switches[i].token);
        uint32_t id;
        bool there;

        if (!json_is_boolean(said) || token == NULL ||
            !d9d_tokenizer_find(tok, token, strlen(token), &id))
            continue;
        D9D_TRY(stands_there(tok, id, switches[i].last, &there));
        if (there == json_is_true(said))
            continue;
        return d9d_buf_printf(
            out,
            "%s: %s is %s, and the post_processor of tokenizer.json puts %s\"%s\" "
            "%s a text; it counts, as in transformers 5",
            file, switches[i].add, there ? "false" : "true", there ? "" : "no ", token,
            switches[i].where);
    }
    return D9D_OK;
}

d9d_status d9d_tokenizer_explain_config(const d9d_tokenizer *tok, const char *path, d9d_buf *out)
{
    const char *slash = strrchr(path, '/');
    d9d_arena a = {0};
    const char *dir = slash != NULL ? d9d_arena_strndup(&a, path, (size_t)(slash - path)) : ".";
    const char *file = dir != NULL ? d9d_fs_join(&a, dir, "tokenizer_config.json") : NULL;
    json_t *config = NULL;
    d9d_status st = D9D_OK;

    if (file == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
        goto out;
    }
    if (!d9d_fs_exists(file))
        goto out;
    D9D_TRY_OR(st, d9d_json_read(file, MAX_CONFIG, &config), out);
    st = explain(tok, config, file, out);
out:
    json_decref(config);
    d9d_arena_release(&a);
    return st;
}
