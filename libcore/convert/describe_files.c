/* describe_files.c - tokenizer and chat template of a model folder.  See describe_parts.h. */
#include <string.h>

#include "convert/describe_parts.h"
#include "d9d/base/fs.h"
#include "d9d/data/jinja/jinja.h"
#include "d9d/data/tokenizer/tokenizer.h"

enum { MAX_FILE = 64 << 20 };

/* {"file": name, "readable": ..., "message": ...}, by a status and its sentence. */
static json_t *file_to_json(const char *name, d9d_status st)
{
    return json_pack("{s:o, s:b, s:o}", "file", d9d_json_str(name), "readable", st == D9D_OK,
                     "message", st == D9D_OK ? json_null() : d9d_json_str(d9d_err_message()));
}

/* --- tokenizer ----------------------------------------------------------------------- */

/* What it puts around a text: "<s> $A"; null where HF would fail. */
static void tokenizer_facts_add(const d9d_tokenizer *tok, json_t **out)
{
    d9d_buf text = {0};
    const bool usable = d9d_tokenizer_print_special(tok, false, &text) == D9D_OK;

    d9d_json_set(out, "vocab_size", json_integer(d9d_tokenizer_vocab_size(tok)));
    d9d_json_set(out, "special_tokens", d9d_json_str(usable ? text.data : NULL));
    d9d_buf_release(&text);
}

/* Where tokenizer_config.json says otherwise, a note.  What it cannot be read for is said of the
 * chat template. */
static void config_note_add(const d9d_tokenizer *tok, const char *path, json_t *notes)
{
    d9d_buf text = {0};

    if (d9d_tokenizer_explain_config(tok, path, &text) == D9D_OK && text.len > 0)
        d9d_json_add(&notes, d9d_json_str(text.data));
    d9d_buf_release(&text);
}

static json_t *tokenizer_to_json(const char *dir, d9d_arena *a, json_t *notes)
{
    static const char *const foreign[] = {"tokenizer.model", "tekken.json", "vocab.json", NULL};
    const char *path = d9d_fs_join(a, dir, "tokenizer.json");
    d9d_tokenizer *tok = NULL;
    const bool there = path != NULL && d9d_fs_exists(path);
    d9d_status st;
    json_t *out;

    for (const char *const *f = foreign; !there && *f != NULL; f++) {
        const char *other = d9d_fs_join(a, dir, *f);

        if (other == NULL || !d9d_fs_exists(other))
            continue;
        st = d9d_tokenizer_check(path);
        return file_to_json(
            *f, st == D9D_OK ? D9D_FAIL(D9D_ENOTSUP, "%s: tokenizer.json is read", other) : st);
    }
    if (!there)
        return json_null();
    st = d9d_tokenizer_load(path, &tok);
    out = file_to_json("tokenizer.json", st);
    if (st == D9D_OK) {
        tokenizer_facts_add(tok, &out);
        config_note_add(tok, path, notes);
    }
    d9d_tokenizer_free(tok);
    return out;
}

/* --- chat template ------------------------------------------------------------------- */

/* The text of a configuration's "chat_template": a string, or the default of a list; NULL: none. */
static const json_t *template_member(const json_t *config)
{
    const json_t *member = json_object_get(config, "chat_template");

    for (size_t i = 0; json_is_array(member) && i < json_array_size(member); i++) {
        const json_t *one = json_array_get(member, i);
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(one, "template");
    }
    return json_is_string(member) ? member : NULL;
}

static json_t *compile_to_json(const char *name, const char *text, size_t n, const char *where,
                               d9d_arena *a)
{
    const d9d_jinja_template *t;

    return file_to_json(name, d9d_jinja_compile(text, n, where, a, &t));
}

static json_t *file_template(const char *path, d9d_arena *a)
{
    d9d_buf text = {0};
    d9d_status st = d9d_fs_read(path, MAX_FILE, &text);
    json_t *out = st == D9D_OK
                      ? compile_to_json("chat_template.jinja", text.data, text.len, path, a)
                      : file_to_json("chat_template.jinja", st);

    d9d_buf_release(&text);
    return out;
}

static json_t *config_template(const char *path, d9d_arena *a)
{
    json_t *config = NULL, *out = json_null();
    d9d_status st = d9d_json_read(path, MAX_FILE, &config);
    const json_t *text = st == D9D_OK ? template_member(config) : NULL;

    if (st != D9D_OK)
        out = file_to_json("tokenizer_config.json", st);
    else if (text != NULL)
        out = compile_to_json("tokenizer_config.json", json_string_value(text),
                              json_string_length(text), path, a);
    json_decref(config);
    return out;
}

static json_t *template_to_json(const char *dir, d9d_arena *a)
{
    const char *file = d9d_fs_join(a, dir, "chat_template.jinja");
    const char *config = d9d_fs_join(a, dir, "tokenizer_config.json");

    if (file != NULL && d9d_fs_exists(file))
        return file_template(file, a);
    return config != NULL && d9d_fs_exists(config) ? config_template(config, a) : json_null();
}

d9d_status d9di_describe_text_files(const char *dir, json_t *out)
{
    d9d_arena a = {0};
    json_t *notes = json_object_get(out, "notes"); /* which is there */
    int bad = json_object_set_new(out, "tokenizer",
                                  dir != NULL ? tokenizer_to_json(dir, &a, notes) : json_null());

    bad |= json_object_set_new(out, "chat_template",
                               dir != NULL ? template_to_json(dir, &a) : json_null());
    d9d_arena_release(&a);
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "description: out of memory");
}
