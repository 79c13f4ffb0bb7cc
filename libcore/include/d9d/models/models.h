/* models.h - the families of models that are built in, as choices of "model_provider": each table's
 * row is a d9d_model_provider (d9d/model/provider.h).
 *
 * A family is one file in libcore/models/ (d9d/model/family/family.h).
 */
#ifndef D9D_MODELS_MODELS_H
#define D9D_MODELS_MODELS_H

#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

D9D_API extern const d9d_model_provider d9d_qwen3_dense_provider, d9d_qwen3_moe_provider;
D9D_API extern const d9d_table d9d_deepseek_v2_section, d9d_deepseek_v3_section, d9d_gemma2_section,
    d9d_gemma3_section, d9d_gemma_section, d9d_glm4_moe_section, d9d_gpt2_section,
    d9d_gpt_neox_section, d9d_gpt_oss_section, d9d_granite_section, d9d_granitemoe_section,
    d9d_granitemoehybrid_section, d9d_glm4_moe_lite_section, d9d_llama_section,
    d9d_minimax_m2_section, d9d_ministral3_section, d9d_ministral_section, d9d_mistral_section,
    d9d_mixtral_section, d9d_modernbert_section, d9d_olmo2_section, d9d_olmo3_section,
    d9d_olmo_section, d9d_olmoe_section, d9d_phi3_section, d9d_qwen2_moe_section, d9d_qwen2_section,
    d9d_qwen3_5_moe_section, d9d_qwen3_5_section, d9d_qwen3_dense_section, d9d_qwen3_moe_section,
    d9d_qwen3_next_section, d9d_smollm3_section;

/* "auto", then all of them; NULL-ended. */
D9D_API extern const d9d_table *const d9d_model_choices[];

/* The provider among choices that reads this "model_type"; NULL: none does. */
D9D_API const d9d_model_provider *d9d_model_find(const d9d_table *const *choices,
                                                 const char *model_type);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_MODELS_H */
