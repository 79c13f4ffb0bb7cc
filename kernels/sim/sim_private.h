/* sim_private.h - what the files of the simulated backend share. */
#ifndef D9DI_SIM_SIM_PRIVATE_H
#define D9DI_SIM_SIM_PRIVATE_H

#include "d9d/kernels/sim.h"

/* Charges a kernel of kind `kind` on elements of type `t`. */
d9d_status d9di_sim_charge(d9d_stream s, d9d_sim_kind kind, d9d_dtype t, double flops,
                           double bytes);
/* Allocates that many bytes of scratch and frees them at once, for the peak. */
d9d_status d9di_sim_use_scratch(d9d_stream s, int64_t bytes);

/* Choices of an array that are not -1, and how unevenly they are spread: d9d_sim_set_expert_load().
 * set: the producer of an array notes them, until the next array.  get: its reader's, noted or
 * assumed. */
typedef struct d9di_sim_choices {
    double n, most;
} d9di_sim_choices;
void d9di_sim_set_choices(d9d_stream s, const int32_t *expert, d9di_sim_choices choices);
d9di_sim_choices d9di_sim_get_choices(d9d_stream s, const int32_t *expert,
                                      d9di_sim_choices otherwise);
/* Choices of a row that came from other ranks: of k, those of the experts of one rank.  Who sends
 * rows to ranks of `per` experts, by a list `rank`, notes how many a row has; the next other list
 * of k choices of `per` experts is what came, and its address is known from then on. */
void d9di_sim_note_sent(d9d_stream s, const int32_t *rank, int64_t per, int64_t k,
                        d9di_sim_choices each);
/* Of a row: k, or fewer of a list that came or, with e experts, is the next one. */
d9di_sim_choices d9di_sim_received_choices(d9d_stream s, const int32_t *expert, int64_t e,
                                           int64_t k);

/* --- scratch of the CUDA kernels ------------------------------------------------------------ */

/* The first GEMM of a shape also needs scratch for its trial: kernels/cuda/gemm/cublaslt.c. The
 * shape is remembered. */
d9d_status d9di_sim_gemm_scratch(d9d_stream s, const d9d_gemm *g);
/* The largest magnitudes of rows and columns. */
d9d_status d9di_sim_fp8_quantise_scratch(d9d_stream s, int64_t m, int64_t n);
/* A matrix that is dequantised for a product. */
d9d_status d9di_sim_quant_scratch(d9d_stream s, const d9d_gemm *g, const d9d_quant_matrix *w);
/* True if cuDNN or the Hopper backward computes the call. */
bool d9di_sim_attention_on_tensor_cores(d9d_stream s, const d9d_attention_dims *n, bool backward);
/* Per-row statistics, and the scores of cuDNN's backward. */
d9d_status d9di_sim_attention_scratch(d9d_stream s, const d9d_attention_dims *n, bool backward);

/* Partial results of a long axis; `ties`: and the counts of equal maxima. */
d9d_status d9di_sim_reduce_axis_scratch(d9d_stream s, const d9d_reduce_axis_dims *d, bool ties);
/* Of the splits of rows; `limited`: by top_k or top_p. */
d9d_status d9di_sim_sample_tokens_scratch(d9d_stream s, int64_t rows, bool limited);
d9d_status d9di_sim_gated_delta_scratch(d9d_stream s, const d9d_gated_delta_dims *n, bool backward);

typedef enum d9di_sim_cross_entropy_pass {
    D9DI_SIM_CROSS_ENTROPY_FWD,
    D9DI_SIM_CROSS_ENTROPY_FWD_DGRAD,
    D9DI_SIM_CROSS_ENTROPY_WGRAD,
    D9DI_SIM_CROSS_ENTROPY_FWD_BWD
} d9di_sim_cross_entropy_pass;
d9d_status d9di_sim_cross_entropy_scratch(d9d_stream s, const d9d_linear_cross_entropy_dims *n,
                                          d9di_sim_cross_entropy_pass what);
/* Tokens per block of linear_cross_entropy_fwd_bwd. */
int64_t d9di_sim_cross_entropy_tokens(const d9d_linear_cross_entropy_dims *n);

/* True for the first GEMM of a shape, which is remembered. */
d9d_status d9di_sim_is_new_shape(d9d_stream s, const d9d_gemm *g, bool *out);

#endif /* D9DI_SIM_SIM_PRIVATE_H */
