/* models.c - the families that are built in, by the sections of "model_provider". */
#include "d9d/models/models.h"

#include <string.h>

const d9d_table *const d9d_model_choices[] = {
    &d9d_model_auto_section, &d9d_qwen3_dense_section,
    &d9d_qwen3_moe_section,  &d9d_qwen2_section,
    &d9d_qwen2_moe_section,  &d9d_llama_section,
    &d9d_mistral_section,    &d9d_mixtral_section,
    &d9d_smollm3_section,    &d9d_phi3_section,
    &d9d_glm4_moe_section,   &d9d_deepseek_v3_section,
    &d9d_qwen3_next_section, NULL,
};

static bool reads(const d9d_model_provider *p, const char *model_type)
{
    for (const char *const *t = p->model_types; t != NULL && *t != NULL; t++)
        if (strcmp(*t, model_type) == 0)
            return true;
    return false;
}

const d9d_model_provider *d9d_model_find(const d9d_table *const *choices, const char *model_type)
{
    for (; *choices != NULL; choices++)
        if (reads((*choices)->row, model_type))
            return (*choices)->row;
    return NULL;
}
