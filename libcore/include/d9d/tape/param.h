/* param.h - a trainable array: data, gradient, and its place in the whole.
 *
 * A parameter is declared with its whole shape and no memory.  Placement then says which part of
 * the whole this rank computes with, `work`, and which part of that it keeps, `box`; both are
 * everything until a plan (d9d/parallel/parallel_plan.h) cuts them:
 *
 *     .-- whole -----------------.
 *     |            .-- work ----.|     what operations read: cut by tensor and expert parallelism
 *     |            |            ||
 *     |            |-- box -----||     what is kept, updated and saved: cut again over `shard`,
 *     |            |------------||     whose ranks have the other parts of `work`
 *     '--------------------------'
 *
 * Operations use `data` and `grad`.  What must not depend on the topology - initial values,
 * optimizers, checkpoints, norms - uses `own` and `own_grad`, the box and the whole shape.
 * Without `shard` both are the same arrays; with it, data and grad have memory only while a unit
 * is open (d9d/nn/param_unit.h).
 *
 * A gradient is never cleared: while has_grad is false its memory holds anything and it counts
 * as zero.  The same goes for own_grad, which may be `late`: a sum over ranks that is under way on
 * a group's queue.  Who reads it before all sums are there awaits it first.
 */
#ifndef D9D_TAPE_PARAM_H
#define D9D_TAPE_PARAM_H

#include "d9d/comm/comm.h"
#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_adapter d9d_adapter;

/* A place in a group's queue behind which gradients are. */
typedef struct d9d_pending_reduce {
    d9d_comm *comm;
    d9d_comm_event *event; /* NULL: everything is done in turn */
} d9d_pending_reduce;

typedef struct d9d_param {
    const char *name;       /* dotted, from the root module once bound; before that local or NULL */
    uint64_t id;            /* d9d_hash_u64 of the name: the stream of its random numbers */
    d9d_shape global_shape; /* shape of the whole parameter */
    d9d_shape shard_shape;  /* shape of the part kept here */
    int64_t shard_offset[D9D_MAX_DIMS]; /* first index of the box in the whole */
    d9d_shape local_shape;              /* shape of the part computed with here */
    int64_t local_offset[D9D_MAX_DIMS];
    d9d_comm
        *shard_group; /* whose ranks keep the parts of `work` in their order; NULL: box is work */
    int shard_dim;    /* along which they are cut */
    d9d_comm *grad_group; /* whose ranks see other tokens with the same box; NULL: none do */
    bool is_primary;      /* on one of the ranks that keep this box; true where there is one */
    d9d_dtype dtype;      /* of data */
    d9d_dtype grad_dtype; /* of grad: D9D_F32 by default, whatever dtype is */
    d9d_init_kind init;
    float init_scale;
    bool trainable;                 /* false: no gradient is computed or kept */
    bool adaptable;                 /* used by d9d_op_linear*() and d9d_op_grouped_linear() alone */
    d9d_adapter *adapter;           /* what they add; NULL: nothing */
    const struct d9d_param *adapts; /* the matrix of whose adapter it is a factor; NULL: none */
    bool from_task;                 /* by a task: a checkpoint of the model need not have it */
    bool is_buffer;                 /* never `trainable`: a rule of its own moves it */
    bool is_mutable_buffer;         /* a buffer that is not frozen */
    bool has_grad;                  /* something was accumulated since the gradient was forgotten */
    bool has_shard_grad;            /* of own_grad, where `shard` makes it another array */
    d9d_tensor data;       /* [work]; storage NULL until materialised, or while no unit is open */
    d9d_tensor grad;       /* [work]; also NULL unless trainable and materialised for training */
    d9d_tensor shard;      /* [box]; data, but with `shard` */
    d9d_tensor shard_grad; /* [box]; grad, but with `shard` */
    const d9d_pending_reduce
        *pending_reduce; /* own_grad is there behind it; NULL: behind what the stream has */
} d9d_param;

/* A matrix's low-rank companion (LoRA): what a linear operation adds to x W^T,
 *
 *     scale * (x A^T) B^T        of a stack of experts: scale * (x A_e) B_e
 *
 * It is made by d9d/nn/lora.h and placed with the matrix that it belongs to. */
struct d9d_adapter {
    d9d_param *a, *b; /* [r, in], [out, r]; of a stack [E, in, r], [E, r, out] */
    double alpha;     /* with r makes `scale`, alpha / r */
    float scale;
    float dropout; /* of what goes into A, where numbers are drawn (d9d_tape_set_dropout_rng()) */
};

/* Is a gradient to be computed for it? */
static inline bool d9d_param_needs_grad(const d9d_param *p)
{
    return p->trainable && (p->grad.storage != NULL || p->shard_grad.storage != NULL);
}

/* Accumulation rule: the first contribution after a clear overwrites, later ones add, in
 * the order of the backward pass.  Kernels get `beta` 0 or 1 from this and the flag is set. */
static inline float d9d_param_grad_beta(d9d_param *p)
{
    float beta = p->has_grad ? 1.0f : 0.0f;

    p->has_grad = true;
    return beta;
}

/* Does own_grad hold a gradient? */
static inline bool d9d_param_has_shard_grad(const d9d_param *p)
{
    return p->trainable && (p->shard_group != NULL ? p->has_shard_grad : p->has_grad);
}

/* What is queued on `s` from here on comes behind own_grad. */
static inline d9d_status d9d_param_wait_grad(const d9d_param *p, d9d_stream s)
{
    return p->pending_reduce == NULL
               ? D9D_OK
               : d9d_stream_wait_event(p->pending_reduce->comm, p->pending_reduce->event, s);
}

/* --- placement, before there is memory ------------------------------------------------ */

/* Part i when n indices are dealt over `parts`: all of one length, or the first ones one longer. */
static inline void d9d_param_split_even(int64_t n, int64_t parts, int64_t i, int64_t *first,
                                        int64_t *count)
{
    const int64_t more = n % parts;

    *count = n / parts + (i < more ? 1 : 0);
    *first = n / parts * i + (i < more ? i : more);
}

/* Compute with part i of `parts` of dimension `dim`: cuts work and box. */
D9D_API void d9d_param_partition(d9d_param *p, int dim, int64_t parts, int64_t i);
/* Keep part i of `parts` of work along `dim`; the ranks of `shard` keep one each, in their order.
 */
D9D_API void d9d_param_shard(d9d_param *p, d9d_comm *shard, int dim, int64_t parts, int64_t i);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TAPE_PARAM_H */
