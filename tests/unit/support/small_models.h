/* small_models.h - models of a few thousand parameters, of families other than Qwen3. */
#ifndef D9D_TEST_SMALL_MODELS_H
#define D9D_TEST_SMALL_MODELS_H

#include "d9d/model/model.h"

/* examples/plugins/hybrid.c: two layers with a state, one with attention. */
d9d_status small_hybrid_create(d9d_dtype t, int64_t vocab, int64_t positions, d9d_model **out);
/* examples/plugins/plain_llama.c, two layers. */
d9d_status small_llama_create(d9d_dtype t, int64_t vocab, int64_t positions, d9d_model **out);
/* Two layers of latent attention. */
d9d_status small_latent_create(d9d_dtype t, int64_t vocab, int64_t positions, d9d_model **out);

#endif /* D9D_TEST_SMALL_MODELS_H */
