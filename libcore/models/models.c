/* models.c - the families that are built in, by the sections of "model_provider". */
#include "d9d/models/models.h"

#include "model/family/model_choice.h"

const d9d_table *const d9d_model_choices[] = {
    &d9d_model_auto_section,
    &d9d_qwen3_dense_section,
    &d9d_qwen3_moe_section,
    &d9d_qwen2_section,
    &d9d_qwen2_moe_section,
    &d9d_llama_section,
    &d9d_mistral_section,
    &d9d_mixtral_section,
    &d9d_smollm3_section,
    &d9d_phi3_section,
    &d9d_glm4_moe_section,
    &d9d_deepseek_v3_section,
    &d9d_glm4_moe_lite_section,
    &d9d_qwen3_next_section,
    &d9d_qwen3_5_section,
    &d9d_qwen3_5_moe_section,
    &d9d_deepseek_v2_section,
    &d9d_ministral_section,
    &d9d_ministral3_section,
    &d9d_olmo_section,
    &d9d_olmo2_section,
    &d9d_olmo3_section,
    &d9d_olmoe_section,
    &d9d_minimax_m2_section,
    &d9d_granite_section,
    &d9d_granitemoe_section,
    &d9d_granitemoehybrid_section,
    &d9d_gpt_oss_section,
    &d9d_gemma_section,
    &d9d_gemma2_section,
    &d9d_gemma3_section,
    &d9d_gpt_neox_section,
    &d9d_gpt2_section,
    &d9d_modernbert_section,
    NULL,
};

const d9d_model_provider *d9d_model_find(const d9d_table *const *choices, const char *model_type)
{
    for (; *choices != NULL; choices++)
        if (d9di_model_accepts_type((*choices)->row, model_type))
            return (*choices)->row;
    return NULL;
}
