/* models.h - the families of models that are built in, as providers (d9d/model/provider.h). */
#ifndef D9D_MODELS_MODELS_H
#define D9D_MODELS_MODELS_H

#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

D9D_API extern const d9d_model_provider d9d_qwen3_dense_provider, d9d_qwen3_moe_provider;

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODELS_MODELS_H */
