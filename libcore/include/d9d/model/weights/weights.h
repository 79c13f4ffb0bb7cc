/* weights.h - load a checkpoint directory into a model's parameters.  Export:
 * d9d/convert/model_export.h.
 *
 * Loading takes a HuggingFace directory (either expert layout, either configuration generation) or
 * one in the suite's own layout.  The tensors' names show which it is.
 *
 *     D9D_TRY(d9d_weights_open(&spec, stage, dir, &w));              // reads headers
 *     ...                                                            // allocate parameters
 *     D9D_TRY(d9d_weights_read(w, &params, log));                    // reads tensors
 *     d9d_weights_close(w);
 *
 * The mapping is planned before a byte of a tensor is read, so a missing, unused or mis-shaped
 * tensor is found early.  Then it streams and converts to the parameters' type.  Each byte that
 * this stage needs is read once, and no other.  A header is read once; a pipeline stage reads only
 * the headers of files where the index places one of its tensors.
 */
#ifndef D9D_MODEL_WEIGHTS_WEIGHTS_H
#define D9D_MODEL_WEIGHTS_WEIGHTS_H

#include "d9d/model/lora/adapters.h"
#include "d9d/model/params_io.h"
#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_weights d9d_weights;

/* Plan to load this stage from `dir`, with these adapters merged (borrowed; NULL: none).  Allocates
 * no weights.  ENOTFOUND, EFORMAT, EMISMATCH, ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_open(const d9d_model_spec *m, d9d_stage stage,
                                                 const char *dir, const d9d_adapters *ad,
                                                 d9d_weights **out);
/* Check by names that `dir` has the tensors of the whole model, and nothing else.  A stage cannot
 * know whether a tensor that it does not use belongs to another stage; call this first when there
 * are several.  EMISMATCH. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_check(const d9d_model_spec *m, const char *dir,
                                                  const d9d_adapters *ad);
D9D_API void d9d_weights_close(d9d_weights *w);
D9D_API const d9d_map_plan *d9d_weights_plan(const d9d_weights *w); /* borrowed */

/* `params` must be materialised, with the type of the spec's options. */
D9D_API D9D_MUST_USE d9d_status d9d_weights_read(const d9d_weights *w, const d9d_params *params,
                                                 const d9d_log *log);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_WEIGHTS_WEIGHTS_H */
