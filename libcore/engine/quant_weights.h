/* quant_weights.h - a frozen base in 8 or 4 bits: the matrices of a model's layers are quantised as
 * they are loaded (d9d/kernels/quant.h), and linear operations read them so.
 *
 *     "trainer": {"model_stage_factory": {"quantization": "nf4", ...}}
 *
 * In training adapters alone are trained (QLoRA); in inference nothing is.  A row of a matrix is
 * quantised whole, whichever part of it a rank has: every mesh has the same bytes.
 */
#ifndef D9DI_ENGINE_QUANT_WEIGHTS_H
#define D9DI_ENGINE_QUANT_WEIGHTS_H

#include "engine/engine.h"

/* ENOTSUP, ECONFIG if a model with these parameters, divided over the mesh, cannot be had so. */
d9d_status d9di_engine_quant_check(const d9d_params *whole, const d9di_engine_opts *opts);
/* Before parameters are placed and have memory. */
void d9di_engine_quant_apply(const d9d_params *params, d9d_quant_format f);

#endif /* D9DI_ENGINE_QUANT_WEIGHTS_H */
