/* param.h - a trainable array: its data, its gradient, and its place in the whole parameter.
 *
 * A parameter is declared with its global shape and no memory.  Placement then says which part of
 * it this rank computes with (the local part), and which part of that it stores (the shard).  Both
 * are the whole parameter until a plan (d9d/parallel/parallel_plan.h) divides them:
 *
 *     .-- global ----------------.
 *     |            .-- local ---.|     what operations read: split by tensor and expert parallelism
 *     |            |            ||
 *     |            |-- shard ---||     what is stored, updated and saved: split by FSDP over
 *     |            |------------||     `shard_group`, whose ranks have the other shards of `local`
 *     '--------------------------'
 *
 * Operations use `data` and `grad` (of the local part).  What must not depend on the topology -
 * initial values, optimizers, checkpoints, norms - uses `shard` and `shard_grad`, with the shard's
 * offsets in the global shape.  Without a shard_group both are the same arrays.  With one, data and
 * grad have memory only while their unit is unsharded (d9d/nn/param_unit.h).
 *
 * A gradient is never zeroed: while has_grad is false its memory is undefined and it counts as
 * zero.  The same holds for shard_grad and has_shard_grad.  The reduce-scatter that computes
 * shard_grad may be pending on a group's stream: wait with d9d_param_wait_grad() before reading it.
 */
#ifndef D9D_TAPE_PARAM_H
#define D9D_TAPE_PARAM_H

#include "d9d/comm/comm.h"
#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_adapter d9d_adapter;

/* An event on a group's stream after which gradients are reduced. */
typedef struct d9d_pending_reduce {
    d9d_comm *comm;
    d9d_comm_event *event; /* NULL: calls run in order */
} d9d_pending_reduce;

/* How tensor and expert parallelism divide a parameter.  Blocks declare it, with torch's names; a
 * plan applies it (d9d/parallel/parallel_plan.h). */
typedef enum d9d_parallel_style {
    D9D_REPLICATED,      /* on all tp ranks; each has the gradient of its own tokens or heads */
    D9D_COLWISE,         /* dimension 0 over the tp ranks: outputs of a linear layer, ids */
    D9D_ROWWISE,         /* dimension 1 over the tp ranks: inputs of a linear layer */
    D9D_EXPERT_PARALLEL, /* dimension 0 over the ep ranks */
    D9D_PARALLEL_STYLES
} d9d_parallel_style;

/* A style, and what must stay whole: the divided dimension is `units` of equal size, such as
 * heads. */
typedef struct d9d_param_parallel {
    d9d_parallel_style style;
    int64_t units;    /* 0: any division is possible */
    bool shared;      /* more ranks than units may compute a unit each; it is then replicated */
    const char *unit; /* "num_attention_heads", for messages */
} d9d_param_parallel;

typedef struct d9d_param {
    const char *name; /* dotted path from the root module once bound; before that local or NULL */
    uint64_t id;      /* d9d_hash_u64() of the name: its random number stream */
    d9d_shape global_shape;             /* shape of the whole parameter */
    d9d_shape shard_shape;              /* shape of the shard stored here */
    int64_t shard_offset[D9D_MAX_DIMS]; /* first index of the shard in the whole */
    d9d_shape local_shape;              /* shape of the part that this rank computes with */
    int64_t local_offset[D9D_MAX_DIMS];
    d9d_comm *shard_group; /* whose ranks store the shards of the local part, in order; NULL: shard
                              is local */
    int shard_dim;         /* dimension that is sharded */
    d9d_comm *grad_group;  /* ranks that see other tokens with the same shard: gradients are summed
                              over it; NULL: none */
    bool is_primary;       /* true on one of the ranks that store this shard */
    d9d_dtype dtype;       /* of data */
    d9d_dtype grad_dtype;  /* dtype of grad: D9D_F32 by default, whatever dtype is */
    d9d_init_kind init;
    float init_scale;
    d9d_param_parallel parallel;
    bool trainable; /* false: frozen, no gradient is computed or stored */
    bool adaptable; /* used only by d9d_op_linear*() and d9d_op_grouped_linear(): LoRA can adapt it
                     */
    d9d_adapter *adapter;           /* LoRA adapter of this matrix; NULL: none */
    const struct d9d_param *adapts; /* the matrix whose LoRA factor this is; NULL: none */
    bool from_task;                 /* made by a task: a checkpoint of the model may lack it */
    bool is_buffer;                 /* a buffer: never `trainable`, no optimizer updates it */
    bool is_mutable_buffer;         /* a buffer that training changes */
    bool has_grad;                  /* something was accumulated since the gradient was reset */
    bool has_shard_grad;            /* of shard_grad, where a shard_group makes it another array */
    d9d_tensor data;  /* [local]; storage NULL until materialised, or while its unit is sharded */
    d9d_tensor grad;  /* [local]; also NULL unless trainable and materialised for training */
    d9d_tensor shard; /* [shard]; the same as data without a shard_group */
    d9d_tensor shard_grad; /* [shard]; the same as grad without a shard_group */
    const d9d_pending_reduce
        *pending_reduce; /* after it shard_grad is reduced; NULL: in stream order */
} d9d_param;

/* A low-rank adapter (LoRA) of a matrix, which a linear operation adds to x W^T:
 *
 *     scale * (x A^T) B^T        for a stack of experts: scale * (x A_e) B_e
 *
 * d9d/nn/lora.h makes it; it is placed as the matrix that it adapts. */
struct d9d_adapter {
    d9d_param *a, *b; /* [r, in], [out, r]; for a stack of experts [E, in, r], [E, r, out] */
    double alpha;     /* scale = alpha / r */
    float scale;
    float dropout; /* dropout of A's input, if the tape has a d9d_tape_set_dropout_rng() */
};

/* True if backward must compute its gradient. */
static inline bool d9d_param_needs_grad(const d9d_param *p)
{
    return p->trainable && (p->grad.storage != NULL || p->shard_grad.storage != NULL);
}

/* Accumulation rule: the first contribution after a reset overwrites, later ones add, in the order
 * of the backward pass.  Returns `beta` 0 or 1 for the kernel, and sets has_grad. */
static inline float d9d_param_grad_beta(d9d_param *p)
{
    float beta = p->has_grad ? 1.0f : 0.0f;

    p->has_grad = true;
    return beta;
}

/* True if shard_grad has a gradient. */
static inline bool d9d_param_has_shard_grad(const d9d_param *p)
{
    return p->trainable && (p->shard_group != NULL ? p->has_shard_grad : p->has_grad);
}

/* Stream s waits until shard_grad is reduced. */
static inline d9d_status d9d_param_wait_grad(const d9d_param *p, d9d_stream s)
{
    return p->pending_reduce == NULL
               ? D9D_OK
               : d9d_stream_wait_event(p->pending_reduce->comm, p->pending_reduce->event, s);
}

/* --- placement, before materialising ------------------------------------------------- */

/* Part i of n indices divided over `parts`: equal lengths, or the first ones one longer. */
static inline void d9d_param_split_even(int64_t n, int64_t parts, int64_t i, int64_t *first,
                                        int64_t *count)
{
    const int64_t more = n % parts;

    *count = n / parts + (i < more ? 1 : 0);
    *first = n / parts * i + (i < more ? i : more);
}

/* Tensor or expert parallelism: compute with part i of `parts` of dimension `dim`.  Narrows the
 * local part and the shard. */
D9D_API void d9d_param_partition(d9d_param *p, int dim, int64_t parts, int64_t i);
/* FSDP: store part i of `parts` of the local part along `dim`; each rank of `shard` stores one, in
 * rank order.
 */
D9D_API void d9d_param_shard(d9d_param *p, d9d_comm *shard, int dim, int64_t parts, int64_t i);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TAPE_PARAM_H */
