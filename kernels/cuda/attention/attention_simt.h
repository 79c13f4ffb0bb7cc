/* attention_simt.h - softmax attention: the call, and the ways to do it. */
#ifndef D9DI_CUDA_ATTENTION_ATTENTION_SIMT_H
#define D9DI_CUDA_ATTENTION_ATTENTION_SIMT_H

#include "cuda/common/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Forward: o and lse from q k v.  Backward, where dout is given: dq dk dv from all others. */
typedef struct d9di_attention {
    const char *op;
    d9d_attention_dims n;
    const void *q, *k, *v, *dout;
    void *o, *dq, *dk, *dv; /* o is read by the backward */
    float *lse;             /* likewise */
} d9di_attention;

/* Bytes that gradients of scores may take. */
static inline int64_t d9di_attention_scratch(d9d_stream s)
{
    return s->options.scratch > 0 ? s->options.scratch : D9DI_MOST_SCORES;
}

/* Arrays of a call in scratch, of a size that the call decides; without `at` it measures. */
typedef struct d9di_room {
    char *at;
    int64_t used;
} d9di_room;

static inline void *d9di_room_take(d9di_room *r, int64_t bytes)
{
    void *p = r->at != NULL ? r->at + r->used : NULL;

    r->used += d9di_round_up(bytes, 256);
    return p;
}

/* By cuDNN in bfloat16, heads of up to 256 features by 8, rows with as many keys as queries or
 * pieces of rows; *done is false when it does not take the call. */
d9d_status d9di_attention_cudnn(d9d_stream s, const d9di_attention *c, bool *done);
/* By tiles of our own in float32, for any shape and type. */
d9d_status d9di_attention_tiles(d9d_stream s, const d9di_attention *c);
d9d_status d9di_attention_tiles_din(d9d_stream s, const d9di_attention *c);

/* The gradient on Hopper by tensor cores, causal, in bfloat16, heads of up to 256 features by 8,
 * where plain kernels are not asked for. */
bool d9di_attention_din_wgmma_takes(d9d_stream s, const d9di_attention *c);
d9d_status d9di_attention_din_wgmma(d9d_stream s, const d9di_attention *c);

/* By splits over the keys, where there are few queries and more keys: for any type and shape. */
bool d9di_attention_few_takes(const d9di_attention *c);
d9d_status d9di_attention_few(d9d_stream s, const d9di_attention *c);

/* What cuDNN's way keeps: the library, and plans by shape. */
void d9di_sdpa_free(d9di_sdpa *x);

/* The segments of rows that have no list, [B, max(1, pieces)]. */
d9d_status d9di_documents_list(d9d_stream s, const d9di_attention *c, d9d_segment *list);

/* Where documents lie and how long they are, on the GPU.  Offsets are of elements. */
typedef struct d9di_places {
    int32_t *length, *length_k;    /* queries and keys, [room] */
    int64_t *at_q, *at_k, *at_lse; /* [room + 1] */
} d9di_places;

/* Documents as cuDNN wants them: `room` of them, those that are not there of length 0.
 * They have as many keys as queries, or are `longer`; of shortest to longest queries; and begin in
 * rows [row, row + rows), in positions [from, from + positions) of a row of queries. */
typedef struct d9di_documents {
    bool longer;
    int64_t shortest, longest, room;
    int64_t row, rows, from, positions;
    d9di_places at;
} d9di_documents;
d9d_status d9di_documents_find(d9d_stream s, const d9di_attention *c, const d9di_documents *d);

/* To the gradients of these documents' keys and values those in dk and dv, arrays like c's, in
 * bfloat16. */
d9d_status d9di_documents_add(d9d_stream s, const d9di_attention *c, const d9di_documents *d,
                              const void *dk, const void *dv);

/* c->lse [B, A, S] to `packed` [B S, A], or back. */
d9d_status d9di_lse_turn(d9d_stream s, const d9di_attention *c, float *packed, bool to_packed);

#ifdef __cplusplus
}
#endif
#endif /* D9DI_CUDA_ATTENTION_ATTENTION_SIMT_H */
