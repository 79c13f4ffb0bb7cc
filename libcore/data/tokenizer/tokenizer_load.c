/* tokenizer_load.c - reads a tokenizer.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/tokenizer_parts.h"

#define MAX_FILE (UINT64_C(64) << 20)

/* --- added tokens -------------------------------------------------------------------- */

/* The id that HF assigns to the next added token: that of its text if it has one, otherwise the
 * next unused id. */
static uint32_t expected_id(const d9d_tokenizer *tok, const char *content, size_t len)
{
    uint32_t id = d9di_vocab_find(tok->model.vocab, content, len),
             next = tok->model.vocab->n_entries;
    size_t i;

    if (id != D9DI_NO_ID)
        return id;
    for (i = 0; i < tok->added.len; i++)
        if (tok->added.data[i].id >= next)
            next = tok->added.data[i].id + 1;
    return next;
}

static d9d_status check_added_id(const d9d_tokenizer *tok, const char *where, const char *content,
                                 size_t len, uint32_t id)
{
    const uint32_t expected = expected_id(tok, content, len);

    if (id != expected)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%.80s\" has the id %u, its place gives it %u", where,
                        content, id, expected);
    if (id < tok->model.vocab->n_tokens && tok->model.vocab->tokens[id].text &&
        d9di_vocab_find(tok->model.vocab, content, len) != id)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%.80s\" has the id %u, which is that of \"%.80s\"",
                        where, content, id, tok->model.vocab->tokens[id].text);
    return D9D_OK;
}

static d9d_status load_added_token(d9d_tokenizer *tok, const json_t *v, const char *where,
                                   d9di_normalizer_scratch *s)
{
    d9di_added_tokens_entry token;
    const char *content;
    bool normalized;
    char *copy;
    int64_t id;
    size_t len;

    if (!json_is_object(v))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object", where);
    D9D_TRY(d9di_tokenizer_component_check_keys(
        v, where, "id content single_word lstrip rstrip normalized special"));
    D9D_TRY(d9d_json_get_i64(v, where, "id", 0, D9DI_MAX_VOCAB - 1, &id));
    D9D_TRY(d9d_json_get_str(v, where, "content", &content));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "special", false, &token.special));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "normalized", !token.special, &normalized));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "lstrip", false, &token.lstrip));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "rstrip", false, &token.rstrip));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "single_word", false, &token.single_word));
    len = strlen(content);
    if (len == 0)
        return D9D_OK; /* HF skips it too */
    if (d9d_map_has(&tok->by_content, content, len))
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%.80s\" is given twice", where, content);
    token.id = (uint32_t)id;
    D9D_TRY(check_added_id(tok, where, content, len, token.id));

    /* The map stores the index as a pointer value. */
    D9D_TRY(d9d_map_put(&tok->by_content, content, len, (void *)(uintptr_t)(tok->added.len + 1)));
    if (normalized)
        D9D_TRY(d9di_normalizer_apply(tok->normalizer, s, content, len, &content, &len));
    copy = d9d_arena_alloc(&tok->arena, len + 1);
    if (!copy)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    memcpy(copy, content, len);
    D9D_TRY(D9D_VEC_PUSH(&tok->added,
                         ((struct d9di_tokenizer_added){copy, len, token.id, token.special})));
    return d9di_added_tokens_add(normalized ? &tok->normalized : &tok->raw, copy, len, token);
}

static d9d_status load_added(d9d_tokenizer *tok, const char *name, const json_t *list)
{
    d9di_normalizer_scratch s = {0};
    d9d_status st = D9D_OK;
    size_t i;

    if (!list || json_is_null(list))
        return D9D_OK;
    if (!json_is_array(list))
        return D9D_FAIL(D9D_EFORMAT, "%s: added_tokens: must be an array", name);
    D9D_TRY(d9di_split_pattern_matcher_create(&s.matcher));
    for (i = 0; i < json_array_size(list) && st == D9D_OK; i++) {
        char where[320];

        (void)d9d_num_format(where, sizeof(where), "%.255s: added_tokens[%zu]", name, i);
        st = load_added_token(tok, json_array_get(list, i), where, &s);
    }
    d9di_split_pattern_matcher_free(s.matcher);
    d9di_normalizer_scratch_release(&s);
    return st;
}

/* --- components ---------------------------------------------------------------------- */

/* Settings that are read elsewhere: d9d truncates and pads by its own options. */
static void note_ignored(d9d_tokenizer *tok, const json_t *root)
{
    static const char *const keys[] = {"truncation", "padding"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *v = json_object_get(root, keys[i]);

        if (v && !json_is_null(v))
            tok->ignored = tok->ignored ? "truncation and padding" : keys[i];
    }
}

static d9d_status load_components(d9d_tokenizer *tok, const char *name, const json_t *root)
{
    char where[320];

    if (!json_is_object(root))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object", name);
    D9D_TRY(d9di_tokenizer_component_check_keys(
        root, name,
        "version truncation padding added_tokens normalizer pre_tokenizer "
        "post_processor decoder model"));
    note_ignored(tok, root);
    (void)d9d_num_format(where, sizeof(where), "%.255s: normalizer", name);
    D9D_TRY(d9di_normalizer_parse(json_object_get(root, "normalizer"), where, &tok->normalizer));
    (void)d9d_num_format(where, sizeof(where), "%.255s: pre_tokenizer", name);
    D9D_TRY(d9di_pretok_parse(json_object_get(root, "pre_tokenizer"), where, &tok->pretok));
    (void)d9d_num_format(where, sizeof(where), "%.255s: model", name);
    D9D_TRY(d9di_tokenizer_model_init(json_object_get(root, "model"), where,
                                      !d9di_pretok_is_bytelevel(tok->pretok), &tok->model));
    (void)d9d_num_format(where, sizeof(where), "%.255s: decoder", name);
    D9D_TRY(d9di_tokenizer_decoder_parse(json_object_get(root, "decoder"), where, &tok->decoder));
    D9D_TRY(load_added(tok, name, json_object_get(root, "added_tokens")));
    D9D_TRY(d9di_tokenizer_index_decoded(tok, name));
    (void)d9d_num_format(where, sizeof(where), "%.255s: post_processor", name);
    return d9di_post_processor_parse(json_object_get(root, "post_processor"), where,
                                     tok->vocab_size, &tok->arena, &tok->post_processor);
}

d9d_status d9d_tokenizer_parse(const char *name, const char *json, size_t n, d9d_tokenizer **out)
{
    json_t *root = NULL;
    d9d_tokenizer *tok = calloc(1, sizeof(*tok));
    d9d_status st;

    if (!tok)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", name);
    tok->hash = d9d_hash_bytes(json, n);
    D9D_TRY_OR(st, d9d_json_parse(name, json, n, &root), out);
    D9D_TRY_OR(st, load_components(tok, name, root), out);
    *out = tok;
    tok = NULL;
out:
    json_decref(root);
    d9d_tokenizer_free(tok);
    return st;
}

d9d_status d9d_tokenizer_load(const char *path, d9d_tokenizer **out)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY(d9d_tokenizer_check(path));
    D9D_TRY(d9d_fs_read(path, MAX_FILE, &text));
    st = d9d_tokenizer_parse(path, text.data ? text.data : "", text.len, out);
    d9d_buf_release(&text);
    return st;
}

void d9d_tokenizer_free(d9d_tokenizer *tok)
{
    if (!tok)
        return;
    d9di_tokenizer_model_release(&tok->model);
    d9di_normalizer_free(tok->normalizer);
    d9di_pretok_free(tok->pretok);
    d9di_tokenizer_decoder_release(&tok->decoder);
    d9di_post_processor_release(&tok->post_processor);
    d9di_added_tokens_release(&tok->raw);
    d9di_added_tokens_release(&tok->normalized);
    D9D_VEC_RELEASE(&tok->added);
    free(tok->decoded);
    d9d_buf_release(&tok->decoded_bytes);
    free(tok->written);
    d9d_map_release(&tok->by_content);
    d9d_arena_release(&tok->arena);
    free(tok);
}

uint32_t d9d_tokenizer_vocab_size(const d9d_tokenizer *tok)
{
    return tok->vocab_size;
}

d9d_hash d9d_tokenizer_hash(const d9d_tokenizer *tok)
{
    return tok->hash;
}

const char *d9d_tokenizer_ignored(const d9d_tokenizer *tok)
{
    return tok->ignored;
}

bool d9d_tokenizer_find(const d9d_tokenizer *tok, const char *token, size_t len, uint32_t *out)
{
    const uintptr_t added = (uintptr_t)d9d_map_get(&tok->by_content, token, len);
    const uint32_t id =
        added ? tok->added.data[added - 1].id : d9di_vocab_find(tok->model.vocab, token, len);

    if (id == D9DI_NO_ID)
        return false;
    *out = id;
    return true;
}
