/* chat_template.c - the key table of d9d.chat.v1. */
#include "d9d/data/chat.h"

#include <string.h>

static const char *const ids[] = {"d9d.chat.v1", NULL};
static const char *const parts[] = {"prefix", "content", "suffix", "after", NULL};

static const d9d_key a_part = {.kind = D9D_KIND_ENUM, .words = parts};
static const d9d_key a_token = {.kind = D9D_KIND_STR, .min = 1, .max = 1024};

static const d9d_key role_keys[] = {
    D9D_KEY_STR(d9d_chat_role, name, D9D_REQUIRED, "as messages say it", .min = 1, .max = 256),
    D9D_KEY_STR(d9d_chat_role, prefix, "\"\"", "in front of the content"),
    D9D_KEY_STR(d9d_chat_role, suffix, "\"\"", "behind the content"),
    D9D_KEY_STR(d9d_chat_role, after, "\"\"", "behind the suffix"),
    D9D_KEY_LIST(d9d_chat_role, train, "[]", &a_part, "the parts that are targets"),
    D9D_KEY_LIST(d9d_chat_role, tokens, "[]", &a_token,
                 "added tokens that contents of this role may have; others are text there"),
    D9D_KEY_END,
};
static const d9d_table role_table =
    D9D_TABLE(d9d_chat_role, "role", role_keys, "what stands around the content of a message");
static const d9d_key a_role = {.kind = D9D_KIND_TABLE, .table = &role_table};

static const d9d_key keys[] = {
    {.name = "schema",
     .kind = D9D_KIND_ENUM,
     .offset = D9D_NO_FIELD,
     .words = ids,
     .doc = "the format"},
    D9D_KEY_STR(d9d_chat_template, bos, "\"\"", "in front of the first message"),
    D9D_KEY_STR(d9d_chat_template, end, "\"\"", "behind the last message"),
    D9D_KEY_STR(d9d_chat_template, default_system, "null",
                "content of the system message of a chat that has none; null: it stays without",
                .flags = D9D_NULLABLE),
    D9D_KEY_LIST(d9d_chat_template, roles, D9D_REQUIRED, &a_role, "who may speak", .min = 1),
    D9D_KEY_END,
};

static d9d_status check(const void *value, const char *path)
{
    const d9d_chat_template *t = value;
    const d9d_chat_role *roles = t->roles.items;
    bool system = false;
    size_t i, j;

    for (i = 0; i < t->roles.n; i++) {
        system = system || strcmp(roles[i].name, "system") == 0;
        for (j = 0; j < i; j++)
            if (strcmp(roles[i].name, roles[j].name) == 0)
                return D9D_FAIL(D9D_ECONFIG, "%s: roles[%zu]: \"%s\" is there already", path, i,
                                roles[i].name);
    }
    if (t->default_system && !system)
        return D9D_FAIL(D9D_ECONFIG, "%s: default_system: there is no role \"system\"", path);
    return D9D_OK;
}

const d9d_table d9d_chat_table = {.name = "chat",
                                  .size = sizeof(d9d_chat_template),
                                  .keys = keys,
                                  .doc = "How messages become text, and which of it is trained.",
                                  .check = check};
