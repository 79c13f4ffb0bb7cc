/* qwen3_config_parts.h - the parts of Qwen3's config.json. */
#ifndef D9DI_MODELS_QWEN3_QWEN3_CONFIG_PARTS_H
#define D9DI_MODELS_QWEN3_QWEN3_CONFIG_PARTS_H

#include "d9d/models/qwen3/qwen3_config.h"
#include "model/hf/hf_config_fields.h"

/* Read `window` and `windowed`; c->layers is known and within bounds. */
d9d_status d9di_qwen3_config_window(const d9di_hf_reader *r, d9d_arena *a, d9d_qwen3_config *c);
/* Read `moe_layer`; likewise. */
d9d_status d9di_qwen3_config_moe_layers(const d9di_hf_reader *r, d9d_arena *a, d9d_qwen3_config *c);
/* Read the head, its labels and the router. */
d9d_status d9di_qwen3_config_head(const d9di_hf_reader *r, d9d_qwen3_config *c);

#endif /* D9DI_MODELS_QWEN3_QWEN3_CONFIG_PARTS_H */
