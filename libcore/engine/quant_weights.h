/* quant_weights.h - a frozen base in 8 or 4 bits: the matrices of a model's layers, and the tables
 * of its head, are quantised as they are loaded (d9d/kernels/quant.h), and operations read them so.
 *
 *     "trainer": {"model_stage_factory": {"quantization": "nf4", "head_quantization": "fp8", ...}}
 *
 * In training adapters alone are trained (QLoRA), and the head stays as it is; in inference nothing
 * is trained.  The head of a tied model is its embedding, which looks up rows of the same bytes.  A
 * row of a matrix is quantised whole, whichever part of it a rank has: every mesh has the same
 * bytes.
 */
#ifndef D9DI_ENGINE_QUANT_WEIGHTS_H
#define D9DI_ENGINE_QUANT_WEIGHTS_H

#include "engine/engine.h"

/* ENOTSUP, ECONFIG if a model with these parameters, divided over the mesh, cannot be had so. */
d9d_status d9di_engine_quant_check(const d9d_params *whole, const d9di_engine_opts *opts);
/* Before parameters are placed and have memory. */
void d9di_engine_quant_apply(const d9d_params *params, const d9di_engine_quant *q);

#endif /* D9DI_ENGINE_QUANT_WEIGHTS_H */
