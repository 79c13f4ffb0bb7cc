/* weights.h - a checkpoint directory into a model's parameters.  The way back:
 * d9d/convert/model_export.h.
 *
 * Loading takes a HuggingFace directory (either expert layout, either configuration
 * generation) or one in the suite's own layout; which it is shows in its tensors' names.
 *
 *     D9D_TRY(d9d_weights_open(&spec, stage, dir, &w));              // reads headers
 *     ...                                                            // takes memory
 *     D9D_TRY(d9d_weights_read(w, &params, log));                    // reads tensors
 *     d9d_weights_close(w);
 *
 * The mapping is planned before a byte of a tensor is read, so a missing, unused or mis-shaped
 * tensor costs nothing.  Then it streams, converted to the parameters' type: each byte that
 * this stage needs once, and no other; a header is read once, and on a pipeline stage only
 * where the index places a tensor of that stage.
 */
#ifndef D9D_MODEL_WEIGHTS_H
#define D9D_MODEL_WEIGHTS_H

#include "d9d/model/lora/adapters.h"
#include "d9d/model/params_io.h"
#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_weights d9d_weights;

/* Can `dir` give the weights of this stage, with these adapters merged (borrowed; NULL: none)?
 * Takes no memory for them.  ENOTFOUND, EFORMAT, EMISMATCH, ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_open(const d9d_model_spec *m, d9d_stage stage,
                                                 const char *dir, const d9d_adapters *ad,
                                                 d9d_weights **out);
/* Has `dir` what the whole model takes, and nothing else, by its names?  What a stage leaves
 * behind may be another's, so that this is asked first where there are several.  EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_check(const d9d_model_spec *m, const char *dir,
                                                  const d9d_adapters *ad);
D9D_API void d9d_weights_close(d9d_weights *w);
D9D_API const d9d_map_plan *d9d_weights_plan(const d9d_weights *w); /* borrowed */

/* All of `params` must be materialised, of the type in the options. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_read(const d9d_weights *w, const d9d_params *params,
                                                 const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_WEIGHTS_H */
