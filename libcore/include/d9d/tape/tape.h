/* tape.h - operations recorded as they run, and their backward in two halves.
 *
 * A model's forward is plain code that calls ops; an op computes its outputs at once
 * and records a node: what it needs to compute the gradient of its inputs (the input
 * half) and of its parameters (the weight half).
 *
 *     D9D_TRY(d9d_tape_leaf(tape, &x, true, &vx));
 *     D9D_TRY(d9d_op_linear(tape, vx, w, &vy));
 *     D9D_TRY(d9d_tape_backward(tape, &vy, &dy, 1, D9D_BACKWARD_FULL));
 *     d9d_var_grad(vx, &dx);
 *
 * Backward runs in one of three modes, nodes in reverse order of recording:
 *
 *     FULL    input half, then weight half of each node; what it saved is dropped
 *     INPUT   input halves alone; a node with parameters keeps its output gradient
 *             and what its weight half needs, everything else is dropped
 *     WEIGHT  the weight halves that INPUT left, in the same order
 *
 * FULL equals INPUT then WEIGHT bit for bit, because the halves are the same functions
 * in the same order per parameter.  A tape goes through backward once: FULL, or INPUT
 * and later WEIGHT; after that only d9d_tape_reset() makes it ready to record again.
 *
 * d9d_tape_recompute() runs a function without recording and replays it when
 * backward reaches it: the replay records a tape inside the tape, which takes part in
 * the three modes like everything else.  Its gradients are added to where the outer
 * sum stands, so that recompute equals no recompute bit for bit.
 *
 * A var lives as long as its tape (until free or reset); the array in it lives while
 * something needs it: d9d_tape_release_since() drops the arrays of vars made since a
 * mark, except those to keep, so that only what backward saved stays alive.  Gradients
 * of inner vars are dropped as soon as their node has run.
 *
 * After any failure, forward or backward, the tape is good for reset and free alone.
 * Tapes belong to one thread at a time.
 */
#ifndef D9D_TAPE_TAPE_H
#define D9D_TAPE_TAPE_H

#include "d9d/tape/param.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_NODE_MAX 8 /* inputs, outputs, parameters and saved arrays of one node, each */

typedef struct d9d_tape d9d_tape;
typedef struct d9d_var d9d_var;

D9D_API D9D_MUST_USE d9d_status d9d_tape_create(d9d_device *dev, d9d_tape **out);
D9D_API void d9d_tape_free(d9d_tape *t);
/* Forget every var and node, and be ready to record. */
D9D_API void d9d_tape_reset(d9d_tape *t);
/* Off: ops compute and record nothing (inference).  On at creation; reset does not change it. */
D9D_API void d9d_tape_set_recording(d9d_tape *t, bool on);
/* On: a promise that parameters stay as they are while what the tape's ops queue is under way, so
 * that kernels may read them ahead of their turn.  Off at creation; reset does not change it. */
D9D_API void d9d_tape_set_weights_constant(d9d_tape *t, bool on);
/* Is that promised of this one?  Not of one that is gathered when it is needed. */
D9D_API bool d9d_tape_is_weight_constant(const d9d_tape *t, const d9d_param *p);
D9D_API d9d_device *d9d_tape_device(const d9d_tape *t);

/* Where random numbers of a forward come from.  Each belongs to an element of an array of the whole
 * run, [every token there is, features]: which ranks have the token, and with which others, is all
 * the same, and a replay draws the same again. */
typedef struct d9d_dropout_rng {
    uint64_t seed;
    d9d_tensor token; /* [T] int64: numbers of the tokens that a forward has */
    int64_t first;    /* where an op that sees a part of them (d9d/nn/parallel_groups.h) begins */
} d9d_dropout_rng;
/* Until reset; takes a reference of its own.  Without them nothing is dropped. */
D9D_API void d9d_tape_set_dropout_rng(d9d_tape *t, const d9d_dropout_rng *draws);
D9D_API const d9d_dropout_rng *d9d_tape_dropout_rng(const d9d_tape *t); /* NULL: none */

/* What the tokens of a forward weigh where an op counts them (d9d_op_router()): padding 0, others
 * so that a row's weights add up to what the row trains on. */
typedef struct d9d_token_weights {
    d9d_tensor weight; /* [B, S] float32 */
    int64_t first;     /* as above */
} d9d_token_weights;
/* Until reset, and as above; without them nothing is counted. */
D9D_API void d9d_tape_set_token_weights(d9d_tape *t, const d9d_token_weights *shares);
D9D_API const d9d_token_weights *d9d_tape_token_weights(const d9d_tape *t); /* NULL: none */
/* Is this a second forward, d9d_tape_recompute()'s?  What counts has counted it already. */
D9D_API bool d9d_tape_is_recompute(const d9d_tape *t);

/* A var over an array that no op made; takes its own reference. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_leaf(d9d_tape *t, const d9d_tensor *x, bool needs_grad,
                                              d9d_var **out);
/* Borrowed; once released storage is NULL, dtype and shape stay. */
D9D_API const d9d_tensor *d9d_var_tensor(const d9d_var *v);
D9D_API bool d9d_var_needs_grad(const d9d_var *v);
/* After backward: a counted reference to a leaf's gradient (same shape and dtype as
 * the leaf); storage NULL when nothing reached it. */
D9D_API void d9d_var_grad(const d9d_var *v, d9d_tensor *out);
/* The same, and the tape holds it no more. */
D9D_API void d9d_var_move_grad(d9d_var *v, d9d_tensor *out);

D9D_API size_t d9d_tape_mark(const d9d_tape *t);
D9D_API void d9d_tape_release_since(d9d_tape *t, size_t mark, d9d_var *const *keep, size_t n);

typedef enum d9d_tape_backward_mode {
    D9D_BACKWARD_FULL,
    D9D_BACKWARD_DGRAD,
    D9D_BACKWARD_WGRAD /* roots and seeds are ignored */
} d9d_tape_backward_mode;

/* seeds[i] is the gradient of root i, of its shape and dtype; it is not changed.  A root that needs
 * no gradient is passed over.  EINVAL for another shape or dtype, and for a second backward. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_backward(d9d_tape *t, d9d_var *const *roots,
                                                  const d9d_tensor *seeds, size_t n,
                                                  d9d_tape_backward_mode mode);

/* A piece of a model's forward.  `self` must outlive the backward; the function may
 * depend on nothing but self, the inputs and parameters, and must give the same each time. */
typedef d9d_status (*d9d_tape_forward_fn)(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                          d9d_var **out, size_t n_out);
/* Run `fn` keeping only its inputs and outputs; replay it in backward.  Nests.  At most
 * D9D_NODE_MAX outputs and, where something is recorded, as many inputs. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_recompute(d9d_tape *t, d9d_tape_forward_fn fn, void *self,
                                                   d9d_var *const *in, size_t n_in, d9d_var **out,
                                                   size_t n_out);

/* --- for authors of ops ----------------------------------------------------- *
 *
 * An op checks its shapes, calls d9d_tape_output() for each result, computes it (one of a plugin by
 * d9d_device_launch() or the device's kernels, or it cannot be planned), and,
 * if d9d_tape_should_record() says so, records a node and saves what its halves need.  A save
 * that no half will read (a frozen parameter, an input without gradient) keeps nothing.
 *
 *     static d9d_status linear_input(d9d_node *n)  { ... return d9d_node_accumulate_grad(n, 0,
 * &dx); } static d9d_status linear_weight(d9d_node *n) { ... into n->param[0]->grad ... } static
 * const d9d_node_ops linear_ops = { .name = "linear", .input = linear_input, .weight =
 * linear_weight};
 *
 * A half runs when a gradient has reached one of the outputs.  The weight half passes
 * over parameters for which d9d_param_needs_grad() is false, and begins each of the others
 * with d9d_param_grad_beta().
 */
typedef struct d9d_node d9d_node;
typedef struct d9d_node_ops {
    const char *name;
    d9d_status (*dgrad)(d9d_node *n); /* NULL: no input has a gradient */
    d9d_status (*wgrad)(d9d_node *n); /* NULL: no parameters */
    d9d_status (*bwd)(d9d_node *n);   /* NULL: input, then weight */
    void (*release)(d9d_node *n);     /* NULL, or: release what attr owns; a second call is fine */
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
    d9d_tensor dout[D9D_NODE_MAX]; /* output gradients; storage NULL where none arrived: zero */
    d9d_param *param[D9D_NODE_MAX];
    d9d_tensor saved[D9D_NODE_MAX];
    d9d_node_need need[D9D_NODE_MAX]; /* which half needs saved[i] */
    d9d_node_need halves;             /* that will run, decided when it was recorded; may be 0 */
    bool reached;                     /* by a gradient */
    bool is_root;                     /* makes the gradient of its outputs itself */
    void *attr;                       /* constants of the op, in the tape's arena */
};

/* True when a node must be recorded: recording is on, and an input needs a gradient or
 * d9d_param_needs_grad() one of the parameters. */
D9D_API bool d9d_tape_should_record(d9d_tape *t, d9d_var *const *in, size_t n_in,
                                    d9d_param *const *param, size_t n_param);
/* A new var with fresh, uncleared memory. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_output(d9d_tape *t, d9d_dtype dtype, d9d_shape shape,
                                                d9d_var **out);
/* A new var that takes over one reference to `x` (views, fused outputs). */
D9D_API D9D_MUST_USE d9d_status d9d_tape_output_take(d9d_tape *t, d9d_tensor *x, d9d_var **out);
/* Record; `attr_size` zeroed bytes are at node->attr.  Outputs then need a gradient. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_record(d9d_tape *t, const d9d_node_ops *ops,
                                                d9d_var *const *in, size_t n_in,
                                                d9d_var *const *out, size_t n_out,
                                                d9d_param *const *param, size_t n_param,
                                                size_t attr_size, d9d_node **node);
/* A node without arrays, both of whose halves run when backward comes by, whatever gradients there
 * are.  NULL where nothing is recorded. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_record_hook(d9d_tape *t, const d9d_node_ops *ops,
                                                     size_t attr_size, d9d_node **node);
/* Ops that wait for other ranks in their backward say so when they are recorded.  FULL then puts
 * weight halves off, and each such op has them run between the beginning and the end of its wait;
 * the order per parameter is the same, and so are the bits. */
D9D_API void d9d_tape_defer_wgrad(d9d_tape *t);
D9D_API D9D_MUST_USE d9d_status d9d_tape_run_deferred(d9d_tape *t);
/* Leaves the last weight half, and what is behind it, to the next wait. */
D9D_API D9D_MUST_USE d9d_status d9d_tape_run_deferred_keep_one(d9d_tape *t);
/* For a node without arrays: `run` comes behind all weight halves of before, with them where they
 * are put off.  Of two such nodes the second runs at once. */
D9D_API D9D_MUST_USE d9d_status d9d_node_defer(d9d_node *n, d9d_status (*run)(d9d_node *n));
/* Keep a counted reference to `x` until the halves named have run.  Returns its index. */
D9D_API int d9d_node_save(d9d_node *n, const d9d_tensor *x, d9d_node_need need);
/* The node knew in its forward that the sum of its outputs is what is trained on, and worked with
 * ones as their gradient: it runs in every backward, which needs no root then, and a gradient given
 * to it is EINVAL.  Not inside a checkpoint: the op asks d9d_tape_check_root() first, which is
 * EINVAL there. */
D9D_API void d9d_node_make_root(d9d_node *n);
D9D_API bool d9d_var_is_root(const d9d_var *v); /* an output of such a node */
D9D_API D9D_MUST_USE d9d_status d9d_tape_check_root(const d9d_tape *t, const char *op);
/* Does input i want a gradient? */
D9D_API bool d9d_node_input_needs_grad(const d9d_node *n, int i);
/* Give the gradient of input i, of its shape and dtype; takes the reference over, also where it
 * fails.  It may share storage with dout or anything else.  The first gift is kept as it is, later
 * ones are added. */
D9D_API D9D_MUST_USE d9d_status d9d_node_accumulate_grad(d9d_node *n, int i, d9d_tensor *grad);
/* The same for a gradient that is added up while it is made: *sum is where the sum goes and *plus
 * what was given before, NULL for nothing; both are one memory unless somebody else holds the
 * latter.  After sum = plus + gradient, d9d_node_accumulate_end() takes the reference over. */
D9D_API D9D_MUST_USE d9d_status d9d_node_accumulate_begin(d9d_node *n, int i, d9d_tensor *sum,
                                                          const void **plus);
D9D_API void d9d_node_accumulate_end(d9d_node *n, int i, d9d_tensor *sum);
/* Uncleared scratch or gradient memory on the tape's device. */
D9D_API D9D_MUST_USE d9d_status d9d_node_alloc(d9d_node *n, d9d_dtype t, d9d_shape s,
                                               d9d_tensor *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TAPE_TAPE_H */
