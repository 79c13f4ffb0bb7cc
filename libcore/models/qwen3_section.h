/* qwen3_section.h - Qwen3's sections of "model_provider": beside hf_config they have the parameters
 * of the reference framework, by its names, in "model".  Dense and mixture are two sections.
 */
#ifndef D9DI_MODELS_QWEN3_SECTION_H
#define D9DI_MODELS_QWEN3_SECTION_H

#include "d9d/model/family/family.h"

/* Read a bound section: its config.json, or its parameters as one. */
d9d_status d9di_qwen3_section_read(const d9d_family *f, const void *section, d9d_arena *a,
                                   const void **config);

#endif /* D9DI_MODELS_QWEN3_SECTION_H */
