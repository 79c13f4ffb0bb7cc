/* optimizer_config.c - see optimizer_config.h. */
#include "support/optimizer_config.h"

#include <string.h>

#include "d9d/base/json.h"
#include "support/unit.h"

typedef struct section {
    d9d_union optimizer;
} section;

static const d9d_key section_keys[] = {
    D9D_KEY_UNION(section, optimizer, D9D_REQUIRED, d9d_optimizer_tag, d9d_optimizer_choices,
                  "the optimizer"),
    D9D_KEY_END,
};
static const d9d_table section_table = D9D_TABLE(section, "test", section_keys, "one section");

d9d_status optimizer_config_bind(const char *text, d9d_arena *a, json_t **doc, d9d_union *out)
{
    section s = {0};
    json_t *optimizer;

    assert_ok(d9d_json_parse("test", text, strlen(text), &optimizer));
    json_decref(*doc);
    *doc = json_pack("{s:o}", "optimizer", optimizer);
    D9D_TRY(d9d_config_bind(&section_table, *doc, "test", NULL, a, &s));
    *out = s.optimizer;
    return D9D_OK;
}
