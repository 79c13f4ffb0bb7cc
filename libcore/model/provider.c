/* provider.c - see d9d/model/provider.h. */
#include "d9d/model/provider.h"

#include <string.h>

const char *const d9d_model_dtype_words[] = {"float32", "bfloat16", NULL};

/* false, true, or a word. */
static d9d_status recompute_parse(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    static const char *const words[] = {"off", "full", "selective"};
    int *out = field;

    (void)a;
    for (int i = 0; i < 3; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), words[i]) == 0) {
            *out = i;
            return D9D_OK;
        }
    if (!json_is_boolean(v))
        return D9D_FAIL(D9D_ECONFIG, "%s: must be false, true, \"off\", \"full\" or \"selective\"",
                        path);
    *out = json_is_true(v) ? D9D_RECOMPUTE_FULL : D9D_RECOMPUTE_OFF;
    return D9D_OK;
}
const d9d_key_custom d9d_model_recompute_kind = {
    recompute_parse, "{\"enum\": [false, true, \"off\", \"full\", \"selective\"]}", sizeof(int)};

d9d_status d9d_model_spec_read(const d9d_union *section, d9d_arena *a, d9d_model_spec *out)
{
    const d9d_model_head *head = section->value;
    d9d_model_spec s = {
        .provider = section->choice->row,
        .options = {.dtype = (d9d_dtype)head->dtype,
                    .checkpointing = (d9d_checkpointing)head->checkpointing},
        .hf_config = head->hf_config,
    };

    D9D_TRY(s.provider->read(section->value, a, &s.config));
    *out = s;
    return D9D_OK;
}
