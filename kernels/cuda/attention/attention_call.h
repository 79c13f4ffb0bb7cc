/* attention_call.h - the arguments of an attention call, and the kernels that compute it. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_CALL_H
#define D9DI_CUDA_ATTENTION_ATTENTION_CALL_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments. Forward: o and lse from q k v. Backward, if dout is set: dq dk dv from all others. */
typedef struct d9di_attention_call {
    const char *op;
    d9d_attention_dims n;
    const void *q, *k, *v, *dout;
    void *o, *dq, *dk, *dv; /* the backward reads o */
    float *lse;             /* the backward reads lse */
    bool part;              /* n are rows of d9di_attention_part_as_rows() */
} d9di_attention_call;

/* Most bytes of scratch for dS. */
static inline int64_t d9di_attention_max_score_bytes(d9d_stream s)
{
    return s->opts.max_score_bytes > 0 ? s->opts.max_score_bytes : D9DI_ATTENTION_MAX_SCORE_BYTES;
}

/* Bump allocator for the arrays of a call in one scratch block. With `at` NULL it only measures. */
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

/* cuDNN, in bfloat16, causal, without a softcap: head sizes up to 256 that are multiples of 8, and
 * in the forward values of fewer features than keys; rows with as many keys as queries, packed
 * documents, context-parallel chunks, and parts of their keys without a partial mask. *done is
 * false if cuDNN does not support the call. */
bool d9di_attention_cudnn_supported(const d9di_attention_call *c);
d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention_call *c, bool *done);
/* cuDNN on copies of the arrays, in which the narrower of keys and values are padded with zeros. */
d9d_status d9di_attention_padded(d9d_stream s, const d9di_attention_call *c, bool *done);
/* SIMT tiles in float32, any shape and type. */
d9d_status d9di_attention_simt(d9d_stream s, const d9di_attention_call *c);
d9d_status d9di_attention_bwd_simt(d9d_stream s, const d9di_attention_call *c);

/* Backward with wgmma on Hopper: causal without a softcap, bfloat16, head sizes up to 256 that are
 * multiples of 8, unless the built-in SIMT kernels were selected. */
bool d9di_attention_bwd_sm90_supported(d9d_stream s, const d9di_attention_call *c);
d9d_status d9di_attention_bwd_sm90(d9d_stream s, const d9di_attention_call *c);

/* Split-KV decode, for a few queries and more keys: any type and shape, and a cache in 8 bits. */
bool d9di_attention_decode_supported(const d9di_attention_call *c);
d9d_status d9di_attention_decode(d9d_stream s, const d9di_attention_call *c);

/* Keys or values of a cache in 8 bits as y [rows, D] of type t. */
d9d_status d9di_attention_dequantise(d9d_stream s, const char *op, d9d_dtype t, void *y,
                                     const void *codes, const float *scale, int64_t rows,
                                     int64_t d);

/* Frees the cuDNN handle and the plans by shape. */
void d9di_cudnn_attention_free(d9di_cudnn_attention *x);

/* Writes the segments of rows that have no list, [B, max(1, chunks)]. */
d9d_status d9di_attention_varlen_list(d9d_stream s, const d9di_attention_call *c,
                                      d9d_segment *list);

/* Where documents lie and how long they are, on the GPU. Offsets count elements. */
typedef struct d9di_attention_varlen_offsets {
    int32_t *len_q, *len_k; /* [capacity]: queries and keys of each document */
    int64_t *offset_q, *offset_k, *offset_v, *offset_o, *offset_lse; /* [capacity + 1] */
} d9di_attention_varlen_offsets;

/* Documents in cuDNN's varlen form: `capacity` entries, of which missing ones have length 0. They
 * have as many keys as queries or, if `longer`, more. Their number of queries is within [min_len,
 * max_len]. They begin in rows [row, row + rows), at positions [from, from + positions) of a row of
 * queries. */
typedef struct d9di_attention_varlen {
    bool longer;
    int64_t min_len, max_len, capacity;
    int64_t row, rows, from, positions;
    d9di_attention_varlen_offsets at;
} d9di_attention_varlen;
d9d_status d9di_attention_varlen_find(d9d_stream s, const d9di_attention_call *c,
                                      const d9di_attention_varlen *d);

/* Adds dk and dv, arrays like c's in bfloat16, to the gradients of these documents' keys and
 * values. */
d9d_status d9di_attention_varlen_add_dkv(d9d_stream s, const d9di_attention_call *c,
                                         const d9di_attention_varlen *d, const void *dk,
                                         const void *dv);

/* Transposes c->lse [B, A, S] to `packed` [B S, A], or back. */
d9d_status d9di_attention_lse_transpose(d9d_stream s, const d9di_attention_call *c, float *packed,
                                        bool to_packed);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_ATTENTION_ATTENTION_CALL_H */
