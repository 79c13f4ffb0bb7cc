/* cuda_options.h - kernel choices from the environment.
 *
 *     D9D_BACKEND_AUTO_SDPA='{"kind": "cudnn", "deterministic": false}'
 *
 * chooses the attention kernels of a GPU.  The kinds that PyTorch programs use are understood:
 *
 *     cudnn, flash_attention_2, flash_attention_4    the fused kernels that there are: cuDNN
 *     torch    the same, unless "backends" is a list without CUDNN_ATTENTION
 *     eager    our own unfused kernels
 *
 * Gradients are deterministic unless the kind cudnn says otherwise; "scratch_mb" (4096) bounds its
 * workspace.
 */
#ifndef D9D_DEVICE_CUDA_OPTIONS_H
#define D9D_DEVICE_CUDA_OPTIONS_H

#include "d9d/kernels/cuda.h"

/* ECONFIG names the variable and the error. */
d9d_status d9di_device_cuda_opts(d9d_cuda_opts *out);

#endif /* D9D_DEVICE_CUDA_OPTIONS_H */
