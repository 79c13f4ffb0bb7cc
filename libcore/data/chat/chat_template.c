/* chat_template.c - see chat_template.h. */
#include "data/chat/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"

#define MAX_FILE (UINT64_C(64) << 20) /* a configuration has all added tokens */

/* Where things are. */
struct places {
    const char *template;  /* a file of Jinja; NULL: a member of `config` */
    const char *tool_use;  /* a file of Jinja; NULL: none */
    const char *config;    /* JSON with "chat_template" */
    const char *tokens[2]; /* JSON with special tokens; those of the later file count; NULL: none */
};

/* --- finding ---------------------------------------------------------------------------------- */

/* The folder of a file. */
static const char *folder_of(d9d_arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? d9d_arena_strndup(a, path, (size_t)(slash - path) + 1) : "./";
}

/* *out NULL: there is no such file. */
static d9d_status find_file(d9d_arena *a, const char *dir, const char *name, const char **out)
{
    const char *path = strcmp(dir, "./") == 0 ? name : d9d_fs_join(a, dir, name);

    if (path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    *out = d9d_fs_exists(path) ? path : NULL;
    return D9D_OK;
}

static d9d_status find_in(d9d_arena *a, const char *dir, struct places *p)
{
    D9D_TRY(find_file(a, dir, "chat_template.jinja", &p->template));
    if (p->template != NULL)
        return find_file(a, dir, "additional_chat_templates/tool_use.jinja", &p->tool_use);
    D9D_TRY(find_file(a, dir, "tokenizer_config.json", &p->config));
    return p->config != NULL
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "%s: has no chat_template.jinja and no tokenizer_config.json; give the "
                          "file of a chat template",
                          dir);
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

static d9d_status find_places(const d9d_chat_opts *opts, d9d_arena *a, struct places *p)
{
    const char *given = opts->chat_template, *beside;

    *p = (struct places){0};
    if (given == NULL)
        D9D_TRY(find_in(a, folder_of(a, opts->tokenizer), p));
    else if (d9d_fs_is_dir(given))
        D9D_TRY(find_in(a, given, p));
    else if (ends_with(given, ".json"))
        p->config = given;
    else
        p->template = given;
    beside = opts->tokenizer != NULL ? opts->tokenizer : p->template;
    if (beside == NULL)
        beside = p->config;
    D9D_TRY(find_file(a, folder_of(a, beside), "special_tokens_map.json", &p->tokens[0]));
    return find_file(a, folder_of(a, beside), "tokenizer_config.json", &p->tokens[1]);
}

/* --- the template ----------------------------------------------------------------------------- */

static d9d_status compile(d9di_chat_template *t, const char *where, const char *text, size_t n,
                          const d9d_jinja_template **out, d9d_hash *hash)
{
    *hash = d9d_hash_bytes(n > 0 ? text : "", n);
    return d9d_jinja_compile(n > 0 ? text : "", n, where, &t->arena, out);
}

/* Compiles the template that renders chats without tools, and keeps its text. */
static d9d_status set_default(d9di_chat_template *t, const char *where, const char *text, size_t n)
{
    t->where = where;
    t->text = d9d_arena_strndup(&t->arena, n > 0 ? text : "", n);
    t->n = n;
    if (where == NULL || t->text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a chat template of %zu bytes", n);
    return compile(t, where, t->text, n, &t->template, &t->text_hash);
}

static d9d_status compile_files(d9di_chat_template *t, const struct places *p)
{
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_read(p->template, MAX_FILE, &text), out);
    D9D_TRY_OR(st, set_default(t, d9d_arena_strdup(&t->arena, p->template), text.data, text.len),
               out);
    d9d_buf_release(&text);
    if (p->tool_use == NULL)
        goto out;
    D9D_TRY_OR(st, d9d_fs_read(p->tool_use, MAX_FILE, &text), out);
    st = compile(t, p->tool_use, text.data, text.len, &t->tool_use, &t->tool_use_hash);
out:
    d9d_buf_release(&text);
    return st;
}

/* The template of a list of {"name", "template"}; NULL: it has none of that name. */
static const json_t *find_named(const json_t *list, const char *want)
{
    const json_t *one;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name != NULL && strcmp(name, want) == 0)
            return json_object_get(one, "template");
    }
    return NULL;
}

static d9d_status compile_member(d9di_chat_template *t, const json_t *config, const char *path)
{
    const json_t *member = json_object_get(config, "chat_template");
    const json_t *tool_use = find_named(member, "tool_use");
    const char *where = d9d_arena_printf(&t->arena, "%s: chat_template", path);
    const char *schema = json_string_value(json_object_get(config, "schema"));

    if (schema != NULL && strncmp(schema, "d9d.chat.", 9) == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: %s is not read any more; a chat template is Jinja, such as "
                        "examples/chat/qwen3.jinja",
                        path, schema);
    if (json_is_array(member))
        member = find_named(member, "default");
    if (!json_is_string(member))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: has no \"chat_template\"; give the file of a chat template", path);
    D9D_TRY(set_default(t, where, json_string_value(member), json_string_length(member)));
    return json_is_string(tool_use)
               ? compile(t, where, json_string_value(tool_use), json_string_length(tool_use),
                         &t->tool_use, &t->tool_use_hash)
               : D9D_OK;
}

static d9d_status load_template(d9di_chat_template *t, const struct places *p)
{
    json_t *config = NULL;
    d9d_status st;

    if (p->template != NULL)
        return compile_files(t, p);
    D9D_TRY(d9d_json_read(p->config, MAX_FILE, &config));
    st = compile_member(t, config, p->config);
    json_decref(config);
    return st;
}

/* --- variables -------------------------------------------------------------------------------- */

/* The text of a token, which is a string or an object with "content"; NULL: there is none. */
static json_t *token_text(const json_t *token)
{
    json_t *text =
        json_is_object(token) ? json_object_get(token, "content") : (json_t *)(uintptr_t)token;

    return json_is_string(text) ? text : NULL;
}

static d9d_status load_tokens(d9di_chat_template *t, const char *path)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *root = NULL;
    d9d_status st = D9D_OK;

    if (path == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_read(path, MAX_FILE, &root));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && st == D9D_OK; i++) {
        json_t *text = token_text(json_object_get(root, names[i]));

        if (text != NULL && json_object_set_new(t->variables, names[i], json_incref(text)) != 0)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    }
    json_decref(root);
    return st;
}

bool d9di_chat_template_mentions(const d9di_chat_template *t, const char *name)
{
    return d9d_jinja_mentions(t->template, name) ||
           (t->tool_use != NULL && d9d_jinja_mentions(t->tool_use, name));
}

static d9d_status add_kwargs(d9di_chat_template *t, const json_t *kwargs)
{
    json_t *v;
    const char *key;

    if (kwargs != NULL && !json_is_object(kwargs))
        return D9D_FAIL(D9D_ECONFIG, "the variables of a chat template must be a JSON object");
    json_object_foreach((json_t *)(uintptr_t)kwargs, key, v)
    {
        if (!d9di_chat_template_mentions(t, key))
            return D9D_FAIL(D9D_ECONFIG, "%s: does not use \"%s\", so that it changes nothing",
                            t->where, key);
        if (json_object_set_new(t->variables, key, json_deep_copy(v)) != 0)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %s", t->where, key);
    }
    return D9D_OK;
}

static d9d_status set_date(d9di_chat_template *t, const char *date)
{
    char rest;
    time_t seconds;
    struct tm d = {0}, valid;

    if (date == NULL)
        return D9D_OK;
    if (sscanf(date, "%4d-%2d-%2d%c", &d.tm_year, &d.tm_mon, &d.tm_mday, &rest) != 3 ||
        strlen(date) != 10)
        return D9D_FAIL(D9D_ECONFIG, "the date \"%.40s\" must be YYYY-MM-DD", date);
    d.tm_year -= 1900;
    d.tm_mon--;
    valid = d;
    seconds = timegm(&valid); /* with the days of the week and the year */
    if (seconds == (time_t)-1 || valid.tm_mday != d.tm_mday || valid.tm_mon != d.tm_mon)
        return D9D_FAIL(D9D_ECONFIG, "the date %s is in no calendar", date);
    t->date = valid;
    t->has_date = true;
    return D9D_OK;
}

/* --- all of it -------------------------------------------------------------------------------- */

static d9d_status hash_all(d9di_chat_template *t, const char *date)
{
    d9d_buf b = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_buf_append(&b, &t->text_hash, sizeof(t->text_hash)), out);
    D9D_TRY_OR(st, d9d_buf_append(&b, &t->tool_use_hash, sizeof(t->tool_use_hash)), out);
    D9D_TRY_OR(st, d9d_buf_printf(&b, "%s\n", date != NULL ? date : ""), out);
    D9D_TRY_OR(st, d9d_json_put(&b, t->variables, -1), out);
    t->hash = d9d_hash_bytes(b.data, b.len);
out:
    d9d_buf_release(&b);
    return st;
}

static d9d_status load(d9di_chat_template *t, const d9d_chat_opts *opts)
{
    struct places p;

    t->variables = json_object();
    if (t->variables == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a chat template");
    D9D_TRY(find_places(opts, &t->arena, &p));
    t->beside = opts->chat_template == NULL && p.template == NULL;
    D9D_TRY(load_template(t, &p));
    for (size_t i = 0; i < 2; i++)
        D9D_TRY(load_tokens(t, p.tokens[i]));
    D9D_TRY(add_kwargs(t, opts->kwargs));
    D9D_TRY(set_date(t, opts->date));
    return hash_all(t, opts->date);
}

d9d_status d9di_chat_template_load(const d9d_chat_opts *opts, d9di_chat_template **out)
{
    d9di_chat_template *t = calloc(1, sizeof(*t));
    d9d_status st;

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a chat template");
    st = load(t, opts);
    if (st != D9D_OK) {
        d9di_chat_template_free(t);
        return D9D_PASS(st);
    }
    *out = t;
    return D9D_OK;
}

void d9di_chat_template_free(d9di_chat_template *t)
{
    if (t == NULL)
        return;
    json_decref(t->variables);
    d9d_arena_release(&t->arena);
    free(t);
}
