/* cuda_options.h - the choice of kernels that the environment makes.
 *
 *     D9D_BACKEND_AUTO_SDPA='{"kind": "cudnn", "deterministic": false}'
 *
 * says by which kernels a GPU does attention.  The kinds of PyTorch programs are understood:
 *
 *     cudnn, flash_attention_2, flash_attention_4    the fused kernels that there are: cuDNN
 *     torch    the same, unless "backends" is a list without CUDNN_ATTENTION
 *     eager    plain kernels of our own
 *
 * Gradients are deterministic unless the kind cudnn says otherwise; "scratch_mb" (4096) bounds the
 * memory that it takes.
 */
#ifndef D9D_DEVICE_CUDA_OPTIONS_H
#define D9D_DEVICE_CUDA_OPTIONS_H

#include "d9d/kernels/cuda.h"

/* ECONFIG names the variable and what is wrong with it. */
d9d_status d9di_device_cuda_opts(d9d_cuda_opts *out);

#endif /* D9D_DEVICE_CUDA_OPTIONS_H */
