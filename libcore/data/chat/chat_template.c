/* chat_template.c - the key table of d9d.chat.v1. */
#include "d9d/data/chat/chat.h"

#include <stddef.h>
#include <string.h>

static const char *const schema_names[] = {"d9d.chat.v1", NULL};
static const char *const field_names[] = {"prefix", "content",  "suffix", "after",
                                          "calls",  "thoughts", NULL};
static const char *const empty_names[] = {"never", "last", "always", NULL};

static const d9d_key field_elem = {.kind = D9D_KIND_ENUM, .names = field_names};
static const d9d_key token_elem = {.kind = D9D_KIND_STR, .min = 1, .max = 1024};

static const d9d_key calls_keys[] = {
    D9D_KEY_STR(d9d_chat_calls, between, "\"\"", "between calls, and in front of the first"),
    D9D_KEY_STR(d9d_chat_calls, prefix, "\"\"", "in front of the name"),
    D9D_KEY_STR(d9d_chat_calls, infix, "\"\"", "between the name and the arguments"),
    D9D_KEY_STR(d9d_chat_calls, suffix, "\"\"", "behind the arguments"),
    D9D_KEY_END,
};
static const d9d_table calls_table =
    D9D_TABLE(d9d_chat_calls, "calls", calls_keys, "what stands around calls of tools");

static const d9d_key tools_keys[] = {
    D9D_KEY_STR(d9d_chat_tools, between, "\"\"", "behind the system message, if there is one"),
    D9D_KEY_STR(d9d_chat_tools, prefix, "\"\"", "in front of the tools"),
    D9D_KEY_STR(d9d_chat_tools, each, "\"\"", "in front of each"),
    D9D_KEY_STR(d9d_chat_tools, suffix, "\"\"", "behind the tools"),
    D9D_KEY_END,
};
static const d9d_table tools_table =
    D9D_TABLE(d9d_chat_tools, "tools", tools_keys, "what stands around the tools of a chat");

static const d9d_key thoughts_keys[] = {
    D9D_KEY_STR(d9d_chat_thoughts, begin, "\"\"", "begins thoughts in a content"),
    D9D_KEY_STR(d9d_chat_thoughts, end, "\"\"", "ends thoughts in a content; \"\": it has none"),
    D9D_KEY_STR(d9d_chat_thoughts, prefix, "\"\"", "in front of the thoughts"),
    D9D_KEY_STR(d9d_chat_thoughts, suffix, "\"\"", "between the thoughts and the content"),
    D9D_KEY_STR(d9d_chat_thoughts, behind, "null",
                "thoughts are left out in front of the last message of this role; null: nowhere",
                .flags = D9D_NULLABLE),
    D9D_KEY_STR(d9d_chat_thoughts, unless_prefix, "\"\"",
                "messages of that role do not count that begin with this"),
    D9D_KEY_STR(d9d_chat_thoughts, unless_suffix, "\"\"", "and end with this"),
    {.name = "empty",
     .kind = D9D_KIND_ENUM,
     .offset = offsetof(d9d_chat_thoughts, empty),
     .def = "\"never\"",
     .names = empty_names,
     .doc = "which messages without thoughts are rendered with empty ones"},
    D9D_KEY_END,
};
static const d9d_table thoughts_table =
    D9D_TABLE(d9d_chat_thoughts, "thoughts", thoughts_keys, "where thoughts are and how they look");

static const d9d_key role_keys[] = {
    D9D_KEY_STR(d9d_chat_role, name, D9D_REQUIRED, "as messages say it", .min = 1, .max = 256),
    D9D_KEY_STR(d9d_chat_role, prefix, "\"\"", "in front of the content"),
    D9D_KEY_STR(d9d_chat_role, suffix, "\"\"", "behind the content"),
    D9D_KEY_STR(d9d_chat_role, after, "\"\"", "behind the suffix"),
    D9D_KEY_STR(d9d_chat_role, open, "\"\"", "in front of the first of messages of this role"),
    D9D_KEY_STR(d9d_chat_role, close, "\"\"", "behind the last of them"),
    {.name = "thoughts",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(d9d_chat_role, thoughts),
     .def = "null",
     .table = &thoughts_table,
     .doc = "how thoughts are rendered; null: as a part of the content, and reasoning_content is "
            "an error"},
    {.name = "calls",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(d9d_chat_role, calls),
     .def = "null",
     .table = &calls_table,
     .doc = "how tool_calls are rendered; null: they are an error"},
    D9D_KEY_LIST(d9d_chat_role, train, "[]", &field_elem, "the parts that are targets"),
    D9D_KEY_LIST(d9d_chat_role, tokens, "[]", &token_elem,
                 "added tokens that contents of this role may have; others are text there"),
    D9D_KEY_END,
};
static const d9d_table role_table =
    D9D_TABLE(d9d_chat_role, "role", role_keys, "what stands around the content of a message");
static const d9d_key role_elem = {.kind = D9D_KIND_TABLE, .table = &role_table};

static const d9d_key keys[] = {
    {.name = "schema",
     .kind = D9D_KIND_ENUM,
     .offset = D9D_NO_FIELD,
     .names = schema_names,
     .doc = "the format"},
    D9D_KEY_STR(d9d_chat_template, bos, "\"\"", "in front of the first message"),
    D9D_KEY_STR(d9d_chat_template, end, "\"\"", "behind the last message"),
    D9D_KEY_STR(d9d_chat_template, default_system, "null",
                "content of the system message of a chat that has none; null: it stays without",
                .flags = D9D_NULLABLE),
    {.name = "tools",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(d9d_chat_template, tools),
     .def = "null",
     .table = &tools_table,
     .doc = "how the tools of a chat are rendered; null: they are an error"},
    D9D_KEY_LIST(d9d_chat_template, roles, D9D_REQUIRED, &role_elem, "who may speak", .min = 1),
    D9D_KEY_END,
};

static bool has_role(const d9d_chat_template *t, const char *name)
{
    const d9d_chat_role *roles = t->roles.items;
    size_t i = 0;

    while (i < t->roles.n && strcmp(roles[i].name, name) != 0)
        i++;
    return i < t->roles.n;
}

static d9d_status check_thoughts(const d9d_chat_template *t, const d9d_chat_role *role,
                                 const char *path)
{
    const d9d_chat_thoughts *h = role->thoughts;

    if (h && h->behind && !has_role(t, h->behind))
        return D9D_FAIL(D9D_ECONFIG, "%s: role \"%s\": thoughts.behind: there is no role \"%s\"",
                        path, role->name, h->behind);
    if (h && *h->begin && !*h->end)
        return D9D_FAIL(D9D_ECONFIG, "%s: role \"%s\": thoughts: a \"begin\" without an \"end\"",
                        path, role->name);
    return D9D_OK;
}

static d9d_status check_template(const void *value, const char *path)
{
    const d9d_chat_template *t = value;
    const d9d_chat_role *roles = t->roles.items;
    bool system = false;
    size_t i, j;

    for (i = 0; i < t->roles.n; i++) {
        system = system || strcmp(roles[i].name, "system") == 0;
        D9D_TRY(check_thoughts(t, &roles[i], path));
        for (j = 0; j < i; j++)
            if (strcmp(roles[i].name, roles[j].name) == 0)
                return D9D_FAIL(D9D_ECONFIG, "%s: roles[%zu]: \"%s\" is there already", path, i,
                                roles[i].name);
    }
    if ((t->default_system || t->tools) && !system)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s: there is no role \"system\"", path,
                        t->default_system ? "default_system" : "tools");
    return D9D_OK;
}

const d9d_table d9d_chat_table = {.name = "chat",
                                  .size = sizeof(d9d_chat_template),
                                  .keys = keys,
                                  .doc = "How messages become text, and which of it is trained.",
                                  .check = check_template};
