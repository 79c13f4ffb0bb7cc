/* reference_key.c - the key of a task's frozen model.  See d9d/tasks/preference.h. */
#include <string.h>

#include "tasks/tasks.h"

static d9d_status reference_parse(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    const char *checkpoint = json_string_value(json_object_get(v, "checkpoint"));
    d9d_task_reference_key *out = field;

    *out = (d9d_task_reference_key){.given = !json_is_null(v)};
    if (!out->given || (json_is_string(v) && strcmp(json_string_value(v), "start") == 0))
        return D9D_OK;
    if (json_object_size(v) != 1 || checkpoint == NULL || checkpoint[0] == '\0')
        return D9D_FAIL(D9D_ECONFIG, "%s: is null, \"start\" or {\"checkpoint\": \"DIR\"}", path);
    out->checkpoint = d9d_arena_strdup(a, checkpoint);
    return out->checkpoint != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
}

const d9d_key_custom d9di_task_reference_key_kind = {
    .parse = reference_parse,
    .schema = "{\"type\": [\"object\", \"string\", \"null\"], \"pattern\": \"^start$\", "
              "\"properties\": {\"checkpoint\": {\"type\": \"string\", \"minLength\": 1}}, "
              "\"required\": [\"checkpoint\"], \"additionalProperties\": false}",
    .size = sizeof(d9d_task_reference_key)};
