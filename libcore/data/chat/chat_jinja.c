/* chat_jinja.c - see chat_jinja.h. */
#include "data/chat/chat_jinja.h"

#include <string.h>

#include "d9d/base/fs.h"

#define MAX_FILE (UINT64_C(64) << 20) /* a configuration has all added tokens */

struct d9di_chat_jinja {
    d9d_arena arena;
    const d9d_jinja_template *template;
    json_t *tokens; /* name to text */
};

/* --- loading ---------------------------------------------------------------------------------- */

/* The text of a token, which is a string or an object with "content"; NULL: there is none. */
static json_t *token_text(const json_t *token)
{
    json_t *text =
        json_is_object(token) ? json_object_get(token, "content") : (json_t *)(uintptr_t)token;

    return json_is_string(text) ? text : NULL;
}

static d9d_status load_tokens(d9di_chat_jinja *c, const json_t *config, const char *path)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_t *text = token_text(json_object_get(config, names[i]));

        if (text != NULL && json_object_set_new(c->tokens, names[i], json_incref(text)) != 0)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    }
    return D9D_OK;
}

/* The "chat_template": a string, or a list of {"name", "template"}. */
static d9d_status compile_member(d9di_chat_jinja *c, const json_t *config, const char *path)
{
    const json_t *member = json_object_get(config, "chat_template");
    const char *where = d9d_arena_printf(&c->arena, "%s: chat_template", path);

    if (where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    for (size_t i = 0; json_is_array(member) && i < json_array_size(member); i++) {
        const json_t *one = json_array_get(member, i);
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name != NULL && strcmp(name, "default") == 0)
            member = json_object_get(one, "template");
    }
    if (!json_is_string(member))
        return D9D_FAIL(D9D_ECONFIG, "%s: has no \"chat_template\"", path);
    return d9d_jinja_compile(json_string_value(member), json_string_length(member), where,
                             &c->arena, &c->template);
}

static d9d_status compile_file(d9di_chat_jinja *c, const char *path)
{
    d9d_buf text = {0};
    d9d_status st = d9d_fs_read(path, MAX_FILE, &text);

    if (st == D9D_OK)
        st = d9d_jinja_compile(text.data ? text.data : "", text.len, path, &c->arena, &c->template);
    d9d_buf_release(&text);
    return st;
}

/* The template of file `own` (NULL: of the configuration), the tokens of file `config`, which may
 * be absent then. */
static d9d_status load(d9di_chat_jinja *c, const char *own, const char *config)
{
    json_t *root = NULL;
    d9d_status st = D9D_OK;

    if (own == NULL || d9d_fs_exists(config))
        st = d9d_json_read(config, MAX_FILE, &root);
    if (st == D9D_OK && root != NULL)
        st = load_tokens(c, root, config);
    if (st == D9D_OK)
        st = own != NULL ? compile_file(c, own) : compile_member(c, root, config);
    json_decref(root);
    return st;
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

static d9d_status load_path(d9di_chat_jinja *c, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t n = d9d_fs_is_dir(path) ? strlen(path)
                     : slash != NULL     ? (size_t)(slash - path)
                                         : 0;
    const char *dir = n > 0 ? d9d_arena_strndup(&c->arena, path, n) : ".";
    const char *own = dir != NULL ? d9d_fs_join(&c->arena, dir, "chat_template.jinja") : NULL;
    const char *config = dir != NULL ? d9d_fs_join(&c->arena, dir, "tokenizer_config.json") : NULL;

    if (own == NULL || config == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    if (d9d_fs_is_dir(path))
        return load(c, d9d_fs_exists(own) ? own : NULL, config);
    return ends_with(path, ".json") ? load(c, NULL, path) : load(c, path, config);
}

d9d_status d9di_chat_jinja_load(const char *path, d9di_chat_jinja **out)
{
    d9di_chat_jinja *c = calloc(1, sizeof(*c));
    d9d_status st;

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    c->tokens = json_object();
    st = c->tokens != NULL ? load_path(c, path) : D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    if (st != D9D_OK) {
        d9di_chat_jinja_free(c);
        return D9D_PASS(st);
    }
    *out = c;
    return D9D_OK;
}

void d9di_chat_jinja_free(d9di_chat_jinja *c)
{
    if (c == NULL)
        return;
    json_decref(c->tokens);
    d9d_arena_release(&c->arena);
    free(c);
}

/* --- context ---------------------------------------------------------------------------------- */

static const json_t *find_reasoning(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *v = json_object_get(message, names[i]);

        if (v != NULL && !json_is_null(v))
            return v;
    }
    return NULL;
}

/* A copy of the message as templates see it; NULL: no memory. */
static json_t *make_message(const json_t *from)
{
    json_t *const reasoning = (json_t *)(uintptr_t)find_reasoning(from);
    json_t *to = json_object(), *v;
    const char *key;

    if (reasoning != NULL)
        d9d_json_set(&to, "thinking", json_incref(reasoning));
    json_object_foreach((json_t *)(uintptr_t)from, key, v) if (!json_is_null(v))
        d9d_json_set(&to, key, json_incref(v));
    if (reasoning != NULL)
        d9d_json_set(&to, "reasoning_content", json_incref(reasoning));
    return to;
}

/* What a rendering of the first n messages gets; NULL: no memory. */
static json_t *make_context(const d9di_chat_jinja *c, const json_t *chat, size_t n, bool prompt)
{
    const json_t *list = json_object_get(chat, "messages");
    json_t *context = json_object(), *messages = json_array(), *v;
    const char *key;

    for (size_t i = 0; i < n; i++)
        d9d_json_add(&messages, make_message(json_array_get(list, i)));
    d9d_json_set(&context, "tools", json_null());
    d9d_json_set(&context, "documents", json_null());
    json_object_foreach(c->tokens, key, v) d9d_json_set(&context, key, json_incref(v));
    json_object_foreach((json_t *)(uintptr_t)chat, key, v)
        d9d_json_set(&context, key, json_incref(v));
    d9d_json_set(&context, "messages", messages);
    d9d_json_set(&context, "add_generation_prompt", json_boolean(prompt));
    return context;
}

/* --- rendering -------------------------------------------------------------------------------- */

static d9d_status check_chat(const json_t *chat)
{
    const json_t *messages = json_object_get(chat, "messages");

    if (!json_is_array(messages))
        return D9D_FAIL(D9D_EFORMAT, "the chat has no list of \"messages\"");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_object(json_array_get(messages, i)))
            return D9D_FAIL(D9D_EFORMAT, "message %zu of the chat is no object", i);
    return D9D_OK;
}

static d9d_status render_first(const d9di_chat_jinja *c, const json_t *chat, size_t n, bool prompt,
                               const struct tm *now, d9d_buf *text, d9d_jinja_spans *spans)
{
    const d9d_jinja_opts opts = {.now = now};
    json_t *context = make_context(c, chat, n, prompt);
    const d9d_status st = context != NULL
                              ? d9d_jinja_render(c->template, context, &opts, text, spans)
                              : D9D_FAIL(D9D_ENOMEM, "no memory for %zu messages", n);

    json_decref(context);
    return st;
}

d9d_status d9di_chat_jinja_render(const d9di_chat_jinja *c, const json_t *chat, bool prompt,
                                  const struct tm *now, d9d_buf *text)
{
    D9D_TRY(check_chat(chat));
    return render_first(c, chat, json_array_size(json_object_get(chat, "messages")), prompt, now,
                        text, NULL);
}

static bool begins(const d9d_buf *all, size_t from, const d9d_buf *part)
{
    return part->len <= all->len - from &&
           (part->len == 0 || memcmp(all->data + from, part->data, part->len) == 0);
}

/* Adds the span of message i of the text from `from` on; `part` is scratch.  A template may refuse
 * a chat that ends before the message: then there is no span. */
static d9d_status add_difference(const d9di_chat_jinja *c, const json_t *chat, size_t i,
                                 const struct tm *now, const d9d_buf *text, size_t from,
                                 d9d_buf *part, d9d_jinja_spans *spans)
{
    size_t end[2];

    for (size_t k = 0; k < 2; k++) {
        d9d_status st;

        part->len = 0;
        st = render_first(c, chat, i + k, k == 0, now, part, NULL);
        if (st == D9D_EFORMAT || (st == D9D_OK && !begins(text, from, part)))
            return D9D_OK;
        D9D_TRY(st);
        end[k] = from + part->len;
    }
    return end[0] < end[1] ? D9D_VEC_PUSH(spans, (d9d_jinja_span){end[0], end[1]}) : D9D_OK;
}

d9d_status d9di_chat_jinja_render_spans(const d9di_chat_jinja *c, const json_t *chat,
                                        const struct tm *now, d9d_buf *text, d9d_jinja_spans *spans)
{
    const json_t *messages = json_object_get(chat, "messages");
    const size_t n = json_array_size(messages), from = text->len;
    const bool marked = d9d_jinja_marks_generation(c->template);
    d9d_buf part = {0};
    d9d_status st = D9D_OK;

    D9D_TRY(check_chat(chat));
    D9D_TRY(render_first(c, chat, n, false, now, text, marked ? spans : NULL));
    for (size_t i = 0; i < n && !marked && st == D9D_OK; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));

        if (role != NULL && strcmp(role, "assistant") == 0)
            st = add_difference(c, chat, i, now, text, from, &part, spans);
    }
    d9d_buf_release(&part);
    return st;
}
