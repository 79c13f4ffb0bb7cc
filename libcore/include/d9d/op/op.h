/* op.h - the operations that models are made of.
 *
 * Each op takes vars (arrays on a tape) and parameters, enqueues its forward at once, records its
 * dgrad and wgrad on the tape, and sets its last argument on success.
 *
 * Shape letters: B batch, S sequence length, T = B*S tokens, H hidden size, A query heads, K
 * key-value heads, D head size, I FFN size, E experts, V vocabulary, k experts a token.  A
 * dimension written ... is any number of leading dimensions.
 *
 * Activations and parameters are float32 or bfloat16, of one type within an op.  Statistics,
 * softmax and losses are float32.  Wrong shapes are EINVAL; the message has both shapes.  Each op
 * has a file of its own, libcore/op/op_NAME.c or libcore/op/FAMILY/op_NAME.c.
 */
#ifndef D9D_OP_OP_H
#define D9D_OP_OP_H

#include "d9d/base/hash.h"
#include "d9d/comm/comm.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x W^T.  x [..., in], w [out, in], y [..., out]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var **y);
/* y = x W^T + plus, where plus has y's shape: the residual is added before y is rounded. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_residual(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                       d9d_var *plus, d9d_var **y);
/* y = x W^T + b + plus, added before y is rounded; b [out] and plus may be NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_bias(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                   d9d_param *b, d9d_var *plus, d9d_var **y);
/* y = x W^T with the rows [first, first + n) of W only: y [..., n]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_slice(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                    int64_t first, int64_t n, d9d_var **y);
/* y = x W of a constant x: sums of rows of W.  x [M, V] without gradient, NULL: one row of ones.
 * w [V, H], y [M, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_transposed(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                         d9d_var **y);
/* d9d_op_linear_slice() for n weights in one op (QKV, or gate and up): x is read once for all.  A
 * bias is added in the product, by its elements of the same rows.
 * Rows of x may still be in flight (d9d_op_all_gather_rows_start()); `coming` may be NULL. */
enum { D9D_OP_LINEAR_MULTI_MAX = 6 };
typedef struct d9d_op_weight_slice {
    d9d_param *w;
    int64_t first, n;
    d9d_param *bias; /* NULL: none */
} d9d_op_weight_slice;
typedef struct d9d_op_pending_rows d9d_op_pending_rows;
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_multi(d9d_tape *t, d9d_var *x,
                                                    d9d_op_pending_rows *coming,
                                                    const d9d_op_weight_slice *of, size_t n,
                                                    d9d_var **y);
/* d9d_op_linear(), then d9d_op_reduce_scatter_rows() over comm, then + plus unless that is NULL.
 * The rows of other ranks are sent while the rest is computed (overlap).  comm has several ranks.
 * x [T, in], plus and y [T / ranks, out]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_reduce_scatter(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                             d9d_comm *comm, const char *what,
                                                             d9d_var *plus, d9d_var **y);

/* y [n] = elements [first, first + n) of a parameter, for ops that take arrays, such as those of
 * d9d/op/math.h. */
D9D_API D9D_MUST_USE d9d_status d9d_op_param(d9d_tape *t, d9d_param *p, int64_t first, int64_t n,
                                             d9d_var **y);

/* y = a + b, which broadcast as in d9d/op/math.h. */
D9D_API D9D_MUST_USE d9d_status d9d_op_add(d9d_tape *t, d9d_var *a, d9d_var *b, d9d_var **y);

/* y = s x; with s = 1 y is x itself. */
D9D_API D9D_MUST_USE d9d_status d9d_op_scale(d9d_tape *t, d9d_var *x, float s, d9d_var **y);
/* y = a + s b, of one shape, rounded once. */
D9D_API D9D_MUST_USE d9d_status d9d_op_add_scaled(d9d_tape *t, d9d_var *a, float s, d9d_var *b,
                                                  d9d_var **y);

/* Dropout: an element of y is 0 with probability p, else x / (1 - p).  y is x itself where p is 0
 * or the tape has no d9d_tape_set_dropout_rng(), as outside training.  x [..., N]; its rows are all
 * tokens of the RNG or its part of them; others must have been begun with d9d_tape_begin_rows(),
 * else EINVAL.
 *
 * Each site, a place in a layer, has random numbers of its own: number token * width + column of
 * the stream d9d_op_dropout_stream(site).  So the mask of a token is the same on every mesh, in
 * every micro-batch and in a recomputation.  It is drawn again in backward and never stored. */
typedef struct d9d_op_dropout_opts {
    float p;
    const d9d_param *site;  /* a parameter beside which nothing else has dropout; names the site */
    int64_t first, width;   /* x has the columns [first, first + N) of `width`; width 0: all, N */
    const d9d_tensor *rows; /* [M] int64: tokens that the rows of x [M, N] stand for; NULL: those of
                               the RNG */
} d9d_op_dropout_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_dropout(d9d_tape *t, d9d_var *x,
                                               const d9d_op_dropout_opts *opts, d9d_var **y);
static inline bool d9d_op_dropout_is_active(const d9d_tape *t, float p)
{
    return p != 0 && d9d_tape_dropout_rng(t) != NULL;
}
static inline uint64_t d9d_op_dropout_stream(const d9d_param *site)
{
    return d9d_hash_u64(&site->id, sizeof(site->id));
}

/* y = x + b for each row, where b is the N elements of a parameter from `first` on.  x [..., N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_add_bias(d9d_tape *t, d9d_var *x, d9d_param *b,
                                                int64_t first, d9d_var **y);

/* The same elements in another shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_reshape(d9d_tape *t, d9d_var *x, d9d_shape shape,
                                               d9d_var **y);

/* Concatenation along the last dimension.  Input i fills the next n columns of y [..., M] with its
 * columns [first, first + n); columns that no input fills are zero.  An x with as many rows as y
 * gives each row its own values.  An x with one row for each of y's [..., A, M] is broadcast to all
 * A heads.  At most D9D_NODE_MAX inputs. */
typedef struct d9d_op_concat_input {
    d9d_var *x;
    int64_t first, n;
} d9d_op_concat_input;
D9D_API D9D_MUST_USE d9d_status d9d_op_concat(d9d_tape *t, const d9d_op_concat_input *inputs,
                                              size_t n, d9d_shape shape, d9d_var **y);

/* RMSNorm: y = x / sqrt(mean(x^2) + eps) * w, over the last dimension; zero_centred: * (1 + w).
 * float32 inside, one rounding at the end.  x [..., N], w [N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_rms_norm(d9d_tape *t, d9d_var *x, d9d_param *w, float eps,
                                                bool zero_centred, d9d_var **y);

/* The same for rows that the ranks of a group have in parts, such as the heads of queries under
 * tensor parallelism: x is this rank's part of rows of `total` elements.  Where several ranks have
 * the same elements, the output gradients of each are parts of a sum, and so are those of x.
 * Collective over comm in forward, in backward and in each recomputation.  x [..., N], w [at least
 * first + N]. */
typedef struct d9d_op_rms_norm_parallel_opts {
    float eps;
    bool zero_centred;
    int64_t first;     /* element of w that belongs to the first of x */
    int64_t uncounted; /* elements at the begin of x that another rank has too, and counts */
    int64_t total;     /* elements of a row, those of several ranks once */
    d9d_comm *comm;    /* NULL: this rank has whole rows */
    const char *label; /* of the sums, for messages */
} d9d_op_rms_norm_parallel_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_rms_norm_parallel(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                         const d9d_op_rms_norm_parallel_opts *opts,
                                                         d9d_var **y);

/* LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, over the last dimension; var divides
 * by N.  w and b may be NULL: 1 and 0.  float32 inside, one rounding at the end.  x [..., N],
 * w b [N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_layer_norm(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                  d9d_param *b, float eps, d9d_var **y);

/* Gated linear unit: y = act(gate) * up, elementwise, by an activation of d9d_glu
 * (d9d/kernels/elementwise.h).  up NULL: y = act(gate). */
D9D_API D9D_MUST_USE d9d_status d9d_op_glu(d9d_tape *t, const d9d_glu *f, d9d_var *gate,
                                           d9d_var *up, d9d_var **y);

/* y = x * sigmoid(gate), with one gate for each row or one for each element.  x [..., H],
 * gate [..., 1] or of x's shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_sigmoid_gate(d9d_tape *t, d9d_var *x, d9d_var *gate,
                                                    d9d_var **y);

/* Embedding lookup in a vocabulary that is divided into n tables.  Table s has the ids
 * [sum of earlier sizes, + its size); an id outside all tables gives zeros.  Where a rank has only
 * a part of a table's rows (d9d_param.local.offset, vocabulary parallel), an id of another part
 * gives zeros too.  ids [...] int32 (any value is safe), tables [V_s, H], y [..., H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_embedding(d9d_tape *t, const d9d_tensor *ids,
                                                 d9d_param *const *tables, size_t n, d9d_var **y);
/* The same, where the row of the id `padding` has no gradient, neither the table's nor the
 * adapter's: padding_idx of torch.nn.Embedding.  One outside the tables is none. */
D9D_API D9D_MUST_USE d9d_status d9d_op_embedding_padded(d9d_tape *t, const d9d_tensor *ids,
                                                        int64_t padding, d9d_param *const *tables,
                                                        size_t n, d9d_var **y);
/* The same of one table, without its adapter, whose first id is `from`. */
D9D_API D9D_MUST_USE d9d_status d9d_op_embedding_from(d9d_tape *t, const d9d_tensor *ids,
                                                      int64_t from, d9d_param *table, d9d_var **y);

/* Rotary position embedding (RoPE).  inv_freq [R/2] float32 on the device; the first R features of
 * each head are rotated by position * inv_freq, the others are copied.  HALF pairs feature i with i
 * + R/2, INTERLEAVED with its neighbour; mscale multiplies sine and cosine.  x [B, S, heads, D],
 * positions [B, S] int32. */
typedef enum d9d_op_rope_style { D9D_ROPE_HALF, D9D_ROPE_INTERLEAVED } d9d_op_rope_style;
D9D_API D9D_MUST_USE d9d_status d9d_op_rope(d9d_tape *t, d9d_var *x, const d9d_tensor *positions,
                                            const d9d_tensor *inv_freq, d9d_op_rope_style style,
                                            float mscale, d9d_var **y);

/* Attention temperature by position: y = x (1 + beta log(1 + floor(position / period))), for the
 * queries of Llama 4 and Ministral 3.  x y [B, S, heads, D], positions [B, S] int32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_position_scale(d9d_tape *t, d9d_var *x,
                                                      const d9d_tensor *positions, float beta,
                                                      int64_t period, d9d_var **y);

/* RMSNorm and RoPE fused (QK norm): each head of x [B, S, heads, D] is normalised with w [D], then
 * rotated.  Nothing is rounded between the two. */
typedef struct d9d_op_norm_rope_opts {
    float eps;
    bool zero_centred;
    const d9d_tensor *positions, *inv_freq;
    d9d_op_rope_style style;
    float mscale;
} d9d_op_norm_rope_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_norm_rope(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                 const d9d_op_norm_rope_opts *opts, d9d_var **y);

/* Softmax attention of S queries over Z >= S keys in each sequence.  q [B, S, A, D],
 * k [B, Z, K, D], v [B, Z, K, DV]. A is a multiple of K (grouped-query attention): query head h
 * reads key head h / (A/K).  causal: query i of a sequence sees the keys j <= Z - S + i.  segments
 * (varlen) is NULL or [N, 4] int32, a list of d9d_segment: which queries see which keys, for packed
 * documents and context-parallel chunks; d9d/kernels/segment.h has drawings.  Scores and statistics
 * are float32. y [B, S, A, DV].
 *
 * Context parallelism: over several ranks of `cp`, k and v have S rows, this rank's chunks of each
 * sequence, and Z is S times the ranks.  Keys and values are gathered in forward and again in
 * backward, so that no rank stores those of all.  The segments then describe chunks
 * (d9d/data/loader/cp_slice.h).  Collective over cp, as d9d_op_cp_gather().
 *
 * Ring: with cp_ring keys and values are not gathered.  Blocks of one rank's chunks come one after
 * the other while those before are computed with, and their gradients go back likewise.  Chunks
 * that the mask or the window hides from all queries of a rank are not sent to it.
 *
 * All-to-all: over several ranks of `cp_heads` heads are exchanged for positions first, and back
 * afterwards.  Of m ranks each computes A/m heads for the chunks of all m.  Segments and prefixes
 * are those of these positions: of whole sequences where cp has one rank.  m divides A; it divides
 * K or is a multiple of it.  Collective over cp_heads too.
 *
 * Sliding window: a window of W leaves each query the last W keys that the causal mask shows it,
 * its own among them; without a mask, those less than W before and behind it.  It holds in packed
 * documents, chunks and KV caches alike.
 *
 * Bidirectional attention, causal false, over several ranks of cp needs segments and prefixes, of
 * which each is the length of its document (d9d_cp_slice_set_bidirectional()).
 *
 * Prefix masks (prefix-LM): prefix is NULL or [N] int32, how many of segment i's first keys all its
 * queries see, under the causal mask.  Prefixes hold in packed documents, chunks and KV caches
 * alike: a rank's segments reach as far as their prefixes.
 *
 * Softcap: a score becomes softcap tanh(score / softcap), before the mask and the softmax (Gemma
 * 2).
 *
 * Attention sinks: NULL or [A], of the type of q.  Each is a learnt logit of a query head: the
 * denominator of its softmax has the further term exp(sink), which has no value vector.
 *
 * Dropout of the probabilities, as d9d_op_dropout(): first is the number of q's first head among
 * those of all ranks.  Head h has the stream of the site + h; there number token * L + j, where L
 * is the RNG's max_positions, is that of key j of the query's document. */
typedef struct d9d_op_attention_opts {
    float scale;   /* softmax scale; usually D^-1/2 */
    float softcap; /* 0: none */
    bool causal;
    const d9d_tensor *segments;
    const d9d_tensor *prefix; /* of the segments, or NULL */
    d9d_comm *cp;             /* ranks with other keys; NULL: none */
    bool cp_ring;             /* keys go round cp in blocks; not with a KV cache */
    d9d_comm *cp_heads;       /* ranks with other positions of the same heads; NULL: none */
    const char *label;        /* of the communication, for messages and traces */
    bool cached;              /* k and v are a KV cache: see d9d_attention_dims */
    const d9d_tensor *k_scale, *v_scale; /* [Z, K]: the cache is in 8 bits; NULL: it is not */
    int64_t window;                      /* 0: none */
    d9d_param *sinks;                    /* NULL: none */
    d9d_op_dropout_opts dropout;         /* p 0: none; width is not read */
} d9d_op_attention_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_attention(d9d_tape *t, d9d_var *q, d9d_var *k, d9d_var *v,
                                                 const d9d_op_attention_opts *opts, d9d_var **y);

/* --- linear attention: a recurrent state instead of keys and values -----------------
 *
 *     q k v  --causal_conv1d-->                \
 *     a  --gdn_gate-->  g, log decay of a state >--gated_delta--> y --rms_norm_gated(z)-->
 *     b, write strength of a token             /
 *
 * Each op starts from a zero state at the begin of a sequence, or of each document where segments
 * list them as in d9d_op_attention().  Every sequence must lie on this rank as a whole. */

/* Generation: the state that a sequence keeps from call to call.  Segment i has nk - nq tokens of
 * earlier calls.  If there are any, it continues from the state in slot slot_index[i]; otherwise it
 * starts from zero, whatever the slot holds.  The op writes the new state into the same slot.
 * EINVAL without segments, and on a tape that records. */
typedef struct d9d_op_state_cache {
    const d9d_tensor *slots;      /* [R, ...] */
    const d9d_tensor *slot_index; /* [N] int32, all distinct */
} d9d_op_state_cache;

/* Depthwise causal convolution with SiLU (causal_conv1d): y = silu(sum over j of w[:, j]
 * x[t - W + 1 + j]), channel by channel; tokens before the document count as 0.  x y [B, S, N],
 * w [N, W], W up to D9D_CAUSAL_CONV1D_MAX_WIDTH; kept is NULL or has slots [W - 1, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_causal_conv1d(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                     const d9d_tensor *segments,
                                                     const d9d_op_state_cache *cache, d9d_var **y);
/* Several of the same tokens, such as queries, keys and values; from caches in one kernel, up to
 * D9D_OP_CAUSAL_CONV1D_MAX. */
enum { D9D_OP_CAUSAL_CONV1D_MAX = 3 };
typedef struct d9d_op_causal_conv1d_args {
    d9d_var *x;
    d9d_param *w;
    const d9d_op_state_cache *cache;
} d9d_op_causal_conv1d_args;
D9D_API D9D_MUST_USE d9d_status d9d_op_causal_conv1d_multi(d9d_tape *t,
                                                           const d9d_op_causal_conv1d_args *of,
                                                           size_t n, const d9d_tensor *segments,
                                                           d9d_var **y);
/* Log decay of a state: g = -exp(rate) log(1 + exp(x + bias)).  x [..., N], rate bias [N],
 * g [..., N] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_gdn_gate(d9d_tape *t, d9d_var *x, d9d_param *rate,
                                                d9d_param *bias, d9d_var **g);
/* The gated delta rule (Gated DeltaNet), as d9d_gated_delta_dims defines it.  Each of A heads has a
 * state [D, F].  For each token the state decays by e^g; the value that it holds for the key k
 * moves towards v by the fraction sigmoid(b); then q reads it.  q and k are normalised to length 1,
 * and q is multiplied by `scale`.  Memory is that of the inputs and one state for every
 * D9D_GATED_DELTA_CHUNK tokens.  q k [B, S, K, D], v y [B, S, A, F], A a multiple of K; g [B, S, A]
 * float32, at most 0; b as g, of the type of q. */
typedef struct d9d_op_gated_delta_args {
    d9d_var *q, *k, *v, *g, *b;
    float scale;                     /* usually D^-1/2 */
    const d9d_tensor *segments;      /* NULL: each sequence is one document */
    const d9d_op_state_cache *cache; /* NULL, or with slots [A, D, F] float32 */
} d9d_op_gated_delta_args;
D9D_API D9D_MUST_USE d9d_status d9d_op_gated_delta(d9d_tape *t, const d9d_op_gated_delta_args *x,
                                                   d9d_var **y);
/* RMSNormGated: y = x / sqrt(mean(x^2) + eps) * w * silu(z), over the last dimension.  x
 * z [..., N], w [N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_rms_norm_gated(d9d_tape *t, d9d_var *x, d9d_var *z,
                                                      d9d_param *w, float eps, d9d_var **y);

/* --- mixture of experts -------------------------------------------- */

/* Which experts each token is routed to; d9d_op_router() makes it, the other MoE ops read it.  Rows
 * of the permuted order are sorted by expert and, inside an expert, by token.  The router makes R =
 * T * k rows.  A choice may be -1 and then has no row: another rank has the expert, or the expert
 * was full. */
typedef struct d9d_routing {
    d9d_tensor expert; /* [T, k] int32, by descending probability, ties to the lower expert */
    d9d_tensor offset; /* [E + 1] int32: rows of expert e are [offset[e], offset[e + 1]) */
    d9d_tensor row;    /* [T, k] int32: permuted row of token t's choice j, or -1 */
    d9d_tensor source; /* [R] int32: t * k + j of each permuted row */
    d9d_tensor number; /* [T] int64: numbers of the tokens, as those of d9d_dropout_rng; or none */
    bool partial;      /* from a dispatch: experts of other ranks are -1; R counts the others */
    bool limited;      /* from a router with a capacity: R is T * k, whatever was dropped */
    int64_t lower;     /* from a dispatch: rows of the lower half of the experts */
} d9d_routing;
/* Makes R of a limited routing the number of its rows, which the ops of experts on one rank need;
 * else nothing.  The host waits for the number.  d9d_op_dispatch() takes a routing as it is. */
D9D_API D9D_MUST_USE d9d_status d9d_op_routing_trim(d9d_tape *t, d9d_routing *r);
/* Gives the routing of a router the numbers of its tokens, which a dispatch takes along: adapters
 * of experts with dropout need them.  Nothing happens without d9d_tape_set_dropout_rng(). */
D9D_API D9D_MUST_USE d9d_status d9d_op_routing_number(d9d_tape *t, d9d_routing *r);
D9D_API void d9d_routing_release(d9d_routing *r);

/* How experts are chosen, and the losses that balance their load. */
typedef struct d9d_op_router_opts {
    int k;
    bool sigmoid, renormalise;
    int groups, top_groups; /* 0: any expert */
    bool group_max;         /* of d9d_router_dims */
    float scale;            /* multiplies the expert weights; 0: 1 */
    const d9d_tensor *bias; /* [E] float32, added for the choice only; NULL: none */
    float aux, z;           /* coefficients of the load-balancing loss and the z-loss; 0: none */
    double capacity;        /* capacity factor; 0: experts take all tokens */
    /* [2 + E] float64 on the device, or NULL.  Forward adds to it (a recomputation does not): the
     * sums over the tokens of the two losses, without coefficients, and the number of choices of
     * each expert; with a capacity, [4 + E], then the numbers of kept and of dropped choices. */
    const d9d_tensor *counted;
    d9d_comm *tp, *cp; /* ranks with other tokens of the same sequences; NULL: none */
    const char *label; /* of the sums over these ranks, for messages */
} d9d_op_router_opts;

/* Router.  Scores of every expert are float32, softmax or sigmoid.  The k largest of score + bias
 * are chosen, by groups where there are groups (d9d_router_dims).  prob is their scores, divided by
 * their sum + 1e-20 if `renormalise`, times scale.  logits [T, E], prob [T, k] float32.
 *
 * Where the tape has token weights, the gradient of logits includes that of two losses:
 *
 *     aux   E sum over e of f_e P_e     for each sequence: f_e is the fraction of its choices that
 *                                       expert e has, P_e the mean over its tokens of
 *                                       score_e / sum of scores
 *     z     log(sum of exp(logits))^2   for each token
 *
 * Both are weighted by the token weights and so are part of the loss that is trained on.  aux is 1
 * when all experts have the same load.  The losses of a sequence do not depend on micro-batches or
 * ranks: its counts are summed over the ranks that have a part of it.
 *
 * With a capacity, where the tape has token weights, an expert takes at most
 * ceil(L k / E * capacity) choices of a sequence of L tokens, those of its first tokens.  The
 * routing lacks the others; prob, the losses and the counts of choices are as without.  Sequences
 * are whole ones, of all ranks that have a part, so nothing depends on micro-batches or ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_op_router(d9d_tape *t, d9d_var *logits,
                                              const d9d_op_router_opts *opts, d9d_var **prob,
                                              d9d_routing *routing);
/* x [T, H] to the rows of the permuted order [R, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_permute(d9d_tape *t, d9d_var *x, const d9d_routing *r,
                                               d9d_var **y);
/* Grouped GEMM: y_i = x W_ie for the rows of each expert, for n (1 or 2) weights of one shape.  The
 * gradient of x is one product over both.  x [R, in], w_i [E, in, out], y_i [R, out]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_grouped_linear(d9d_tape *t, d9d_var *x, d9d_param *const *w,
                                                      size_t n, const d9d_routing *r, d9d_var **y);
/* A feed-forward layer: y = (act(x Wg' + bg) * (x Wu' + bu)) Wd' + bd (+ plus) or, without gate,
 * y = act(x Wu' + bu) Wd' + bd (+ plus).  The result is that of d9d_op_linear(), d9d_op_add_bias()
 * and d9d_op_glu(); fusion saves memory traffic.  x [..., H], gate and up [I, H], down [H, I];
 * biases [I] and [H]; plus may be NULL.
 *
 * With a routing it computes the rows of each expert (grouped GEMM): x [R, H], gate and
 * up [E, H, I], down [E, I, H], biases [E, I] and [E, H], plus NULL.  With `ranks` (tensor
 * parallel, several ranks) it ends as d9d_op_linear_reduce_scatter(), and rows of x may still be in
 * flight; the bias of down, which each rank has whole, is added after the sum.  ranks may be NULL.
 */
typedef struct d9d_op_ffn_weights {
    d9d_param *gate, *up, *down;                /* gate NULL: none */
    d9d_param *gate_bias, *up_bias, *down_bias; /* each may be NULL */
    d9d_glu glu;                                /* {0}: SwiGLU */
    d9d_op_dropout_opts dropout; /* of what down multiplies; p 0: none.  Not with a routing */
} d9d_op_ffn_weights;
typedef struct d9d_op_ffn_tp {
    d9d_comm *comm;
    const char *label;
    d9d_op_pending_rows *pending; /* NULL: all rows of x are there */
} d9d_op_ffn_tp;
D9D_API D9D_MUST_USE d9d_status d9d_op_ffn(d9d_tape *t, d9d_var *x, const d9d_op_ffn_weights *w,
                                           const d9d_routing *r, const d9d_op_ffn_tp *ranks,
                                           d9d_var *plus, d9d_var **y);
/* y[t] = plus[t] + sum over j of prob[t, j] * x[row(t, j)], j ascending, in float32.  Choices
 * without a row add nothing.  x [R, H]; plus may be NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_op_unpermute(d9d_tape *t, d9d_var *x, d9d_var *prob,
                                                 const d9d_routing *r, d9d_var *plus, d9d_var **y);
/* A mixture's experts: permute, d9d_op_ffn() with the routing, unpermute.  x, plus, y [T, H]. Where
 * nothing is recorded and no matrix has an adapter or a recipe of FP8, one call of moe->experts(),
 * which reads a few tokens' experts at memory bandwidth. */
D9D_API D9D_MUST_USE d9d_status d9d_op_experts(d9d_tape *t, d9d_var *x, d9d_var *prob,
                                               const d9d_op_ffn_weights *w, const d9d_routing *r,
                                               d9d_var *plus, d9d_var **y);

/* --- expert parallelism: dispatch and combine ---------------------------------------
 *
 * Each rank d of a group of n has tokens of its own, and the experts
 * [d E / n, (d + 1) E / n).  Dispatch (all-to-all) sends a token once to every rank that has an
 * expert of it, with its choices and their weights.  Combine returns one row from each of those
 * ranks, weighted and summed over that rank's experts in float32:
 *
 *     x [T, H], prob [T, k] --dispatch--> there.x [N, H], there.prob [N, k], there.routing
 *                     permute, experts, unpermute over there.routing -> part [N, H]
 *     y[t] = sum over ranks d, ascending, of part of t on d, in float32 <--combine-- part
 *
 *     d9d_op_moe_dispatch there;
 *     D9D_TRY(d9d_op_dispatch(t, ep, "layers.3.mlp", x, prob, &routing, &there));
 *     ...                                               // experts on there.x, there.routing
 *     D9D_TRY_OR(st, d9d_op_combine(t, part, &there, &y), out);
 *     out: d9d_op_moe_dispatch_release(&there);
 *
 * A rank sorts the rows that it receives by (rank, token), so those of an expert are sorted too and
 * no result depends on timing.  In backward the gradients of dispatched rows travel as combine
 * does, and those of combined rows as dispatch does.  In a group of one `there` is the input itself
 * and nothing is copied.
 *
 * Both are collective over the group in forward, in backward and in each recomputation: all ranks
 * record the same ops.  A rank may have no tokens, and may receive none.
 *
 * The number of rows for each rank is gathered on the device and read back by the host, so that all
 * arrays have exactly the size that they need.  A GPU packs rows meanwhile and does not wait.
 * (Counts on the device only would need arrays for the worst case, n times as much memory.)  An op
 * that works on `there` still reads the offsets on the device and skips choices of -1. */
typedef struct d9d_op_moe_dispatch {
    d9d_var *x, *prob;   /* [N, H], [N, k] received */
    d9d_routing routing; /* of the received rows over the local experts */
    d9d_routing sent;    /* of the local tokens over ranks; none in a group of one */
    struct d9d_op_moe_exchange
        *exchange; /* row counts from and to each rank; NULL in a group of one */
} d9d_op_moe_dispatch;
D9D_API void d9d_op_moe_dispatch_release(d9d_op_moe_dispatch *d);

/* r is a routing over all E experts, as d9d_op_router() or a dispatch over other ranks makes it; n
 * divides E, else EINVAL.  `what`
 * labels the transfer in messages, as in comm.h, and must live as long as the tape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_dispatch(d9d_tape *t, d9d_comm *ep, const char *what,
                                                d9d_var *x, d9d_var *prob, const d9d_routing *r,
                                                d9d_op_moe_dispatch *out);
/* part [N, H], in the order of out->x, to y [T, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_combine(d9d_tape *t, d9d_var *part,
                                               const d9d_op_moe_dispatch *d, d9d_var **y);

/* --- copies of experts ---------------------------------------------------------------
 *
 * An expert may have copies on ranks of its group that do not own it.  With P = E / n of them on a
 * rank, a rank has 2 P places: first those of its own experts, then those of copies.  A table says
 * which place computes an expert's tokens, for each of D9D_EXPERT_LANES lanes:
 *
 *     routing over E experts --route_copies--> over 2 E places --d9d_op_dispatch()--> over 2 P
 *     places of a rank --split_copies--> over its P own experts, and over its copies
 *
 * The lane of a token is its position in its sequence modulo D9D_EXPERT_LANES.  So what a copy
 * computes depends on the batch and the table alone, not on where tokens are. */
enum { D9D_EXPERT_LANES = 32 };
/* table [D9D_EXPERT_LANES, >= E, a multiple of 4] int32; the tape's token weights have lanes; r has
 * no choices of -1.  places: 2 E. */
D9D_API D9D_MUST_USE d9d_status d9d_op_route_copies(d9d_tape *t, const d9d_routing *r,
                                                    const d9d_tensor *table, int64_t places,
                                                    d9d_routing *out);
/* r is the routing of a dispatch over 2 P places; number [P] int32 counts from 0; copies at most
 * P. */
D9D_API D9D_MUST_USE d9d_status d9d_op_split_copies(d9d_tape *t, const d9d_routing *r,
                                                    const d9d_tensor *number, int64_t copies,
                                                    d9d_routing *own, d9d_routing *copied);

/* --- loss --------------------------------------------------------------------- */

/* Linear cross entropy: loss[t] = logsumexp(h_t W^T) - (h_t W^T)[target], 0 where target is
 * `ignore`.  The head is divided into tables as in d9d_op_embedding(), concatenated in order.  The
 * full logits never exist: memory is a block of tokens by a block of vocabulary.  A target outside
 * [0, V) other than `ignore` is EINVAL on the CPU, and a NaN loss on a device that cannot report it
 * at once.  A head of one table may have an adapter; ENOTSUP for one of several with an adapter.
 *
 * Vocabulary parallel: over the ranks of `comm` (NULL: this one) the heads are parts of the rows of
 * their tables, all rows in sum.  h and targets are equal on all ranks, and so is the loss, bit by
 * bit. The gradient of h is this rank's partial sum; the backward of d9d_op_all_gather_rows() adds
 * them up.
 *
 * h [T, H], heads [V_s, H], targets [T] int32, loss [T] float32. */
typedef struct d9d_op_vocab_opts {
    d9d_comm *comm;  /* vocabulary-parallel group; NULL: this rank has all rows */
    float softcap;   /* a logit becomes softcap tanh(logit / softcap) (Gemma 2); 0: none */
    int32_t ignore;  /* of a loss: target of tokens without one */
    d9d_param *bias; /* [V], whole on every rank of comm: added to the logits before the softcap, of
                        at most D9D_NODE_MAX - 1 tables; NULL: none */
} d9d_op_vocab_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_cross_entropy(d9d_tape *t, d9d_var *h,
                                                            d9d_param *const *heads, size_t n,
                                                            const d9d_tensor *targets,
                                                            const d9d_op_vocab_opts *opts,
                                                            d9d_var **loss);
/* Linear cross entropy as a root of the backward: training minimises the sum of loss[t], and
 * backward takes no seed.  Forward computes the gradients of h and of the heads with the loss,
 * which saves a quarter of the products.  It adds the heads' gradients to the parameters before any
 * backward. Exceptions: a bias, and parameters whose gradient has no memory yet
 * (d9d/nn/param_unit.h). */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_cross_entropy_root(d9d_tape *t, d9d_var *h,
                                                                 d9d_param *const *heads, size_t n,
                                                                 const d9d_tensor *targets,
                                                                 const d9d_op_vocab_opts *opts,
                                                                 d9d_var **loss);

/* --- pooling: one row for each document ----------------------------------------------
 *
 * Which of a batch's tokens make the row of each document (d9d/data/loader/pooling.h): the last
 * token, the first one, or the mean of all.  A token belongs to at most one document. */
typedef struct d9d_op_pool_index {
    d9d_tensor token;       /* [N, k] int32: rows of x that document n pools, or -1 */
    d9d_tensor share;       /* [N, k] float32: their weights */
    d9d_tensor owner;       /* [T, 1] int32: the document that pools a row of x, or -1 */
    d9d_tensor owner_share; /* [T, 1] float32: its weight there */
    d9d_tensor labels;      /* [M] int32: labels of the documents that this rank has after the
                               reduce-scatter over ranks; or none */
    d9d_tensor number;      /* [M] int64: numbers of these documents' first tokens, as those of
                               d9d_dropout_rng; or none */
} d9d_op_pool_index;
D9D_API void d9d_op_pool_index_release(d9d_op_pool_index *p);
/* Pooling: y[n] = sum over j of share[n, j] x[token[n, j]], in float32 and rounded once; 0 for a
 * document without tokens here.  x [T, H], y [N, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_pool(d9d_tape *t, d9d_var *x, const d9d_op_pool_index *pool,
                                            d9d_var **y);

/* The documents of a batch, whose losses of tokens make the loss of an answer
 * (d9d_op_sequence_log_probs()), in records of W documents each: 2, the chosen answer and the
 * rejected one, or 4 (d9d/tasks/preference.h). */
typedef struct d9d_op_document_index {
    d9d_tensor offset;  /* [N + 1] int32: the tokens of document n in the batch, those of all
                           context-parallel ranks in sequence order; padding follows its document */
    d9d_tensor targets; /* [N, 1] float32: labels that count; 1 where there are none */
    d9d_tensor counts;  /* [N, 1] float32: 1 for a document with targets; 0 for others, and on a
                           rank beside the first of those that share the documents */
    d9d_tensor records; /* [N / W, 1] float32: the same of records */
    d9d_tensor labels;  /* [N / W] int32: the number of a record that counts, or -100 */
} d9d_op_document_index;
D9D_API void d9d_op_document_index_release(d9d_op_document_index *d);
/* Log-probability of each document: minus the sum over its tokens of their losses, in float32.  Of
 * context parallelism all ranks have the same sums, bit by bit, whatever their number; train on
 * those of one of them (d9d_op_document_index.counts).  Collective over cp.
 * loss [B, S] float32, y [N, 1]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_sequence_log_probs(d9d_tape *t, d9d_var *loss,
                                                          const d9d_op_document_index *documents,
                                                          d9d_comm *cp, d9d_var **y);

/* InfoNCE (contrastive loss).  P = N / 2; row P + i is the positive of row i, and the other rows of
 * the second half are its negatives: loss[i] = logsumexp_j(s_ij) - s_i targets[i], s_ij = cos(x_i,
 * x_(P+j)) / temperature, 0 where the target is `ignore`.  The last row of an odd N is not used.
 * x [N, H], H a multiple of 8, targets [P] int32, loss [P] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_info_nce(d9d_tape *t, d9d_var *x, float temperature,
                                                const d9d_tensor *targets, int32_t ignore,
                                                d9d_var **loss);

/* --- generation: forward only, EINVAL on a tape that records ------------------------- */

/* Append keys or values to a KV cache: row i of x [1, T, K, D] is written to slot at[i] (at [T]
 * int32, all distinct) of the cache [Z, K, D].  y is a view of the whole cache, [1, Z, K, D];
 * nothing is copied. */
D9D_API D9D_MUST_USE d9d_status d9d_op_kv_append(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                                 const d9d_tensor *cache, d9d_var **y);
/* The same with the cache in 8 bits: codes [Z, K, D] of e4m3 and a scale, a power of two, of each
 * token's head, float32 [Z, K] (d9d_attention_kernels.kv_append_fp8).  y is a view of the codes,
 * for d9d_op_attention() with their scales. */
D9D_API D9D_MUST_USE d9d_status d9d_op_kv_append_fp8(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                                     const d9d_tensor *codes,
                                                     const d9d_tensor *scale, d9d_var **y);
/* Multiplies each head by a matrix of its own (per-head GEMM, for MLA).  Head h uses the `in` rows
 * of w from h * step + first on, y = x W; if `transposed`, `out` rows, y = x W'.  x [B, S, n, X],
 * of which the first `in` features are read, y [B, S, n, out + extra], of which the last `extra`
 * are not written, w [n step, out], or, transposed, [n step, in]. */
typedef struct d9d_op_linear_per_head_opts {
    int64_t step, first, out;
    bool transposed;
    int64_t in, extra; /* in 0: all */
} d9d_op_linear_per_head_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_per_head(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                       const d9d_op_linear_per_head_opts *opts,
                                                       d9d_var **y);
/* The rest of a decode step of MLA, for new tokens [1, T]: the last R features of each head of q
 * [1, T, n, D] rotate and become the last R of query [1, T, n, C + R]; RMSNorm of latent [1, T, C]
 * and the rotated key [1, T, R] become rows of the cache [Z, 1, C + R].  `cached` is a view of it.
 */
typedef struct d9d_op_latent_append_args {
    d9d_var *q, *query, *latent, *key;
    d9d_param *norm; /* [C] */
    float eps, mscale;
    const d9d_tensor *positions, *inv_freq; /* [1, T]; [R/2] */
    d9d_op_rope_style style;
    const d9d_tensor *slots, *cache; /* as in d9d_op_kv_append() */
} d9d_op_latent_append_args;
D9D_API D9D_MUST_USE d9d_status d9d_op_latent_append(d9d_tape *t,
                                                     const d9d_op_latent_append_args *h,
                                                     d9d_var **cached);
/* The same of keys and values [1, T, K, D], whose caches have one shape, in one kernel. */
D9D_API D9D_MUST_USE d9d_status d9d_op_kv_append_both(d9d_tape *t, const d9d_tensor *slots,
                                                      const d9d_tensor *k_cache,
                                                      const d9d_tensor *v_cache, d9d_var **k,
                                                      d9d_var **v);
/* QK norm, RoPE and KV-cache append in one op, for the new tokens of a decode step.  q becomes
 * d9d_op_norm_rope() of q; k becomes the same and then d9d_op_kv_append(); v becomes
 * d9d_op_kv_append() of v.  With scales the cache is in 8 bits, and they become
 * d9d_op_kv_append_fp8(). */
typedef struct d9d_op_qk_norm_rope_append_args {
    d9d_var *q, *k, *v;         /* [1, T, A, D], [1, T, K, D] */
    d9d_param *q_norm, *k_norm; /* [D]; NULL: RoPE and append alone, d9d_op_rope() */
    bool all_heads;             /* norms of all heads together: [A D], [K D], d9d_op_rms_norm() */
    const d9d_tensor *slots, *k_cache, *v_cache;
    const d9d_tensor *k_scale, *v_scale; /* both or neither */
} d9d_op_qk_norm_rope_append_args;
D9D_API D9D_MUST_USE d9d_status d9d_op_qk_norm_rope_append(d9d_tape *t,
                                                           const d9d_op_norm_rope_opts *opts,
                                                           d9d_op_qk_norm_rope_append_args *h);
/* Logits of the tokens `pick` [N] (int32), for a head divided as in d9d_op_linear_cross_entropy():
 * y[i] = h[pick[i]] W^T, in float32, not rounded to the type of h.  Over the ranks of
 * opts->comm the heads are parts of the rows of their tables; h is equal on all ranks, and so is y.
 *  h [T, H],
 * heads [V_s, H], y [N, V] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_logits(d9d_tape *t, d9d_var *h, const d9d_tensor *pick,
                                              d9d_param *const *heads, size_t n,
                                              const d9d_op_vocab_opts *opts, d9d_var **y);

/* y = x as a root of the backward: training minimises the sum of x, and backward takes no seed.  If
 * x is a root already, y is x.  x of any shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_loss_root(d9d_tape *t, d9d_var *x, d9d_var **y);

/* --- row collectives: tensor and sequence parallelism ---------------------------------
 *
 * Collective over `comm` in forward, in backward, and again where a checkpointed layer is
 * recomputed.  In a group of one, or with comm NULL, y is x itself.  `what` labels the transfer
 * (d9d/comm/comm.h); it is borrowed as long as the tape lives.
 *
 *     x [T/n, H] --all_all_gather_rows--> [T, H] --each rank computes its part--> [T, H]
 *                --reduce_reduce_scatter_rows--> y [T/n, H], the sum over ranks
 */

/* All-gather of rows: the rows of all ranks, in rank order.  Backward is a reduce-scatter: the
 * gradient of a rank's rows is the sum of all ranks' gradients for them.  x [..., N] with as many
 * rows on every rank, y [rows * ranks, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_all_gather_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm,
                                                       const char *what, d9d_var **y);
/* d9d_op_all_gather_rows() overlapped with the op that reads y: other ranks' rows arrive from peer
 * memory while it computes (d9d_symm_buffer_reserve()).  Without peer memory all rows of y are
 * there at once.  The next user of y either takes `coming` as an argument, or calls
 * d9d_op_all_gather_rows_wait() first.  Nothing else may be sent over `comm` before that. */
struct d9d_op_pending_rows {
    d9d_comm *comm; /* NULL: nothing is in flight */
    const char *label;
    const d9d_var *local;
};
D9D_API D9D_MUST_USE d9d_status d9d_op_all_gather_rows_start(d9d_tape *t, d9d_var *x,
                                                             d9d_comm *comm, const char *what,
                                                             d9d_op_pending_rows *coming,
                                                             d9d_var **y);
/* Work enqueued after this call sees all rows of y.  `coming` may be NULL. */
D9D_API D9D_MUST_USE d9d_status d9d_op_all_gather_rows_wait(d9d_tape *t,
                                                            d9d_op_pending_rows *coming,
                                                            const d9d_var *y);
/* Reduce-scatter of rows: this rank's part of the rows of the sum of x over all ranks.  Backward is
 * an all-gather.  x [..., N], its number of rows a multiple of the ranks, y [rows / ranks, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_reduce_scatter_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm,
                                                           const char *what, d9d_var **y);
/* Context-parallel all-gather: the positions of all ranks in sequence order, where rank r has the
 * zigzag chunks r and 2n - 1 - r of 2n of every sequence (d9d/nn/parallel_groups.h).  Backward is a
 * reduce-scatter: the gradient of a rank's positions is the sum of all ranks' gradients for them.
 * EINVAL for an odd S.  x [B, S, ...], y [B, n S, ...]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_cp_gather(d9d_tape *t, d9d_var *x, d9d_comm *comm,
                                                 const char *what, d9d_var **y);

#ifdef __cplusplus
}
#endif
#endif /* D9D_OP_OP_H */
