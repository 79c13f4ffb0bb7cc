/* attention_simt.h - softmax attention: the call, and the ways to do it. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_SIMT_H
#define D9DI_CUDA_ATTENTION_ATTENTION_SIMT_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Forward: o and lse from q k v.  Backward, where dout is given: dq dk dv from all others. */
typedef struct d9di_attention_call {
    const char *op;
    d9d_attention_dims n;
    const void *q, *k, *v, *dout;
    void *o, *dq, *dk, *dv; /* o is read by the backward */
    float *lse;             /* likewise */
} d9di_attention_call;

/* Bytes that gradients of scores may take. */
static inline int64_t d9di_attention_max_score_bytes(d9d_stream s)
{
    return s->opts.max_score_bytes > 0 ? s->opts.max_score_bytes : D9DI_ATTENTION_MAX_SCORE_BYTES;
}

/* Arrays of a call in scratch, of a size that the call decides; without `at` it measures. */
typedef struct d9di_cuda_arena {
    char *base;
    int64_t used;
} d9di_cuda_arena;

static inline void *d9di_cuda_arena_alloc(d9di_cuda_arena *r, int64_t bytes)
{
    void *p = r->base != NULL ? r->base + r->used : NULL;

    r->used += d9di_i64_round_up(bytes, 256);
    return p;
}

/* By cuDNN in bfloat16, heads of up to 256 features by 8, rows with as many keys as queries or
 * pieces of rows; *done is false when it does not take the call. */
d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention_call *c, bool *done);
/* By tiles of our own in float32, for any shape and type. */
d9d_status d9di_attention_simt(d9d_stream s, const d9di_attention_call *c);
d9d_status d9di_attention_bwd_simt(d9d_stream s, const d9di_attention_call *c);

/* The gradient on Hopper by tensor cores, causal, in bfloat16, heads of up to 256 features by 8,
 * where plain kernels are not asked for. */
bool d9di_attention_bwd_sm90_supported(d9d_stream s, const d9di_attention_call *c);
d9d_status d9di_attention_bwd_sm90(d9d_stream s, const d9di_attention_call *c);

/* By splits over the keys, where there are few queries and more keys: for any type and shape. */
bool d9di_attention_decode_supported(const d9di_attention_call *c);
d9d_status d9di_attention_decode(d9d_stream s, const d9di_attention_call *c);

/* What cuDNN's way keeps: the library, and plans by shape. */
void d9di_cudnn_attention_free(d9di_cudnn_attention *x);

/* The segments of rows that have no list, [B, max(1, pieces)]. */
d9d_status d9di_attention_varlen_list(d9d_stream s, const d9di_attention_call *c,
                                      d9d_segment *list);

/* Where documents lie and how long they are, on the GPU.  Offsets are of elements. */
typedef struct d9di_attention_varlen_offsets {
    int32_t *len_q, *len_k;                    /* queries and keys, [room] */
    int64_t *offset_q, *offset_k, *offset_lse; /* [room + 1] */
} d9di_attention_varlen_offsets;

/* Documents as cuDNN wants them: `room` of them, those that are not there of length 0.
 * They have as many keys as queries, or are `longer`; of shortest to longest queries; and begin in
 * rows [row, row + rows), in positions [from, from + positions) of a row of queries. */
typedef struct d9di_attention_varlen {
    bool longer;
    int64_t min_len, max_len, capacity;
    int64_t row, rows, from, positions;
    d9di_attention_varlen_offsets at;
} d9di_attention_varlen;
d9d_status d9di_attention_varlen_find(d9d_stream s, const d9di_attention_call *c,
                                      const d9di_attention_varlen *d);

/* To the gradients of these documents' keys and values those in dk and dv, arrays like c's, in
 * bfloat16. */
d9d_status d9di_attention_varlen_add_dkv(d9d_stream s, const d9di_attention_call *c,
                                         const d9di_attention_varlen *d, const void *dk,
                                         const void *dv);

/* c->lse [B, A, S] to `packed` [B S, A], or back. */
d9d_status d9di_attention_lse_transpose(d9d_stream s, const d9di_attention_call *c, float *packed,
                                        bool to_packed);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_ATTENTION_ATTENTION_SIMT_H */
