/* weights_merge.h - a source of weights with adapters merged into it. */
#ifndef D9DI_MODEL_WEIGHTS_MERGE_H
#define D9DI_MODEL_WEIGHTS_MERGE_H

#include "d9d/model/lora/adapters.h"
#include "d9d/model/provider.h"

/* Replace *src by a source with the adapters merged, which is valid as long as *out.  Without
 * adapters (NULL) *src is unchanged and *out is NULL. */
d9d_status d9di_weights_merge(const d9d_model_spec *m, const d9d_adapters *ad,
                              d9d_tensor_source *src, d9d_adapters_merge **out);

#endif /* D9DI_MODEL_WEIGHTS_MERGE_H */
