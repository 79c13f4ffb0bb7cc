/* op_qk_heads.h - checks of QK norm, RoPE and KV-cache append, shared by the fused ops.
 */
#ifndef D9DI_OP_NORM_OP_QK_HEADS_H
#define D9DI_OP_NORM_OP_QK_HEADS_H

#include "op/op_common.h"

/* EINVAL unless x, its weight and its rotation fit. */
d9d_status d9di_op_norm_rope_check(const d9d_tensor *x, const d9d_param *w,
                                   const d9d_op_norm_rope_opts *opts);
d9d_qk_norm_rope_dims d9di_op_norm_rope_dims(const d9d_tensor *x, const d9d_op_norm_rope_opts *opts,
                                             const d9d_tensor *positions,
                                             const d9d_tensor *inv_freq);

/* EINVAL unless x fits the slots `at` of the cache.  The view is the cache as attention reads it.
 */
d9d_status d9di_op_kv_append_check(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                   const d9d_tensor *cache);
/* The same of a cache in 8 bits; x as the kernel takes it. */
d9d_status d9di_op_kv_append_fp8_check(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                       const d9d_tensor *codes, const d9d_tensor *scale);
d9d_attention_append_fp8 d9di_op_kv_append_fp8_array(d9d_var *x, const d9d_tensor *codes,
                                                     const d9d_tensor *scale);
d9d_status d9di_op_kv_cache_view(d9d_tape *t, const d9d_tensor *cache, d9d_var **y);

#endif /* D9DI_OP_NORM_OP_QK_HEADS_H */
