/* gdn.h - Gated DeltaNet: causal convolution, gate and gated delta rule, of whole documents or
 * continued from a saved state (causal_conv1d_update, gated_delta_step).
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/gdn.
 */
#ifndef D9D_KERNELS_GDN_H
#define D9D_KERNELS_GDN_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"
#include "d9d/kernels/segment.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Causal depthwise 1-D convolution over the last W tokens of a document: x y [B, S, N] of N
 * channels, w [N, W]. */
enum { D9D_CAUSAL_CONV1D_MAX_WIDTH = 8 }; /* limit of `w` */
typedef struct d9d_causal_conv1d_dims {
    d9d_dtype t;
    d9d_varlen docs;
    int64_t n, w;
} d9d_causal_conv1d_dims;

/* Gated delta rule: q k [B, S, K, D], v o [B, S, A, F]. The log gate g [B, S, A] is float32 and at
 * most 0; b [B, S, A] is the logit of the write strength beta = sigmoid(b). Head h of A reads head
 * h / (A/K) of K. q and k are L2-normalised (|x|^2 + 1e-6 under the root), and q is multiplied by
 * `scale`. A head's state X [D, F] is 0 at the beginning of a document and follows
 *
 *     X_t = e^g X_(t-1) + k (sigmoid(b) (v - (e^g X_(t-1))' k))'        o_t = X_t' q
 *
 * The tokens of a document are computed in chunks. The backward pass needs the state before each
 * chunk but the first of a document: [d9d_gated_delta_states(), A, D, F] float32. The state of the
 * chunk that begins with token t, counted over B and S, is in slot t / D9D_GATED_DELTA_CHUNK - 1.
 * Other slots are undefined. A GPU may keep them in a form of its own (bfloat16, transposed): the
 * states of `gated_delta` are for `gated_delta_bwd` of the same device and dimensions. */
enum { D9D_GATED_DELTA_CHUNK = 64 };
typedef struct d9d_gated_delta_dims {
    d9d_dtype t;
    d9d_varlen docs;
    int64_t k, a, d, f;
    float scale;
} d9d_gated_delta_dims;
static inline int64_t d9d_gated_delta_states(const d9d_varlen *of)
{
    return of->b * of->s / D9D_GATED_DELTA_CHUNK;
}

/* Recurrent state of documents between calls, in generation: document i reads its state from slot
 * slot_index[i] and writes the new one there. nk - nq of its tokens came before this call; if none
 * did, the state starts from zero, whatever the slot holds. No two documents with tokens share a
 * slot. */
typedef struct d9d_state_slots {
    void *slots;               /* [R, ...] */
    const int32_t *slot_index; /* [segments] */
} d9d_state_slots;

/* One of the arrays (q, k or v) of causal_conv1d_update: x y [B, S, N], w [N, W]; a slot [W - 1, N]
 * of their type holds the last tokens. */
typedef struct d9d_causal_conv1d_array {
    int64_t n;
    d9d_state_slots past;
    void *y;
    const void *x, *w;
} d9d_causal_conv1d_array;

typedef struct d9d_gdn_kernels {
    /* y = silu(z), with z the sum over j of w[j] times the token W - 1 - j before. */
    d9d_status (*causal_conv1d)(d9d_stream s, const d9d_causal_conv1d_dims *n, void *y,
                                const void *x, const void *w);
    /* dx or dw may be NULL. */
    d9d_status (*causal_conv1d_bwd)(d9d_stream s, const d9d_causal_conv1d_dims *n, void *dx,
                                    d9d_dtype gt, void *dw, float beta, const void *dy,
                                    const void *x, const void *w);
    /* causal_conv1d() of several arrays of the same tokens, which continue from their slots. n->n
     * is ignored: each array has its own. */
    d9d_status (*causal_conv1d_update)(d9d_stream s, const d9d_causal_conv1d_dims *n, int count,
                                       const d9d_causal_conv1d_array *of);
    /* Gate of the gated delta rule: g = -exp(rate) log(1 + exp(x + bias)); x [M, N], rate bias [N],
     * g float32. */
    d9d_status (*gate)(d9d_stream s, d9d_dtype t, float *g, const void *x, const void *rate,
                       const void *bias, int64_t m, int64_t n);
    d9d_status (*gate_dgrad)(d9d_stream s, d9d_dtype t, void *dx, const float *dg, const void *x,
                             const void *rate, const void *bias, int64_t m, int64_t n);
    /* The gradient of rate or of bias. */
    d9d_status (*gate_wgrad)(d9d_stream s, d9d_dtype t, d9d_dtype gt, void *dw, float beta,
                             bool of_bias, const float *dg, const void *x, const void *rate,
                             const void *bias, int64_t m, int64_t n);
    d9d_status (*gated_delta)(d9d_stream s, const d9d_gated_delta_dims *n, void *o, float *states,
                              const void *q, const void *k, const void *v, const float *g,
                              const void *b);
    d9d_status (*gated_delta_bwd)(d9d_stream s, const d9d_gated_delta_dims *n, void *dq, void *dk,
                                  void *dv, float *dg, void *db, const void *dout, const void *q,
                                  const void *k, const void *v, const float *g, const void *b,
                                  const float *states);
    /* As gated_delta(), token by token; a slot [A, D, F] float32 holds the state. On the CPU a
     * document's results have the same bits however it was split into calls. */
    d9d_status (*gated_delta_step)(d9d_stream s, const d9d_gated_delta_dims *n,
                                   const d9d_state_slots *past, void *o, const void *q,
                                   const void *k, const void *v, const float *g, const void *b);
} d9d_gdn_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_GDN_KERNELS(X)                                                                         \
    X(gdn, causal_conv1d, causal_conv1d)                                                           \
    X(gdn, causal_conv1d_bwd, causal_conv1d_bwd)                                                   \
    X(gdn, causal_conv1d_update, causal_conv1d_update)                                             \
    X(gdn, gate, gdn_gate)                                                                         \
    X(gdn, gate_dgrad, gdn_gate_dgrad)                                                             \
    X(gdn, gate_wgrad, gdn_gate_wgrad)                                                             \
    X(gdn, gated_delta, gated_delta)                                                               \
    X(gdn, gated_delta_bwd, gated_delta_bwd)                                                       \
    X(gdn, gated_delta_step, gated_delta_step)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_GDN_H */
