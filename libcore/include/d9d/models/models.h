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
D9D_API extern const d9d_table d9d_qwen3_dense_section, d9d_qwen3_moe_section;

/* "auto", then all of them; NULL-ended. */
D9D_API extern const d9d_table *const d9d_model_choices[];

/* The provider among choices that reads this "model_type"; NULL: none does. */
D9D_API const d9d_model_provider *d9d_model_find(const d9d_table *const *choices,
                                                 const char *model_type);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_MODELS_H */
