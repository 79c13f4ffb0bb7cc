/* sim_private.h - what the files of the paper backend share. */
#ifndef D9DI_SIM_SIM_PRIVATE_H
#define D9DI_SIM_SIM_PRIVATE_H

#include "d9d/kernels/sim.h"

/* A kernel of kind `kind` on elements of type `t` was queued. */
d9d_status d9di_sim_charge(d9d_stream s, d9d_sim_kind kind, d9d_dtype t, double flops,
                           double bytes);
/* It borrows so many bytes, and gives them back at once. */
d9d_status d9di_sim_use_scratch(d9d_stream s, int64_t bytes);

/* How many choices of an array are not -1: noted by who makes it, until the next is; or what its
 * reader takes for it. */
void d9di_sim_set_choices(d9d_stream s, const int32_t *expert, double choices);
double d9di_sim_get_choices(d9d_stream s, const int32_t *expert, double otherwise);

/* --- scratch of the CUDA kernels ------------------------------------------------------------ */

/* The first of a shape borrows room for trials too, and remembers it: kernels/cuda/gemm/cublaslt.c.
 */
d9d_status d9di_sim_gemm_scratch(d9d_stream s, const d9d_gemm *g);
/* cuDNN's, or the gradient of our own on Hopper. */
bool d9di_sim_attention_on_tensor_cores(d9d_stream s, const d9d_attention_dims *n, bool backward);
/* Numbers of rows; of cuDNN's gradient scores too. */
d9d_status d9di_sim_attention_scratch(d9d_stream s, const d9d_attention_dims *n, bool backward);

d9d_status d9di_sim_gated_delta_scratch(d9d_stream s, const d9d_gated_delta_dims *n, bool backward);

typedef enum d9di_sim_cross_entropy_pass {
    D9DI_SIM_CROSS_ENTROPY_FWD,
    D9DI_SIM_CROSS_ENTROPY_FWD_DGRAD,
    D9DI_SIM_CROSS_ENTROPY_WGRAD,
    D9DI_SIM_CROSS_ENTROPY_FWD_BWD
} d9di_sim_cross_entropy_pass;
d9d_status d9di_sim_cross_entropy_scratch(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                          d9di_sim_cross_entropy_pass what);
/* Tokens that linear_cross_entropy_fwd_bwd takes at a time. */
int64_t d9di_sim_cross_entropy_tokens(const d9d_linear_cross_entropy_dims *n);

/* Shapes that were seen: true for the first time. */
d9d_status d9di_sim_is_new_shape(d9d_stream s, const d9d_gemm *g, bool *out);

#endif /* D9DI_SIM_SIM_PRIVATE_H */
