/* attention_call.h - calls of attention, and what they must give by the definition in double.
 *
 *     attention_check(&(d9d_attention_dims){.t = D9D_F32, .b = 1, .s = 9, .z = 9, .a = 2, ...});
 *
 * Arrays are in host memory and have the shapes of d9d/kernels/attention.h.
 */
#ifndef D9D_TEST_ATTENTION_CALL_H
#define D9D_TEST_ATTENTION_CALL_H

#include "arrays.h"

typedef struct attention_call {
    d9d_attention_dims n;
    void *q, *k, *v, *dout, *o, *grads; /* grads: dq, dk, dv in one block */
    float *lse;
    void *sink, *dsink; /* [A], or NULL */
} attention_call;

/* Elements of q, k, v, o, and of dq, dk and dv together. */
int64_t attention_q_size(const d9d_attention_dims *n);
int64_t attention_k_size(const d9d_attention_dims *n);
int64_t attention_v_size(const d9d_attention_dims *n);
int64_t attention_o_size(const d9d_attention_dims *n);
int64_t attention_grads_size(const d9d_attention_dims *n);

/* Random inputs and poisoned outputs, without a sink. */
attention_call attention_call_create(const d9d_attention_dims *n);
void attention_call_release(attention_call *p);

/* Element `first` of the gradients. */
void *attention_call_grad(const attention_call *p, int64_t first);

/* The kernels of the tests' device, for an attention_call: o and lse, then the gradients. */
void attention_call_fwd(void *call);
void attention_call_bwd(void *call);

/* The prefix of the segment of query i, counted over B and S. */
int64_t attention_prefix_of(const d9d_attention_dims *n, int64_t i);

/* Packed documents between bounds [documents + 1] as segments, into out [documents]. */
void attention_segments(const int32_t *bounds, int documents, d9d_segment *out);

/* o, lse and gradients (dq, dk, dv, dsink) by the definition: all scores, then the softmax.  All
 * must be zeros before. */
void attention_naive(const attention_call *p, double *o, double *lse, double *grads);

/* The kernels against the definition, with sinks or without; attention_check(): as it is, and under
 * one window or other with sinks. */
void attention_check_with(const d9d_attention_dims *n, bool sinks);
void attention_check(const d9d_attention_dims *n);

#endif /* D9D_TEST_ATTENTION_CALL_H */
