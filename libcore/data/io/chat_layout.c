/* chat_layout.c - see chat_layout.h. */
#include "data/io/chat_layout.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"

/* A conversion under way. */
typedef struct conversion {
    json_t *chat, *messages; /* messages: borrowed, part of the chat */
    const d9di_chat_reader *reader;
    char *why;
    size_t size;
} conversion;

/* Says why the chat cannot be converted. */
#define REFUSE(c, ...) (d9d_num_format((c)->why, (c)->size, __VA_ARGS__), D9D_EFORMAT)

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "no memory for a chat");
}

static d9d_status add_message(conversion *c, const char *role, json_t *content)
{
    json_t *m = json_pack("{s:s, s:O}", "role", role, "content", content);

    return json_array_append_new(c->messages, m) == 0 ? D9D_OK : no_memory();
}

d9d_status d9di_chat_layout_system(json_t *chat)
{
    json_t *system = json_object_get(chat, "system");
    json_t *first = json_is_string(system)
                        ? json_pack("{s:s, s:O}", "role", "system", "content", system)
                        : NULL;

    if (json_is_string(system) &&
        json_array_insert_new(json_object_get(chat, "messages"), 0, first) != 0)
        return no_memory();
    (void)json_object_del(chat, "system");
    return D9D_OK;
}

/* The value of a text that is JSON. */
static d9d_status parse_text(conversion *c, const char *name, const json_t *text, json_t **out)
{
    const d9d_status st =
        d9d_json_parse(name, json_string_value(text), json_string_length(text), out);
    d9d_err_copy why;

    if (st != D9D_EFORMAT)
        return st;
    d9d_err_save(&why, st);
    return REFUSE(c, "%.300s", why.text);
}

d9d_status d9di_chat_layout_tools(json_t *chat, char *why, size_t size)
{
    conversion c = {.chat = chat, .why = why, .size = size};
    json_t *tools = json_object_get(chat, "tools"), *tool, *parsed = NULL;
    size_t i;

    if (json_is_string(tools) && json_string_length(tools) > 0)
        D9D_TRY(parse_text(&c, "tools", tools, &parsed));
    if (json_is_string(tools) &&
        json_object_set_new(chat, "tools", parsed != NULL ? parsed : json_array()) != 0)
        return no_memory();
    tools = json_object_get(chat, "tools");
    if (tools != NULL && !json_is_null(tools) && !json_is_array(tools))
        return REFUSE(&c, "\"tools\" is not an array");
    json_array_foreach(tools, i, tool)
    {
        if (!json_is_object(tool))
            return REFUSE(&c, "tools[%zu] is not an object", i);
    }
    return D9D_OK;
}

/* --- ShareGPT -----------------------------------------------------------------------------------
 */

static const struct speaker {
    const char *from, *role;
} speakers[] = {
    {"system", "system"},  {"human", "user"},          {"user", "user"},
    {"gpt", "assistant"},  {"assistant", "assistant"}, {"chatgpt", "assistant"},
    {"bing", "assistant"}, {"bard", "assistant"},      {"model", "assistant"},
    {"tool", "tool"},      {"observation", "tool"},    {"function_response", "tool"},
};

static const char *role_of(const char *from)
{
    for (size_t i = 0; i < sizeof(speakers) / sizeof(speakers[0]); i++)
        if (strcmp(from, speakers[i].from) == 0)
            return speakers[i].role;
    return NULL;
}

static d9d_status add_turn(conversion *c, size_t i, json_t *turn)
{
    const char *from = json_string_value(json_object_get(turn, "from"));
    json_t *value = json_object_get(turn, "value");

    if (json_is_string(json_object_get(turn, "role")) && json_object_get(turn, "content") != NULL)
        return json_array_append(c->messages, turn) == 0 ? D9D_OK : no_memory();
    if (from == NULL || !json_is_string(value))
        return REFUSE(c, "conversations[%zu] has no \"from\" and \"value\" that are strings", i);
    if (role_of(from) == NULL)
        return REFUSE(c,
                      "conversations[%zu]: \"from\" is \"%.60s\", which is no role that is known",
                      i, from);
    return add_message(c, role_of(from), value);
}

static d9d_status convert_conversations(conversion *c)
{
    json_t *turns = json_object_get(c->chat, "conversations"), *turn;
    size_t i;

    if (!json_is_array(turns))
        return REFUSE(c, "\"conversations\" is not an array");
    json_array_foreach(turns, i, turn) D9D_TRY(add_turn(c, i, turn));
    return D9D_OK;
}

/* --- a question and its answer ------------------------------------------------------------------
 */

static const struct pair {
    const char *question, *input, *answer;
} pairs[] = {
    {"instruction", "input", "output"}, {"instruction", "context", "response"},
    {"prompt", NULL, "completion"},     {"prompt", NULL, "response"},
    {"question", NULL, "answer"},
};

/* What an answer may depend on, by the names that datasets have for it. */
static const char *const question_texts[] = {"context", "contexts",  "input",
                                             "passage", "document",  "documents",
                                             "article", "paragraph", "system_prompt"};

static bool is_empty(const json_t *v)
{
    return json_string_length(v) == 0 && json_array_size(v) == 0 && json_object_size(v) == 0;
}

d9d_status d9di_chat_layout_check_texts(const json_t *chat, const char *question,
                                        const char *answer, const char *used,
                                        const d9di_chat_reader *reader, char *why, size_t size)
{
    for (size_t i = 0; i < sizeof(question_texts) / sizeof(question_texts[0]); i++) {
        const char *name = question_texts[i];

        if (is_empty(json_object_get(chat, name)) || (used != NULL && strcmp(name, used) == 0) ||
            (reader != NULL && reader->reads(reader->arg, name)))
            continue;
        (void)d9d_num_format(
            why, size,
            "\"%s\" stands beside \"%s\" and \"%s\", and nothing reads it: make it "
            "part of \"%s\", or remove it",
            name, question, answer, question);
        return D9D_EFORMAT;
    }
    return D9D_OK;
}

static const struct pair *pair_of(const json_t *chat)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (json_object_get(chat, pairs[i].question) && json_object_get(chat, pairs[i].answer))
            return &pairs[i];
    return NULL;
}

/* Adds earlier turns: [[question, answer], ...]. */
static d9d_status add_history(conversion *c)
{
    json_t *history = json_object_get(c->chat, "history"), *turn;
    size_t i;

    if (history == NULL || json_is_null(history))
        return D9D_OK;
    json_array_foreach(history, i, turn)
    {
        json_t *question = json_array_get(turn, 0), *answer = json_array_get(turn, 1);

        if (!json_is_string(question) || !json_is_string(answer) || json_array_size(turn) != 2)
            return REFUSE(c, "history[%zu] is not a question and its answer", i);
        D9D_TRY(add_message(c, "user", question));
        D9D_TRY(add_message(c, "assistant", answer));
    }
    return json_is_array(history) ? D9D_OK : REFUSE(c, "\"history\" is not an array");
}

static d9d_status add_question(conversion *c, json_t *question, json_t *input)
{
    const char *more = json_string_value(input);
    json_t *both;
    d9d_status st;

    if (more == NULL || more[0] == '\0')
        return add_message(c, "user", question);
    both = json_sprintf("%s\n%s", json_string_value(question), more);
    if (both == NULL)
        return no_memory();
    st = add_message(c, "user", both);
    json_decref(both);
    return st;
}

/* Adds messages of a list, which are trained or not. */
static d9d_status add_messages(conversion *c, const char *name, json_t *list, bool trained)
{
    json_t *m;
    size_t i;

    json_array_foreach(list, i, m)
    {
        if (!json_is_string(json_object_get(m, "role")) || json_object_get(m, "content") == NULL)
            return REFUSE(c, "%s[%zu] has no \"role\" and \"content\"", name, i);
        if (!trained && json_object_set_new(m, "weight", json_integer(0)) != 0)
            return no_memory();
        if (json_array_append(c->messages, m) != 0)
            return no_memory();
    }
    return D9D_OK;
}

static d9d_status convert_pair(conversion *c)
{
    const struct pair *p = pair_of(c->chat);
    json_t *question = json_object_get(c->chat, p->question);
    json_t *answer = json_object_get(c->chat, p->answer);
    json_t *input = p->input ? json_object_get(c->chat, p->input) : NULL;

    D9D_TRY(d9di_chat_layout_check_texts(c->chat, p->question, p->answer,
                                         json_is_array(question) ? NULL : p->input, c->reader,
                                         c->why, c->size));
    if (json_is_array(question) && json_is_array(answer)) {
        D9D_TRY(add_messages(c, p->question, question, false));
        return add_messages(c, p->answer, answer, true);
    }
    if (!json_is_string(question) || !json_is_string(answer))
        return REFUSE(c, "\"%s\" is not a string",
                      json_is_string(question) ? p->answer : p->question);
    if (input != NULL && !json_is_string(input) && !json_is_null(input))
        return REFUSE(c, "\"%s\" is not a string", p->input);
    D9D_TRY(add_history(c));
    D9D_TRY(add_question(c, question, input));
    return add_message(c, "assistant", answer);
}

/* --- which layout -------------------------------------------------------------------------------
 */

static bool has_conversations(const json_t *chat)
{
    return json_object_get(chat, "conversations") != NULL;
}

static bool has_pair(const json_t *chat)
{
    return pair_of(chat) != NULL;
}

static const struct layout {
    bool (*is)(const json_t *chat);
    d9d_status (*convert)(conversion *c);
} layouts[] = {{has_conversations, convert_conversations}, {has_pair, convert_pair}};

static d9d_status convert(const struct layout *l, conversion *c)
{
    c->messages = json_array();
    if (json_object_set_new(c->chat, "messages", c->messages) != 0)
        return no_memory();
    D9D_TRY(l->convert(c));
    return d9di_chat_layout_system(c->chat);
}

bool d9di_chat_layout_convert(json_t *chat, const d9di_chat_reader *reader, char *why, size_t size,
                              d9d_status *st)
{
    conversion c = {.chat = chat, .reader = reader, .why = why, .size = size};

    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i].is(chat)) {
            *st = convert(&layouts[i], &c);
            return true;
        }
    return false;
}
