/* fp8.h - the matrices of a model's layers are multiplied in 8 bits (d9d/tape/param.h,
 * engine/layer_matrices.h). */
#ifndef D9DI_ENGINE_FP8_H
#define D9DI_ENGINE_FP8_H

#include "d9d/job/job.h"
#include "d9d/nn/module.h"

/* ENOTSUP, ECONFIG if a model with these parameters, divided over so many ranks, cannot be trained
 * so. */
d9d_status d9di_engine_fp8_check(const d9d_job_fp8_section *fp8, const d9d_params *whole,
                                 int64_t tensor_parallel);
/* Give parameters a recipe, which must live as long as they.  ENOTSUP if the device has no products
 * of 8 bits. */
d9d_status d9di_engine_fp8_apply(const d9d_job_fp8_section *fp8, const d9d_device *dev,
                                 const d9d_params *params, d9d_quantised_recipe *recipe);

/* Says which keys have no effect on this mesh. */
void d9di_engine_fp8_log(const d9d_job_fp8_section *fp8, const d9d_parallel_degrees *mesh,
                         const d9d_log *log);

#endif /* D9DI_ENGINE_FP8_H */
