/* op.h - the operations that models are made of.
 *
 * Each takes vars (arrays on a tape) and parameters, computes at once, records its two
 * backward halves, and sets its last argument on success.  Shape letters: B batch, S
 * sequence, T = B*S tokens, H hidden, A query heads, K key-value heads, D head size,
 * I FFN size, E experts, V vocabulary, k experts a token.  A dimension written ... is
 * any number of leading dimensions.  Activations and parameters are float32 or
 * bfloat16, of one type within an op; statistics, softmax and losses are float32.
 * Wrong shapes are EINVAL with both shapes in the sentence.  One op, one file.
 */
#ifndef D9D_OP_OP_H
#define D9D_OP_OP_H

#include "d9d/comm/comm.h"
#include "d9d/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x W^T.  x [..., in], w [out, in], y [..., out]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var **y);
/* y = x W^T + plus, of y's shape, which is added before y is rounded. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_residual(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                       d9d_var *plus, d9d_var **y);
/* y = x W^T with rows [first, first + n) of W alone: y [..., n]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_slice(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                    int64_t first, int64_t n, d9d_var **y);
/* That for each of n weights at once: what the first read of x can be used for all.  Rows of x may
 * be on their way (d9d_op_all_gather_rows_start); coming may be NULL. */
enum { D9D_OP_LINEAR_MULTI_MAX = 4 };
typedef struct d9d_op_weight_slice {
    d9d_param *w;
    int64_t first, n;
} d9d_op_weight_slice;
typedef struct d9d_op_pending_rows d9d_op_pending_rows;
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_multi(d9d_tape *t, d9d_var *x,
                                                    d9d_op_pending_rows *coming,
                                                    const d9d_op_weight_slice *of, size_t n,
                                                    d9d_var **y);
/* d9d_op_linear(), then d9d_op_reduce_scatter_rows() over comm, of several ranks, then + plus
 * unless that is NULL: rows of other ranks go to them while the rest is computed.  x [T, in], plus
 * and y [T / ranks, out]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_reduce_scatter(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                             d9d_comm *comm, const char *what,
                                                             d9d_var *plus, d9d_var **y);

/* y = a + b, of one shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_add(d9d_tape *t, d9d_var *a, d9d_var *b, d9d_var **y);

/* y = x + b, to each row, where b is the N elements of a parameter from `first` on.  x [..., N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_add_bias(d9d_tape *t, d9d_var *x, d9d_param *b,
                                                int64_t first, d9d_var **y);

/* The same elements in another shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_reshape(d9d_tape *t, d9d_var *x, d9d_shape shape,
                                               d9d_var **y);

/* Columns of some arrays side by side, and zeros behind them: y [..., M], of which piece i has the
 * next n columns, [first, first + n) of x.  An x with as many rows as y has gives each its own; one
 * with a row for each of y's [..., A, M] gives that to all A heads.  At most D9D_NODE_MAX pieces.
 */
typedef struct d9d_op_concat_input {
    d9d_var *x;
    int64_t first, n;
} d9d_op_concat_input;
D9D_API D9D_MUST_USE d9d_status d9d_op_concat(d9d_tape *t, const d9d_op_concat_input *pieces,
                                              size_t n, d9d_shape shape, d9d_var **y);

/* y = x / sqrt(mean(x^2) + eps) * w, over the last dimension; zero_centred: * (1 + w).
 * float32 inside, one rounding at the end.  x [..., N], w [N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_rms_norm(d9d_tape *t, d9d_var *x, d9d_param *w, float eps,
                                                bool zero_centred, d9d_var **y);

/* y = silu(gate) * up, elementwise; silu(x) = x / (1 + exp(-x)). */
D9D_API D9D_MUST_USE d9d_status d9d_op_swiglu(d9d_tape *t, d9d_var *gate, d9d_var *up, d9d_var **y);

/* y = x * sigmoid(gate), gate one number a row, or one an element.  x [..., H], gate [..., 1] or of
 * x's shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_sigmoid_gate(d9d_tape *t, d9d_var *x, d9d_var *gate,
                                                    d9d_var **y);

/* Rows of a vocabulary that is split into n tables; split s holds the ids
 * [sum of earlier sizes, + its size); an id outside all gives zeros.  Where a table is a part of
 * the rows of its split (d9d_param.work_start), an id of another part gives zeros too.
 * ids [...] int32 (any value is safe), tables [V_s, H], y [..., H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_embedding(d9d_tape *t, const d9d_tensor *ids,
                                                 d9d_param *const *tables, size_t n, d9d_var **y);

/* Rotary position embedding.  inv_freq [R/2] float32 on the device; the first R
 * features of each head turn by position * inv_freq, the others pass.  HALF pairs feature i
 * with i + R/2, INTERLEAVED with its neighbour; mscale multiplies sine and cosine.
 * x [B, S, heads, D], positions [B, S] int32. */
typedef enum d9d_op_rope_style { D9D_ROPE_HALF, D9D_ROPE_INTERLEAVED } d9d_op_rope_style;
D9D_API D9D_MUST_USE d9d_status d9d_op_rope(d9d_tape *t, d9d_var *x, const d9d_tensor *positions,
                                            const d9d_tensor *inv_freq, d9d_op_rope_style style,
                                            float mscale, d9d_var **y);

/* Both at once: each head of x [B, S, heads, D] normed by w [D], then turned.  Between the two
 * nothing is rounded. */
typedef struct d9d_op_norm_rope_opts {
    float eps;
    bool zero_centred;
    const d9d_tensor *positions, *inv_freq;
    d9d_op_rope_style style;
    float mscale;
} d9d_op_norm_rope_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_norm_rope(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                 const d9d_op_norm_rope_opts *how, d9d_var **y);

/* Softmax attention of S queries to Z >= S keys a row.  q [B, S, A, D], k v [B, Z, K, D], A a
 * multiple of K: query head h reads head h / (A/K).  causal: query i of a row sees j <= Z - S + i.
 * segments, where not NULL, is [N, 4] int32, a list of d9d_segment: which queries see which keys,
 * for packed documents and pieces of rows (d9d/kernels/table.h has drawings).  Scores and
 * statistics in float32.  y [B, S, A, D].
 *
 * Over several ranks of `cp` k and v are [B, S, K, D], this rank's pieces of rows, and Z is S times
 * the ranks: gathered here, and again in backward, so that no rank keeps the keys of all.  Segments
 * are of pieces then (d9d/data/loader/cp_slice.h).  Collective over cp, as d9d_op_cp_gather().
 *
 * window, where not 0, leaves each query the last `window` of the keys that the causal mask shows
 * it, its own among them: in packed documents, pieces and caches alike.  EINVAL without the mask.
 * sinks, where not NULL, are [A], of the type of q: a learnt logit of each query head that is one
 * term more in the denominator of its softmax, exp(sink), and has no value. */
typedef struct d9d_op_attention_opts {
    float scale; /* of the scores; usually D^-1/2 */
    bool causal;
    const d9d_tensor *segments;
    d9d_comm *cp;      /* NULL: alone */
    const char *label; /* of what is gathered */
    bool cached;       /* k and v are a cache: see d9d_attention_dims */
    int64_t window;    /* 0: none */
    d9d_param *sinks;  /* NULL: none */
} d9d_op_attention_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_attention(d9d_tape *t, d9d_var *q, d9d_var *k, d9d_var *v,
                                                 const d9d_op_attention_opts *how, d9d_var **y);

/* --- linear attention: state instead of keys and values ---------------------------
 *
 *     q k v  --conv-->  of their last tokens   \
 *     a  --decay-->  g, how a state fades       >--delta--> y --gated_norm(z)-->
 *     b, how much of a token is written        /
 *
 * Each begins anew with a row, or with a document where segments say which there are: as in
 * d9d_op_attention(), of rows that this rank has whole. */

/* Generation: what documents keep from call to call.  That of segment i, of whose tokens nk - nq
 * were before, goes on from cell at[i] and leaves there what its next tokens need; where none were
 * before it begins anew, whatever is there.  EINVAL without segments, and where something would be
 * recorded. */
typedef struct d9d_op_state_cache {
    const d9d_tensor *slots;      /* [R, ...] */
    const d9d_tensor *slot_index; /* [N] int32, each another */
} d9d_op_state_cache;

/* y = silu(sum over j of w[:, j] x[t - W + 1 + j]), channel by channel, tokens before the document
 * being 0.  x y [B, S, N], w [N, W], W up to D9D_CAUSAL_CONV1D_MAX_WIDTH; kept NULL or with cells
 * [W - 1, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_causal_conv1d(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                     const d9d_tensor *segments,
                                                     const d9d_op_state_cache *kept, d9d_var **y);
/* g = -exp(rate) log(1 + exp(x + bias)): log of the factor of a state.  x [..., N], rate bias [N],
 * g [..., N] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_gdn_gate(d9d_tape *t, d9d_var *x, d9d_param *rate,
                                                d9d_param *bias, d9d_var **g);
/* The gated delta rule, as d9d_gated_delta_dims says: each of A heads has a state [D, F], which
 * fades by e^g, has what it holds for the key k moved towards v, by sigmoid(b) of the way, and is
 * read by q. q and k are brought to length 1, q then to `scale`.  Memory is that of the inputs and
 * one state for every D9D_GATED_DELTA_CHUNK tokens. q k [B, S, K, D], v y [B, S, A, F], A a
 * multiple of K; g [B, S, A] float32, at most 0; b as g, of the type of q. */
typedef struct d9d_op_gated_delta_args {
    d9d_var *q, *k, *v, *g, *b;
    float scale;                    /* usually D^-1/2 */
    const d9d_tensor *segments;     /* NULL: each row is one */
    const d9d_op_state_cache *kept; /* NULL, or with cells [A, D, F] float32 */
} d9d_op_gated_delta_args;
D9D_API D9D_MUST_USE d9d_status d9d_op_gated_delta(d9d_tape *t, const d9d_op_gated_delta_args *x,
                                                   d9d_var **y);
/* y = x / sqrt(mean(x^2) + eps) * w * silu(z), over the last dimension.  x z [..., N], w [N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_rms_norm_gated(d9d_tape *t, d9d_var *x, d9d_var *z,
                                                      d9d_param *w, float eps, d9d_var **y);

/* --- mixture of experts -------------------------------------------- */

/* Which expert each token goes to; made by the router, used by the others.
 * Rows of the permuted order are expert-major, ascending by token inside an expert.  The router
 * makes R = T * k rows; where experts are on several ranks a choice may be -1, of another rank, and
 * has no row. */
typedef struct d9d_routing {
    d9d_tensor expert; /* [T, k] int32, by falling probability, ties to the lower expert */
    d9d_tensor offset; /* [E + 1] int32: rows of expert e are [offset[e], offset[e + 1]) */
    d9d_tensor row;    /* [T, k] int32: permuted row of token t's choice j, or -1 */
    d9d_tensor source; /* [R] int32: t * k + j of each permuted row */
} d9d_routing;
D9D_API void d9d_routing_release(d9d_routing *r);

/* How, and what keeps it even. */
typedef struct d9d_op_router_opts {
    int k;
    bool sigmoid, renormalise;
    int groups, top_groups; /* 0: any expert */
    float scale;            /* of the weights; 0: 1 */
    const d9d_tensor *bias; /* [E] float32, of the choice alone; NULL: none */
    float aux, z;           /* coefficients of the losses; 0: none */
    /* [2 + E] float64 on the device, to which forward adds (a replay does not): sums over the
     * tokens of the two losses, without coefficients, and choices of each expert.  NULL: nothing.
     */
    const d9d_tensor *counted;
    d9d_comm *tp, *cp; /* ranks with other tokens of the same rows; NULL: none */
    const char *label; /* of what is summed over them */
} d9d_op_router_opts;

/* Scores of every expert in float32, softmax or sigmoid; the k largest of score + bias, by groups
 * where there are (d9d_router_dims); prob = scores of those, divided by their sum + 1e-20 when
 * renormalised, times scale.  logits [T, E], prob [T, k] float32.
 *
 * Where the tape has shares, the gradient of logits is that of two losses besides:
 *
 *     aux   E sum over e of f_e P_e     of each row: f_e the part of its choices that expert e has,
 *                                       P_e the mean over its tokens of score_e / sum of scores
 *     z     log(sum of exp(logits))^2   of each token
 *
 * weighted by the shares, and so added to the sum of the losses that is trained on.  1 is what aux
 * is where all experts have the same.  A row is what it is whatever the micro-batches and ranks,
 * so the losses are too: its counts are summed over the ranks that have a part of it. */
D9D_API D9D_MUST_USE d9d_status d9d_op_router(d9d_tape *t, d9d_var *logits,
                                              const d9d_op_router_opts *how, d9d_var **prob,
                                              d9d_routing *routing);
/* x [T, H] to rows in permuted order [R, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_permute(d9d_tape *t, d9d_var *x, const d9d_routing *r,
                                               d9d_var **y);
/* y_i = x W_ie for the rows of each expert, of n weights of one shape, 1 or 2: the gradient of x is
 * one product of both.  x [R, in], w_i [E, in, out], y_i [R, out]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_grouped_linear(d9d_tape *t, d9d_var *x, d9d_param *const *w,
                                                      size_t n, const d9d_routing *r, d9d_var **y);
/* A feed-forward layer: y = (silu(x Wg') * (x Wu')) Wd' (+ plus), as d9d_op_linear() three times
 * with d9d_op_swiglu() between, and without some of its traffic.  x [..., H], gate and up [I, H],
 * down [H, I]; plus may be NULL.  With a routing, of the rows of each expert: x [R, H], gate and up
 * [E, H, I], down [E, I, H], and plus NULL.  With ranks, of several, it ends as
 * d9d_op_linear_reduce_scatter() does, and rows of x may be on their way; ranks may be NULL. */
typedef struct d9d_op_ffn_weights {
    d9d_param *gate, *up, *down;
} d9d_op_ffn_weights;
typedef struct d9d_op_ffn_tp {
    d9d_comm *comm;
    const char *label;
    d9d_op_pending_rows *pending; /* NULL: x is there */
} d9d_op_ffn_tp;
D9D_API D9D_MUST_USE d9d_status d9d_op_ffn(d9d_tape *t, d9d_var *x, const d9d_op_ffn_weights *w,
                                           const d9d_routing *r, const d9d_op_ffn_tp *ranks,
                                           d9d_var *plus, d9d_var **y);
/* y[t] = sum over j of prob[t, j] * x[row(t, j)], j ascending, in float32; choices without a row
 * add nothing.  x [R, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_unpermute(d9d_tape *t, d9d_var *x, d9d_var *prob,
                                                 const d9d_routing *r, d9d_var **y);

/* --- experts on several ranks --------------------------------------------------- *
 *
 * Each rank d of a group of n has tokens of its own, and the experts [d E / n, (d + 1) E / n).  A
 * token is sent once to every rank that has an expert of it, with its choices and their weights;
 * one row comes back from there, weighted and summed over that rank's experts in float32:
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
 * What comes to a rank is ordered by (rank, token), so the rows of an expert are too, and nothing
 * depends on timing.  Gradients go the other way: those of rows as combine sends them, those of
 * parts as dispatch does.  In a group of one `there` is what was given, and nothing is copied.
 *
 * Both are collective over the group, forward, backward and in each replay: all ranks record the
 * same ops.  A rank may have no tokens, and none may come to it.
 *
 * How many rows go where is gathered on the device and read back; a GPU packs rows meanwhile, so
 * that it does not wait, and all arrays have the size that they need.  (With the numbers on the
 * device alone they would have to have room for all that could come, n times as much.)  An op that
 * works on `there` reads offsets on the device all the same, and passes over choices of -1. */
typedef struct d9d_op_moe_dispatch {
    d9d_var *x, *prob;   /* [N, H], [N, k] of what came */
    d9d_routing routing; /* of that over the experts here */
    d9d_routing sent;    /* of the tokens here over ranks; none in a group of one */
    struct d9d_op_moe_exchange *exchange; /* rows from and to each rank; NULL in a group of one */
} d9d_op_moe_dispatch;
D9D_API void d9d_op_moe_dispatch_release(d9d_op_moe_dispatch *d);

/* The routing is one of all E experts, as the router makes it; n divides E, else EINVAL.  `what`
 * says to people what is moved, as in comm.h, and lives as long as the tape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_dispatch(d9d_tape *t, d9d_comm *ep, const char *what,
                                                d9d_var *x, d9d_var *prob, const d9d_routing *r,
                                                d9d_op_moe_dispatch *out);
/* part [N, H] to y [T, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_combine(d9d_tape *t, d9d_var *part,
                                               const d9d_op_moe_dispatch *d, d9d_var **y);

/* --- loss --------------------------------------------------------------------- */

/* loss[t] = logsumexp(h_t W^T) - (h_t W^T)[target], 0 where target is `ignore`, for a head
 * split as in d9d_op_embedding (concatenated in order).  All logits are never held: memory is
 * a block of tokens by a block of vocabulary.  A target outside [0, V) other than `ignore` is
 * EINVAL where the device can say so at once (the CPU), else a NaN loss.  ENOTSUP for a head with
 * an adapter: one that is used here is not `adaptable`.
 *
 * Over the ranks of `comm` (NULL: this one) the heads are parts of the rows of their splits,
 * together all of them; h and targets are the same on each, and so is the loss, to the bit.  The
 * gradient of h is this part's: their sum is the whole's, which the backward of
 * d9d_op_all_gather_rows() makes.
 * h [T, H], heads [V_s, H], targets [T] int32, loss [T] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_cross_entropy(d9d_tape *t, d9d_var *h,
                                                            d9d_param *const *heads, size_t n,
                                                            const d9d_tensor *targets,
                                                            int32_t ignore, d9d_comm *comm,
                                                            d9d_var **loss);
/* The same as a root of the backward: the sum of loss[t] is what is trained on.  The gradients of
 * h and of the heads come with the loss, a quarter of the products less; those of the heads are
 * added to the parameters at once, before any backward, but where these have no memory for it yet
 * (d9d/nn/param_unit.h) and but over several ranks.  Backward takes no seed for it. */
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_cross_entropy_root(d9d_tape *t, d9d_var *h,
                                                                 d9d_param *const *heads, size_t n,
                                                                 const d9d_tensor *targets,
                                                                 int32_t ignore, d9d_comm *comm,
                                                                 d9d_var **loss);

/* --- one row a document -------------------------------------------------------------
 *
 * What of a batch's tokens makes the row of each of its documents (d9d/data/loader/pooling.h): the
 * last token's, the first one's, the mean of all.  A token belongs to at most one document. */
typedef struct d9d_op_pool_index {
    d9d_tensor token;       /* [N, k] int32: rows of x that go into document n, or -1 */
    d9d_tensor share;       /* [N, k] float32: what each counts */
    d9d_tensor owner;       /* [T, 1] int32: the document that a row of x goes into, or -1 */
    d9d_tensor owner_share; /* [T, 1] float32: its share there */
    d9d_tensor labels; /* [M] int32: of the documents that are this rank's once parts of all ranks
                          are summed; or none */
} d9d_op_pool_index;
D9D_API void d9d_op_pool_index_release(d9d_op_pool_index *p);
/* y[n] = sum over j of share[n, j] x[token[n, j]], in float32 and rounded once; 0 for a document
 * without tokens here.  x [T, H], y [N, H]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_pool(d9d_tape *t, d9d_var *x, const d9d_op_pool_index *pool,
                                            d9d_var **y);

/* Row i belongs to row P + i and to none of the others of the second half, P = N / 2:
 * loss[i] = logsumexp_j(s_ij) - s_i targets[i], s_ij = cos(x_i, x_(P+j)) / temperature, 0 where the
 * target is `ignore` (InfoNCE).  Of an odd N the last row is alone.
 * x [N, H], H a multiple of 8, targets [P] int32, loss [P] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_info_nce(d9d_tape *t, d9d_var *x, float temperature,
                                                const d9d_tensor *targets, int32_t ignore,
                                                d9d_var **loss);

/* --- generation: forward alone, EINVAL where something would be recorded ------------- */

/* Keys or values beside those of earlier positions: x [1, T, K, D] goes to rows at [T] (int32, none
 * twice) of a cache [Z, K, D], and y is all of it as [1, Z, K, D], without a copy. */
D9D_API D9D_MUST_USE d9d_status d9d_op_kv_append(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                                 const d9d_tensor *cache, d9d_var **y);
/* Each head by a matrix of its own: the `in` rows of w from h * step + first on, y = x W, or,
 * turned, `out` of them, y = x W'.  x [B, S, n, in], y [B, S, n, out], w [n step, out or, turned,
 * in]. */
typedef struct d9d_op_linear_per_head_opts {
    int64_t step, first, out;
    bool transposed;
} d9d_op_linear_per_head_opts;
D9D_API D9D_MUST_USE d9d_status d9d_op_linear_per_head(d9d_tape *t, d9d_var *x, d9d_param *w,
                                                       const d9d_op_linear_per_head_opts *how,
                                                       d9d_var **y);
/* All that new tokens' heads need before attention to a cache, at once: q becomes what
 * d9d_op_norm_rope() makes of it, k what that and then d9d_op_kv_append() do, v what the latter
 * does.
 */
typedef struct d9d_op_qk_norm_rope_append_args {
    d9d_var *q, *k, *v;         /* [1, T, A, D], [1, T, K, D] */
    d9d_param *q_norm, *k_norm; /* [D] */
    const d9d_tensor *slots, *k_cache, *v_cache;
} d9d_op_qk_norm_rope_append_args;
D9D_API D9D_MUST_USE d9d_status d9d_op_qk_norm_rope_append(d9d_tape *t,
                                                           const d9d_op_norm_rope_opts *how,
                                                           d9d_op_qk_norm_rope_append_args *h);
/* Logits of the tokens `pick` [N] (int32), for a head split as in d9d_op_linear_cross_entropy():
 * y[i] = h[pick[i]] W^T, in float32 and not rounded to the type of h.  Over the ranks of `comm` the
 * heads are parts of the rows of their splits; h is the same on each, and so is y.
 * h [T, H], heads [V_s, H], y [N, V] float32. */
D9D_API D9D_MUST_USE d9d_status d9d_op_logits(d9d_tape *t, d9d_var *h, const d9d_tensor *pick,
                                              d9d_param *const *heads, size_t n, d9d_comm *comm,
                                              d9d_var **y);

/* y = x, of which the sum is trained on: a root of the backward, which takes no seed then.  What is
 * a root already is given back.  x of any shape. */
D9D_API D9D_MUST_USE d9d_status d9d_op_loss_root(d9d_tape *t, d9d_var *x, d9d_var **y);

/* --- between ranks ------------------------------------------------------------------
 *
 * Collective: over `comm`, forward and backward, and again where a checkpoint is replayed.  In a
 * group of one, NULL too, y is x itself.  `what` is borrowed as long as the tape (d9d/comm/comm.h).
 *
 *     x [T/n, H] --all_gather_rows--> [T, H] --each rank its own part of the work--> [T, H]
 *                --reduce_scatter_rows--> y [T/n, H], the sum of all parts
 */

/* The rows of all ranks, in order.  The gradient of a rank's rows is the sum of what all ranks have
 * for them.  x [..., N] with as many rows on every rank, y [rows * ranks, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_all_gather_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm,
                                                       const char *what, d9d_var **y);
/* The same, where what follows can begin with some rows: y's rows of other ranks come while it is
 * computed, from those ranks' memory (d9d_symm_buffer_reserve()); where they cannot, y is there at
 * once.  Whoever uses y next takes `coming` with it or calls d9d_op_all_gather_rows_wait() first,
 * before anything else is moved over `comm`. */
struct d9d_op_pending_rows {
    d9d_comm *comm; /* NULL: all rows are there */
    const char *label;
    const d9d_var *local;
};
D9D_API D9D_MUST_USE d9d_status d9d_op_all_gather_rows_start(d9d_tape *t, d9d_var *x,
                                                             d9d_comm *comm, const char *what,
                                                             d9d_op_pending_rows *coming,
                                                             d9d_var **y);
/* What is queued from here on has all rows of y.  NULL is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_op_all_gather_rows_wait(d9d_tape *t,
                                                            d9d_op_pending_rows *coming,
                                                            const d9d_var *y);
/* This rank's part of the rows of the sum of x over all ranks.  The gradient of x is that of all
 * rows.  x [..., N], its rows a multiple of the ranks, y [rows / ranks, N]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_reduce_scatter_rows(d9d_tape *t, d9d_var *x, d9d_comm *comm,
                                                           const char *what, d9d_var **y);
/* The positions of all ranks in the order of the sequence, where each has pieces r and 2n - 1 - r
 * of 2n of every row (d9d/nn/parallel_groups.h).  The gradient of a rank's positions is the sum of
 * what all ranks have for them.  EINVAL for an odd S.  x [B, S, ...], y [B, n S, ...]. */
D9D_API D9D_MUST_USE d9d_status d9d_op_cp_gather(d9d_tape *t, d9d_var *x, d9d_comm *comm,
                                                 const char *what, d9d_var **y);

#ifdef __cplusplus
}
#endif
#endif /* D9D_OP_OP_H */
