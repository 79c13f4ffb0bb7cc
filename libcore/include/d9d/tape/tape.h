/* tape.h - autograd: operations recorded as they run, and their backward in two halves.
 *
 * A model's forward is plain code that calls ops.  An op computes its outputs at once and records a
 * node: what it needs to compute the gradient of its inputs (the dgrad half) and of its parameters
 * (the wgrad half).
 *
 *     D9D_TRY(d9d_tape_leaf(tape, &x, true, &vx));
 *     D9D_TRY(d9d_op_linear(tape, vx, w, &vy));
 *     D9D_TRY(d9d_tape_backward(tape, &vy, &dy, 1, D9D_BACKWARD_FULL));
 *     d9d_var_grad(vx, &dx);
 *
 * Backward runs in one of three modes, nodes in reverse order of recording:
 *
 *     FULL    dgrad, then wgrad of each node; then frees what it saved
 *     DGRAD   dgrad only; a node with parameters keeps its output gradient and what its wgrad
 *             needs, everything else is freed
 *     WGRAD   the wgrad halves that DGRAD left, in the same order
 *
 * FULL equals DGRAD then WGRAD bit for bit, because the halves are the same functions in the same
 * order for each parameter.  Zero-bubble pipeline schedules use the two separately.  A tape goes
 * through backward once: FULL, or DGRAD and later WGRAD.  After that only d9d_tape_reset() makes it
 * ready to record again.
 *
 * Activation checkpointing: d9d_tape_recompute() runs a function without recording and runs it
 * again when backward reaches it.  The recomputation records an inner tape, which takes part in the
 * three modes.  Its gradients are accumulated into the outer sums, so that recompute equals no
 * recompute bit for bit.
 *
 * A var lives as long as its tape (until free or reset); its array lives while something needs it.
 * d9d_tape_release_since() frees the arrays of vars made since a mark, except those in `keep`, so
 * that only what backward needs stays.  Gradients of inner vars are freed as soon as their node has
 * run.
 *
 * After any failure, forward or backward, a tape may only be reset or freed.  A tape belongs to one
 * thread at a time.
 */
#ifndef D9D_TAPE_TAPE_H
#define D9D_TAPE_TAPE_H

#include "d9d/tape/param.h"
#include "d9d/tensor/offload.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_NODE_MAX 8 /* the most inputs, outputs, parameters, and saved arrays of a node */

typedef struct d9d_tape d9d_tape;
typedef struct d9d_var d9d_var;

D9D_API D9D_MUST_USE d9d_status d9d_tape_create(d9d_device *dev, d9d_tape **out);
D9D_API void d9d_tape_free(d9d_tape *t);
/* Free every var and node, and be ready to record. */
D9D_API void d9d_tape_reset(d9d_tape *t);
/* Off: ops compute and record nothing (inference).  On at creation; reset does not change it. */
D9D_API void d9d_tape_set_recording(d9d_tape *t, bool on);
/* A forward of a reference, between the two calls: nothing is recorded, dropped or counted, and
 * matrices compute without their adapters (LoRA), as the base model that they adapt.  The end
 * restores what recording was. */
D9D_API void d9d_tape_begin_reference(d9d_tape *t);
D9D_API void d9d_tape_end_reference(d9d_tape *t);
/* The adapter that applies to a matrix now; NULL: none. */
D9D_API const d9d_param_adapter *d9d_tape_adapter(const d9d_tape *t, const d9d_param *w);
/* On: the caller promises not to change parameters while work that the tape's ops enqueued is
 * pending, so that kernels may prefetch weights.  Off at creation; reset does not change it. */
D9D_API void d9d_tape_set_weights_constant(d9d_tape *t, bool on);
/* True if that is promised for this parameter: not for one that FSDP unshards when it is needed. */
D9D_API bool d9d_tape_is_weight_constant(const d9d_tape *t, const d9d_param *p);
D9D_API d9d_device *d9d_tape_device(const d9d_tape *t);

/* Dropout's random numbers.  Each belongs to an element of a global array [all tokens of the run,
 * features].  It depends neither on the rank that has the token nor on the token's batch, and a
 * recomputation draws it again. */
typedef struct d9d_dropout_rng {
    uint64_t seed;
    d9d_tensor token;       /* [T] int64: global numbers of the tokens of a forward */
    d9d_tensor query_token; /* int64: of the queries, where heads are exchanged for positions
                               (d9d_op_attention()); else empty */
    int64_t first, part;    /* the tokens [first, first + part) of an op that sees a part of them
                               (d9d/nn/parallel_groups.h); part 0: there is none */
    int64_t max_positions; /* L: no document has more tokens; number k L + i is position i of sample
                              k */
} d9d_dropout_rng;
/* Valid until reset; takes its own reference.  A forward with it is one of training; without it
 * nothing is dropped. */
D9D_API void d9d_tape_set_dropout_rng(d9d_tape *t, const d9d_dropout_rng *rng);
D9D_API const d9d_dropout_rng *d9d_tape_dropout_rng(const d9d_tape *t); /* NULL: none */
/* Rows of another kind, between the two calls: texts that were pooled, or some of the tokens.
 * Dropout takes their numbers, int64 [rows], in the place of the tokens', and refuses arrays with
 * other numbers of rows.  A function that is recomputed begins and ends them itself. */
D9D_API void d9d_tape_begin_rows(d9d_tape *t, const d9d_tensor *number);
D9D_API void d9d_tape_end_rows(d9d_tape *t);

/* Weights of a forward's tokens where an op counts them (d9d_op_router()): 0 for padding; the
 * others of a sample sum to the number of its targets. */
typedef struct d9d_token_weights {
    d9d_tensor weight;      /* [B, S] float32 */
    int64_t first;          /* as above */
    const int64_t *lengths; /* [B] tokens of each whole sequence, without padding; NULL: all */
    d9d_tensor lane;        /* [B, S] int32: of experts with copies, which one has the token
                               (d9d_op_route_copies()); storage NULL: none has copies */
} d9d_token_weights;
/* Valid until reset; takes its own references of `weight` and `lane`, and `lengths` must live until
 * then.
 * Without them nothing is counted, and experts have no capacity. */
D9D_API void d9d_tape_set_token_weights(d9d_tape *t, const d9d_token_weights *weights);
D9D_API const d9d_token_weights *d9d_tape_token_weights(const d9d_tape *t); /* NULL: none */
/* Prefix masks for causal attention over segments: how many of a segment's first keys all its
 * queries see, [N] int32 (d9d/kernels/segment.h).  Valid until reset; takes its own reference. */
D9D_API void d9d_tape_set_prefix(d9d_tape *t, const d9d_tensor *prefix);
D9D_API const d9d_tensor *d9d_tape_prefix(const d9d_tape *t); /* NULL: none */
/* Generation: a forward's tokens are of one sequence, whose keys are the KV cache's token slots
 * [first, first + n). */
typedef struct d9d_tape_prefill {
    int64_t first, n;
    d9d_tensor segments; /* [1, 4] int32: the sequence, its keys counted from 0 */
} d9d_tape_prefill;
/* Valid until reset; takes its own reference. */
D9D_API void d9d_tape_set_prefill(d9d_tape *t, const d9d_tape_prefill *prefill);
D9D_API const d9d_tape_prefill *d9d_tape_get_prefill(const d9d_tape *t); /* NULL: none */
/* True in the second forward of d9d_tape_recompute() and in that of a reference, in which
 * statistics must not be counted. */
D9D_API bool d9d_tape_is_recompute(const d9d_tape *t);

/* A leaf: a var over an array that no op made; takes its own reference. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_leaf(d9d_tape *t, const d9d_tensor *x, bool needs_grad,
                                              d9d_var **out);
/* The array, borrowed; once released its storage is NULL, dtype and shape stay. */
D9D_API const d9d_tensor *d9d_var_tensor(const d9d_var *v);
D9D_API bool d9d_var_needs_grad(const d9d_var *v);
/* After backward: a counted reference to a leaf's gradient (same shape and dtype as the leaf);
 * storage NULL if no gradient reached it. */
D9D_API void d9d_var_grad(const d9d_var *v, d9d_tensor *out);
/* The same, and the tape drops its own reference. */
D9D_API void d9d_var_move_grad(d9d_var *v, d9d_tensor *out);

D9D_API size_t d9d_tape_mark(const d9d_tape *t);
D9D_API void d9d_tape_release_since(d9d_tape *t, size_t mark, d9d_var *const *keep, size_t n);

/* Offload of activations: what a part of a forward has saved waits in host memory until backward
 * comes to that part (d9d/tensor/offload.h).
 *
 *     const size_t first = d9d_tape_node_mark(t);
 *     ... a layer's forward from x to y; d9d_tape_release_since() of all but y ...
 *     D9D_TRY(d9d_tape_offload_since(t, first, x, true));
 *
 * Only what nodes alone refer to goes: a var that still has its array keeps it here, and so does
 * the model.  Backward fetches a part while the ones after it are computed. */
typedef struct d9d_tape_offload {
    d9d_offload *to;
    double fraction; /* of the parts, evenly spread: part i goes if ceil(i f) < ceil((i + 1) f) */
    int prefetch;    /* parts that are fetched ahead of the one that backward computes */
} d9d_tape_offload;
/* Valid until reset; borrowed.  Without it, the calls below do nothing. */
D9D_API void d9d_tape_set_offload(d9d_tape *t, const d9d_tape_offload *offload);
D9D_API size_t d9d_tape_node_mark(const d9d_tape *t);
/* The nodes since the mark are the next part.  `read` is a var that only they read, whose array is
 * released; NULL: none.  `away` false: the part stays, as backward comes at once, and fetches those
 * before it. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_offload_since(d9d_tape *t, size_t node_mark, d9d_var *read,
                                                       bool away);
/* Backward follows, after other work: begin to fetch its first parts. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_prefetch(d9d_tape *t);

typedef enum d9d_tape_backward_mode {
    D9D_BACKWARD_FULL,
    D9D_BACKWARD_DGRAD,
    D9D_BACKWARD_WGRAD /* roots and seeds are ignored */
} d9d_tape_backward_mode;

/* seeds[i] is the gradient of root i, of its shape and dtype; it is not changed.  A root that needs
 * no gradient is skipped.  EINVAL for another shape or dtype, and for a second backward. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_backward(d9d_tape *t, d9d_var *const *roots,
                                                  const d9d_tensor *seeds, size_t n,
                                                  d9d_tape_backward_mode mode);

/* A part of a model's forward.  `self` must outlive the backward.  The function may depend only on
 * self, the inputs and parameters, and must compute the same each time. */
typedef d9d_status (*d9d_tape_forward_fn)(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                          d9d_var **out, size_t n_out);
/* Activation checkpointing: run `fn` and save only its inputs; recompute it in backward.  Nests.
 * At most D9D_NODE_MAX outputs and, if something is recorded, as many inputs. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_recompute(d9d_tape *t, d9d_tape_forward_fn fn, void *self,
                                                   d9d_var *const *in, size_t n_in, d9d_var **out,
                                                   size_t n_out);

/* --- for authors of ops -------------------------------------------------------------- *
 *
 * An op checks its shapes, calls d9d_tape_output() for each result, and computes it.  An op of a
 * plugin computes by d9d_device_launch() or the device's kernels, or it cannot be planned.  If
 * d9d_tape_should_record() says so, it records a node and saves what the two halves need.  Saving
 * something that neither half will read (a frozen parameter, an input without gradient) is free.
 *
 *     static d9d_status linear_dgrad(d9d_node *n)
 *     {
 *         ... return d9d_node_accumulate_grad(n, 0, &dx);
 *     }
 *     static d9d_status linear_wgrad(d9d_node *n) { ... into n->param[0]->grad ... }
 *     static const d9d_node_ops linear_ops = {
 *         .name = "linear", .dgrad = linear_dgrad, .wgrad = linear_wgrad};
 *
 * A half runs if a gradient has reached one of the outputs.  The wgrad half skips parameters for
 * which d9d_param_needs_grad() is false, and begins each of the others with d9d_param_grad_beta().
 */
typedef struct d9d_node d9d_node;
typedef struct d9d_node_ops {
    const char *name;
    d9d_status (*dgrad)(d9d_node *n); /* NULL: no input has a gradient */
    d9d_status (*wgrad)(d9d_node *n); /* NULL: no parameters */
    d9d_status (*bwd)(d9d_node *n);   /* both halves at once; NULL: dgrad, then wgrad */
    void (*release)(d9d_node *n); /* release what attr owns; a second call is fine; may be NULL */
} d9d_node_ops;

typedef enum d9d_node_need {
    D9D_NEED_DGRAD = 1,
    D9D_NEED_WGRAD = 2,
    D9D_NEED_BOTH = 3
} d9d_node_need;

struct d9d_node {
    const d9d_node_ops *ops;
    d9d_tape *tape;
    int n_in, n_out, n_param, n_saved;
    d9d_var *in[D9D_NODE_MAX];
    d9d_tensor dout[D9D_NODE_MAX]; /* output gradients; storage NULL: none arrived, zero */
    d9d_param *param[D9D_NODE_MAX];
    d9d_tensor saved[D9D_NODE_MAX];
    d9d_node_need need[D9D_NODE_MAX]; /* which half needs saved[i] */
    d9d_node_need halves;             /* halves that will run, decided when recorded; may be 0 */
    bool reached;                     /* a gradient has reached it */
    bool is_root;                     /* computes the gradient of its outputs itself */
    void *attr;                       /* constants of the op, in the tape's arena */
};

/* True if a node must be recorded: recording is on, and an input needs a gradient or
 * d9d_param_needs_grad() is true for a parameter. */
D9D_API bool d9d_tape_should_record(d9d_tape *t, d9d_var *const *in, size_t n_in,
                                    d9d_param *const *param, size_t n_param);
/* A new var with newly allocated memory that is not cleared. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_output(d9d_tape *t, d9d_dtype dtype, d9d_shape shape,
                                                d9d_var **out);
/* A new var that takes over one reference to `x` (views, fused outputs). */
D9D_API D9D_MUST_USE d9d_status d9d_tape_output_take(d9d_tape *t, d9d_tensor *x, d9d_var **out);
/* Record a node; node->attr has `attr_size` zeroed bytes.  The outputs then need a gradient. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_record(d9d_tape *t, const d9d_node_ops *ops,
                                                d9d_var *const *in, size_t n_in,
                                                d9d_var *const *out, size_t n_out,
                                                d9d_param *const *param, size_t n_param,
                                                size_t attr_size, d9d_node **node);
/* Record a hook: a node without arrays whose two halves always run when backward comes to it.  NULL
 * if nothing is recorded. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_record_hook(d9d_tape *t, const d9d_node_ops *ops,
                                                     size_t attr_size, d9d_node **node);
/* Overlap of communication with wgrad.  An op whose backward waits for other ranks calls
 * d9d_tape_defer_wgrad() when it is recorded.  FULL then defers wgrad halves, and each such op runs
 * them between the start and the end of its communication.  The order for each parameter is the
 * same, and so are the bits. */
D9D_API void d9d_tape_defer_wgrad(d9d_tape *t);
D9D_API D9D_MUST_USE d9d_status d9d_tape_run_deferred(d9d_tape *t);
/* Leaves the last wgrad half, and hooks deferred after it, to the next wait. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_run_deferred_keep_one(d9d_tape *t);
/* For a hook: `run` comes after all earlier wgrad halves, and is deferred with them.  A second hook
 * first runs everything that is deferred. */
D9D_API D9D_MUST_USE d9d_status d9d_node_defer(d9d_node *n, d9d_status (*run)(d9d_node *n));
/* Save a counted reference to `x` until the halves named have run.  Returns its index in
 * n->saved. */
D9D_API int d9d_node_save(d9d_node *n, const d9d_tensor *x, d9d_node_need need);
/* Make the node a root: the sum of its outputs is the loss, and its forward computed with ones as
 * their gradient.  It runs in every backward, which then needs no root; a gradient for it is
 * EINVAL.  Not inside d9d_tape_recompute(): the op first calls d9d_tape_check_root(), which is
 * EINVAL there. */
D9D_API void d9d_node_make_root(d9d_node *n);
D9D_API bool d9d_var_is_root(const d9d_var *v); /* an output of a root node */
D9D_API D9D_MUST_USE d9d_status d9d_tape_check_root(const d9d_tape *t, const char *op);
/* True if input i needs a gradient. */
D9D_API bool d9d_node_input_needs_grad(const d9d_node *n, int i);
/* Accumulate the gradient of input i, of its shape and dtype; takes the reference over, also if it
 * fails.  It may share storage with dout or anything else.  The first gradient is stored as it is,
 * later ones are added. */
D9D_API D9D_MUST_USE d9d_status d9d_node_accumulate_grad(d9d_node *n, int i, d9d_tensor *grad);
/* The same for a kernel that accumulates: *sum is where the sum goes, and *plus is the sum so far,
 * NULL for none.  Both are the same memory unless somebody else has a reference to the latter.
 * After sum = plus + gradient, d9d_node_accumulate_end() takes the reference over. */
D9D_API D9D_MUST_USE d9d_status d9d_node_accumulate_begin(d9d_node *n, int i, d9d_tensor *sum,
                                                          const void **plus);
D9D_API void d9d_node_accumulate_end(d9d_node *n, int i, d9d_tensor *sum);
/* Allocate scratch or gradient memory on the tape's device; not cleared. */
D9D_API D9D_MUST_USE d9d_status d9d_node_alloc(d9d_node *n, d9d_dtype t, d9d_shape s,
                                               d9d_tensor *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TAPE_TAPE_H */
