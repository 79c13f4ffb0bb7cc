/* chat_render.c - what a template sees of a chat; see chat_render.h and d9d/data/chat/chat.h. */
#include "data/chat/chat_render.h"

#include <limits.h>
#include <string.h>

void d9di_chat_rendering_release(d9di_chat_rendering *r)
{
    d9d_buf_release(&r->text);
    d9d_buf_release(&r->part);
    d9d_buf_release(&r->marks);
    d9d_jinja_trace_release(&r->trace);
    d9d_jinja_trace_release(&r->part_trace);
    D9D_VEC_RELEASE(&r->loss_spans);
    D9D_VEC_RELEASE(&r->ends);
    D9D_VEC_RELEASE(&r->spans);
    D9D_VEC_RELEASE(&r->targets);
}

/* --- roles ------------------------------------------------------------------------------------ */

bool d9di_chat_is_assistant(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role != NULL && strcmp(role, "assistant") == 0;
}

bool d9di_chat_is_trained(const json_t *message)
{
    const json_t *weight = json_object_get(message, "weight");

    return d9di_chat_is_assistant(message) &&
           !(json_is_number(weight) && json_number_value(weight) == 0);
}

unsigned char d9di_chat_mark(const json_t *message, size_t k)
{
    return d9di_chat_is_assistant(message)
               ? (unsigned char)(D9DI_CHAT_ASSISTANT + k % (UCHAR_MAX + 1 - D9DI_CHAT_ASSISTANT))
               : D9DI_CHAT_OTHERS;
}

static d9d_status mark_messages(const json_t *chat, size_t n, d9d_buf *marks)
{
    const json_t *messages = json_object_get(chat, "messages");

    marks->len = 0;
    D9D_TRY(d9d_buf_reserve(marks, n));
    for (size_t k = 0; k < n; k++)
        marks->data[marks->len++] = (char)d9di_chat_mark(json_array_get(messages, k), k);
    return D9D_OK;
}

/* --- messages --------------------------------------------------------------------------------- */

static json_t *find_reasoning(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_t *v = json_object_get(message, names[i]);

        if (v != NULL && !json_is_null(v))
            return v;
    }
    return NULL;
}

static bool is_text_part(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));

    return type != NULL && strcmp(type, "text") == 0 &&
           json_is_string(json_object_get(part, "text"));
}

/* The parts of a content as one string; NULL: no memory. */
static json_t *join_parts(const json_t *content)
{
    d9d_buf b = {0};
    d9d_status st = D9D_OK;
    json_t *out;

    for (size_t i = 0; i < json_array_size(content) && st == D9D_OK; i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");

        st = d9d_buf_append(&b, json_string_value(text), json_string_length(text));
    }
    out = st == D9D_OK ? json_stringn(b.len > 0 ? b.data : "", b.len) : NULL;
    d9d_buf_release(&b);
    return out;
}

static json_t *make_content(const d9d_jinja_template *t, json_t *from)
{
    bool joined = json_is_array(from) && !d9d_jinja_mentions(t, "text");

    for (size_t i = 0; i < json_array_size(from) && joined; i++)
        joined = is_text_part(json_array_get(from, i));
    return joined ? join_parts(from) : json_incref(from);
}

/* A copy of the message as templates see it; NULL: no memory. */
static json_t *make_message(const d9d_jinja_template *t, const json_t *from)
{
    json_t *const reasoning = find_reasoning(from);
    json_t *to = json_object(), *v;
    const char *key;

    if (reasoning != NULL)
        d9d_json_set(&to, "thinking", json_incref(reasoning));
    json_object_foreach((json_t *)(uintptr_t)from, key, v)
    {
        if (strcmp(key, "content") == 0)
            d9d_json_set(&to, key, make_content(t, v));
        else if (!json_is_null(v))
            d9d_json_set(&to, key, json_incref(v));
    }
    if (reasoning != NULL)
        d9d_json_set(&to, "reasoning_content", json_incref(reasoning));
    return to;
}

/* --- variables -------------------------------------------------------------------------------- */

/* The members of the chat with its first n messages; NULL: no memory. */
static json_t *make_data(const d9d_jinja_template *t, const json_t *chat, size_t n)
{
    const json_t *list = json_object_get(chat, "messages");
    json_t *data = json_object(), *messages = json_array(), *v;
    const char *key;

    for (size_t i = 0; i < n; i++)
        d9d_json_add(&messages, make_message(t, json_array_get(list, i)));
    json_object_foreach((json_t *)(uintptr_t)chat, key, v) d9d_json_set(&data, key, json_incref(v));
    d9d_json_set(&data, "messages", messages);
    return data;
}

static bool is_token_name(const char *key)
{
    const size_t n = strlen(key);

    return n > 6 && strcmp(key + n - 6, "_token") == 0;
}

/* The other variables; *data loses members that are not for a chat to set.  NULL: no memory. */
static json_t *make_context(const d9di_chat_template *t, json_t **data, bool prompt)
{
    json_t *context = json_object(), *v;
    const char *key;

    d9d_json_set(&context, "tools", json_null());
    d9d_json_set(&context, "documents", json_null());
    json_object_foreach(t->variables, key, v)
    {
        d9d_json_set(&context, key, json_deep_copy(v));
        if (is_token_name(key))
            (void)json_object_del(*data, key);
    }
    d9d_json_set(&context, "add_generation_prompt", json_boolean(prompt));
    (void)json_object_del(*data, "add_generation_prompt");
    return context;
}

/* --- rendering -------------------------------------------------------------------------------- */

d9d_status d9di_chat_render(const d9di_chat_template *t, const json_t *chat, size_t n, bool prompt,
                            d9di_chat_rendering *out)
{
    const bool tools = json_array_size(json_object_get(chat, "tools")) > 0;
    const d9d_jinja_template *with = tools && t->tool_use != NULL ? t->tool_use : t->template;
    json_t *data = make_data(with, chat, n), *context = make_context(t, &data, prompt);
    d9d_jinja_opts opts = {.now = t->has_date ? &t->date : NULL,
                           .data = data,
                           .items = json_object_get(data, "messages")};
    d9d_status st;

    out->text.len = out->trace.generation.len = out->trace.visits.len = out->trace.data.len = 0;
    D9D_TRY_OR(st, mark_messages(chat, n, &out->marks), out);
    opts.marks = out->marks.data;
    st = data != NULL && context != NULL
             ? d9d_jinja_render(with, context, &opts, &out->text, &out->trace)
             : D9D_FAIL(D9D_ENOMEM, "no memory for %zu messages", n);
out:
    json_decref(data);
    json_decref(context);
    return st;
}
