/* tokenizer_component.c - see tokenizer_component.h. */
#include "data/tokenizer/tokenizer_component.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"

static bool has_key(const char *words, const char *word)
{
    const size_t n = strlen(word);
    const char *p = words;

    while ((p = strstr(p, word)) != NULL) {
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
        p += n;
    }
    return false;
}

d9d_status d9di_tokenizer_component_check_keys(const json_t *v, const char *where, const char *keys)
{
    const char *key;
    json_t *child;

    json_object_foreach((json_t *)(uintptr_t)v, key, child)
    {
        if (*key == '\0' || strchr(key, ' ') || !has_key(keys, key))
            return D9D_FAIL(D9D_ENOTSUP, "%s: the key \"%.80s\" is not supported", where, key);
    }
    return D9D_OK;
}

d9d_status d9di_tokenizer_component_parse(const d9di_tokenizer_component *table, const json_t *v,
                                          const char *where, void *into)
{
    const char *type;

    if (!json_is_object(v))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be an object or null", where);
    D9D_TRY(d9d_json_get_str(v, where, "type", &type));
    for (; table->type; table++) {
        char keys[256];

        if (strcmp(table->type, type) != 0)
            continue;
        snprintf(keys, sizeof(keys), "type %s", table->keys ? table->keys : "");
        if (table->keys)
            D9D_TRY(d9di_tokenizer_component_check_keys(v, where, keys));
        return table->parse(v, where, into);
    }
    return D9D_FAIL(D9D_ENOTSUP, "%s: the type \"%.80s\" is not supported", where, type);
}

d9d_status d9di_tokenizer_component_get_flag(const json_t *v, const char *where, const char *key,
                                             bool absent, bool *out)
{
    int value = absent;

    if (json_object_get(v, key))
        D9D_TRY(d9d_json_get_bool(v, where, key, &value));
    *out = value != 0;
    return D9D_OK;
}

d9d_status d9di_tokenizer_component_parse_sequence(const d9di_tokenizer_component *table,
                                                   const json_t *v, const char *where,
                                                   const char *key, void *into)
{
    json_t *list;
    size_t i;

    D9D_TRY(d9d_json_get_arr(v, where, key, &list));
    for (i = 0; i < json_array_size(list); i++) {
        char at[512];

        (void)d9d_num_format(at, sizeof(at), "%.440s: %s[%zu]", where, key, i);
        D9D_TRY(d9di_tokenizer_component_parse(table, json_array_get(list, i), at, into));
    }
    return D9D_OK;
}
