/* attention.h - attention over segments (FlashAttention, split-KV), its sink, and zigzag order.
 *
 *     D9D_TRY(k->attention->fwd(s, &dims, o, lse, q, k, v));
 *     D9D_TRY(k->attention->bwd(s, &dims, dq, dk, dv, dout, q, k, v, o, lse));
 *
 * The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/attention.
 */
#ifndef D9D_KERNELS_ATTENTION_H
#define D9D_KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/rng.h"
#include "d9d/base/status.h"
#include "d9d/kernels/segment.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* S queries and Z keys per row; q [B, S, A, D], k [B, Z, KV, D], v [B, Z, KV, DV], o [B, S, A, DV],
 * lse [B, A, S] float32; a gradient has the shape of its array. segment.h has drawings of the
 * causal mask, the window, the chunks and the list of segments. */
enum { D9D_ATTENTION_MAX_CHUNKS = 2 }; /* limit of `chunks` */

/* Dropout of the probabilities, behind the softmax: that of query i and key j of its segment, from
 * 0, is 0 where random number token[i] width + j of a stream, uniform in [0, 1), is below p; else
 * it is divided by 1 - p. Head h has the stream rng.stream + h. lse is that without dropout. */
typedef struct d9d_attention_dropout {
    float p; /* 0: none, and the rest is not read; else below 1 */
    d9d_rng rng;
    const int64_t *token; /* [B, S], on the device */
    int64_t width;
} d9d_attention_dropout;

/* Ring attention: k and v have the keys [first, first + n) of each row alone, while segments still
 * count all Z.  fwd() gives a query that sees none of them o = 0 and lse = -inf; merge() joins the
 * parts.  bwd() of a part, with o and lse of all keys, gives its dk and dv, and its share of dq. */
typedef struct d9d_attention_key_part {
    int64_t first, n; /* n 0: all Z */
} d9d_attention_key_part;

typedef struct d9d_attention_dims {
    d9d_dtype t;
    int64_t b, s, z, a, kv, d;
    int64_t dv;           /* features of a value, and of an output; 0: d */
    float scale, softcap; /* score = softcap tanh(scale q.k / softcap); softcap 0: scale q.k */
    bool causal;
    int64_t segments;
    const d9d_segment *segment; /* [segments], or NULL */
    const int32_t *prefix;      /* [segments]: keys of a prefix mask (segment.h), with a list under
                                   a causal mask; or NULL */
    bool decode;    /* k and v are a KV cache, and most segments have one or a few queries: another
                       algorithm (split-KV) may be used, whose last bits differ; forward only. No
                       kernel still in flight may write the list, which is prefetched */
    int64_t window; /* sliding window (segment.h); 0: none */
    int64_t chunks; /* per row of queries; 0: one or, with a list, unknown */
    int64_t chunk_end[D9D_ATTENTION_MAX_CHUNKS]; /* without a list: how many of the row's keys
                                                    each chunk sees */
    d9d_attention_dropout dropout;               /* not with `decode` */
    d9d_attention_key_part part;                 /* not with `decode` */
    const float *k_scale, *v_scale; /* [B, Z, KV], with `decode`: k and v are codes of e4m3, as
                                       kv_append_fp8() writes them; NULL: of type t */
} d9d_attention_dims;

/* The same with dv set. */
static inline d9d_attention_dims d9d_attention_dims_resolve(const d9d_attention_dims *n)
{
    d9d_attention_dims x = *n;

    x.dv = n->dv > 0 ? n->dv : n->d;
    return x;
}

/* Keys of a row that k and v have. */
static inline int64_t d9d_attention_array_keys(const d9d_attention_dims *n)
{
    return n->part.n > 0 ? n->part.n : n->z;
}

/* An array of kv_append_fp8(). */
enum { D9D_ATTENTION_APPEND_FP8_MAX = 2 };
typedef struct d9d_attention_append_fp8 {
    const void *x;
    void *codes;
    float *scale;
} d9d_attention_append_fp8;

typedef struct d9d_attention_kernels {
    d9d_status (*fwd)(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse, const void *q,
                      const void *k, const void *v);
    d9d_status (*bwd)(d9d_stream s, const d9d_attention_dims *n, void *dq, void *dk, void *dv,
                      const void *dout, const void *q, const void *k, const void *v, const void *o,
                      const float *lse);
    /* Attention sink: a learned logit per head, sink [A] of type t, that takes part in the softmax
     * of every query and has no value. Applied in place to what fwd() wrote: o becomes o
     * exp(lse) / exp(lse'), rounded once more, and lse becomes lse' = log(exp(lse) + exp(sink)).
     * bwd() of these o and lse is the gradient with the sink. */
    d9d_status (*sink)(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                       const void *sink);
    /* dsink = beta dsink - the sum over queries of exp(sink - lse') dout . o' */
    d9d_status (*sink_wgrad)(d9d_stream s, const d9d_attention_dims *n, d9d_dtype gt, void *dsink,
                             float beta, const void *dout, const void *o, const float *lse,
                             const void *sink);
    /* Adds o and lse of a part of the keys to those of the parts before, float32 acc [B, S, A, DV]
     * and acc_lse [B, A, S].  With l = log(exp(acc_lse) + exp(lse)), acc becomes
     * acc exp(acc_lse - l) + o exp(lse - l), and acc_lse becomes l.  Where lse is -inf both stay.
     * first: there are none before, and acc and acc_lse are not read. */
    d9d_status (*merge)(d9d_stream s, const d9d_attention_dims *n, bool first, float *acc,
                        float *acc_lse, const void *o, const float *lse);
    /* Context-parallel zigzag order. A row consists of 2n chunks of P tokens of W elements, of
     * which rank r of n has chunks r and 2n - 1 - r (d9d/nn/parallel_groups.h). in_order: y [B, 2n,
     * P, W] in sequence order from x [n, B, 2, P, W] in rank order; else the inverse. */
    d9d_status (*cp_zigzag)(d9d_stream s, d9d_dtype t, void *y, const void *x, int64_t n, int64_t b,
                            int64_t p, int64_t w, bool in_order);
    /* Keys and values of new tokens to a KV cache in 8 bits, n arrays at a time: row i of x
     * [M, KV, D] of type t becomes slot at[i] of codes [Z, KV, D] and scale [Z, KV]; a negative
     * slot is none.  A code is e4m3, a scale that of fp8.h for one token's head: so their product
     * is exact in type t, and within 2^-4 of the element, or within 2^-10 of the scale, which is
     * below 1/224 of the head's largest magnitude.  Elements that are not finite become NaN. */
    d9d_status (*kv_append_fp8)(d9d_stream s, d9d_dtype t, int n,
                                const d9d_attention_append_fp8 *list, const int32_t *at, int64_t m,
                                int64_t kv, int64_t d);
} d9d_attention_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_ATTENTION_KERNELS(X)                                                                   \
    X(attention, fwd, attention)                                                                   \
    X(attention, bwd, attention_bwd)                                                               \
    X(attention, sink, attention_sink)                                                             \
    X(attention, sink_wgrad, attention_sink_wgrad)                                                 \
    X(attention, merge, attention_merge)                                                           \
    X(attention, cp_zigzag, cp_zigzag)                                                             \
    X(attention, kv_append_fp8, kv_append_fp8)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_ATTENTION_H */
