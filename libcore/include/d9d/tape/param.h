/* param.h - a trainable array: what the model declares, its place on the ranks, and its data and
 * gradient.
 *
 * A parameter is declared with its whole shape and no memory.  Placement then says which part of
 * it this rank computes with (local), and which part of that it stores (shard).  Both are the whole
 * parameter until a plan (d9d/parallel/parallel_plan.h) divides them:
 *
 *     .-- spec.shape ------------.
 *     |            .-- local ---.|     what operations read: split by tensor and expert parallelism
 *     |            |            ||
 *     |            |-- shard ---||     what is stored, updated and saved: split by FSDP over
 *     |            |------------||     placement.shard_group, whose ranks have the other shards
 *     '--------------------------'
 *
 * The life of a parameter: who writes which part, in this order.
 *
 *                         spec  placement  local           shard                    peft
 *     d9d_module_param()  all   defaults   shape           shape
 *     blocks, tasks       flags
 *     adapters            flags                                                     adapter, adapts
 *     parallel plan             all        shape, offset   shape, offset
 *     tied weights              is_primary                 elements of grad
 *     materialise                          data, grad      data, grad
 *     backward, on demand                  grad            grad
 *     reset, checkpoints                                   elements of data
 *     unshard, reshard                     data, grad
 *     backward of an op                    grad, has_grad
 *     reduce-scatter                       grad, has_grad  grad, has_grad, pending_reduce
 *     gradient buckets                                     grad, pending_reduce
 *     optimizer                                            elements of data
 *     clear gradients                      has_grad        has_grad
 *
 * So operations take `local`.  What must not depend on the topology - initial values, optimizers,
 * checkpoints, norms - takes `shard`, with its offset in the whole.  Without a shard_group both
 * have the same arrays.  With one, local has memory only while its unit is unsharded
 * (d9d/nn/param_unit.h).  d9d_module_bind() gives a parameter its name and id.
 *
 * A gradient is never zeroed: while has_grad is false its memory is undefined and it counts as
 * zero.  With grad_on_demand it has none then: activations of a step's forward take that place.
 * FSDP may clear gradients within backward, when they have been used (release_grads).  The
 * reduce-scatter that computes shard.grad may be pending on a group's stream: wait with
 * d9d_param_wait_grad() before reading it.
 */
#ifndef D9D_TAPE_PARAM_H
#define D9D_TAPE_PARAM_H

#include "d9d/comm/comm.h"
#include "d9d/tensor/quantised.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_param d9d_param;
typedef struct d9d_param_adapter d9d_param_adapter;

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

/* The dimension that tensor parallelism divides; -1: none. */
static inline int d9d_parallel_style_dim(d9d_parallel_style style)
{
    static const int dims[D9D_PARALLEL_STYLES] = {
        [D9D_REPLICATED] = -1, [D9D_COLWISE] = 0, [D9D_ROWWISE] = 1, [D9D_EXPERT_PARALLEL] = -1};

    return dims[style];
}

/* A style, and what must stay whole: the divided dimension is `units` of equal size, such as
 * heads. */
typedef struct d9d_param_parallel {
    d9d_parallel_style style;
    int64_t units;    /* 0: any division is possible */
    bool shared;      /* more ranks than units may compute a unit each; it is then replicated */
    const char *unit; /* "num_attention_heads", for messages */
    bool heads;       /* the units are heads of attention, which context parallelism may exchange */
} d9d_param_parallel;

/* What the model declares. */
typedef struct d9d_param_spec {
    d9d_shape shape;      /* of the whole parameter */
    d9d_dtype dtype;      /* of data */
    d9d_dtype grad_dtype; /* of grad: D9D_F32 by default, whatever dtype is */
    d9d_init_kind init;
    float init_scale;
    d9d_param_parallel parallel;
    bool trainable;  /* false: frozen, no gradient is computed or stored */
    bool adaptable;  /* used only by d9d_op_linear*(), d9d_op_grouped_linear() and ops of a
                        vocabulary of one table: it can have an adapter */
    bool reads_data; /* an operation reads elements of dtype, whatever multiplies in 8 bits */
    bool from_task;  /* made by a task: a checkpoint of the model may lack it */
    bool is_buffer;  /* a buffer: never `trainable`, no optimizer updates it */
    bool is_mutable_buffer;  /* a buffer that training changes */
    bool is_head;            /* a table of ids that a head multiplies by; of a tied model the
                                embedding */
    d9d_quant_format stored; /* of a frozen matrix: data is rows of bytes (d9d/kernels/quant.h),
                                which linear operations, embeddings and heads read; NONE:
                                elements of dtype */
} d9d_param_spec;

/* Which ranks have the same parameter, as the parallel plan places it (DTensor's placements). */
typedef struct d9d_param_placement {
    d9d_comm *shard_group; /* whose ranks store the shards of the local part, in order (FSDP's
                              Shard(shard_dim)); NULL: the shard is the local part */
    int shard_dim;
    d9d_comm *grad_group;  /* ranks that see other tokens with the same shard: gradients are summed
                              over it (Replicate); NULL: none */
    d9d_comm *slice_group; /* whose ranks compute with the other parts (tensor parallelism), for a
                              matrix with an adapter; NULL: none */
    bool is_primary;       /* true on one of the ranks that store this shard */
} d9d_param_placement;

/* A part of the whole parameter: where it lies, and its arrays on this rank. */
typedef struct d9d_param_part {
    d9d_shape shape;
    int64_t offset[D9D_MAX_DIMS]; /* first index in the whole */
    d9d_tensor data;              /* as d9d_param_stored(); storage NULL without memory */
    d9d_tensor grad;              /* [shape]; also NULL unless trainable and for training */
    bool has_grad;                /* something was accumulated since the gradient was reset */
    const d9d_pending_reduce
        *pending_reduce; /* of the shard: after it grad is reduced; NULL: in stream order */
} d9d_param_part;

/* PEFT: the adapter of a matrix, and the matrix of an adapter's parameter. */
typedef struct d9d_param_peft {
    d9d_param_adapter *adapter;  /* of this matrix; NULL: none */
    const d9d_param *adapts;     /* the matrix whose adapter this is a part of; NULL: none */
    const char *refused;         /* why it can have no adapter, a constant; NULL: it can */
    const char *dropout_refused; /* why its adapter can have no dropout, likewise */
} d9d_param_peft;

/* Brings copies of a parameter, those of two that are asked for and not there yet. */
typedef d9d_status d9d_param_copies_fn(void *arg, d9d_param *p, bool rows, bool cols);

/* Products in 8 bits: how, and the copies that they read. */
typedef struct d9d_param_fp8 {
    const d9d_quantised_recipe *recipe; /* NULL: products in the parameter's own type */
    d9d_quantised rows, cols;           /* of local.data, from their first use until forgotten */
    /* Not NULL: local.data has no memory.  FSDP gathers the copies, drops them, and is asked for
     * one that it did not foresee. */
    d9d_param_copies_fn *gather;
    void *gather_arg;
} d9d_param_fp8;

struct d9d_param {
    const char *name; /* dotted path from the root module once bound; before that local or NULL */
    uint64_t id;      /* d9d_hash_u64() of the name: its random number stream */
    d9d_param_spec spec;
    d9d_param_placement placement;
    d9d_param_part local; /* what operations compute with: FSDP's unsharded parameter */
    d9d_param_part shard; /* what is stored, updated and saved: FSDP's sharded parameter */
    d9d_param_peft peft;
    bool grad_on_demand; /* grad has memory from its first contribution until it is cleared */
    bool grad_loose;     /* that of d9d_device_alloc_loose() */
    d9d_param_fp8 fp8;
};

/* What the parameter of an adapter does to x W^T, for W [out, in]; the first two of a stack of
 * experts are [E, in, r] and [E, r, out]:
 *
 *     y = n_i / |V_i| * o * ((x * c) V^T) + b        V = W + scale * B A
 *
 * Without a magnitude that factor is 1, and o scales the bias too. */
typedef enum d9d_param_adapter_role {
    D9D_ADAPTER_A,         /* [r, in] */
    D9D_ADAPTER_B,         /* [out, r] */
    D9D_ADAPTER_MAGNITUDE, /* n [out]: the norms of the rows of W to begin with */
    D9D_ADAPTER_OUTPUT,    /* o [out]: ones */
    D9D_ADAPTER_INPUT,     /* c [in]: ones */
    D9D_ADAPTER_ROLES
} d9d_param_adapter_role;
enum { D9D_ADAPTER_PARAMS = 8 }; /* an adapter has so many at most */

/* The forward of a kind of adapters whose parameters have no roles: d9d/op/adapter_forward.h. */
struct d9d_op_adapter;
struct d9d_var;
typedef d9d_status d9d_param_adapter_forward(const struct d9d_op_adapter *a, struct d9d_var *x,
                                             struct d9d_var **y);

/* The adapter of a matrix, which linear operations apply (op/linear/op_adapter.c). d9d/nn/adapter.h
 * makes it; it is placed as the matrix that it adapts. */
struct d9d_param_adapter {
    d9d_param *param[D9D_ADAPTER_PARAMS]; /* by role, or of a kind of its own; NULL: it has none */
    int64_t r;                            /* rank of A and B */
    double alpha;                         /* scale = alpha / r */
    float scale;
    float dropout; /* dropout of A's input, if the tape has a d9d_tape_set_dropout_rng() */
    d9d_param_adapter_forward *forward;  /* NULL: the formula of the roles */
    const struct d9d_adapter_kind *kind; /* d9d/nn/adapter.h */
    const char *name;                    /* of the kind, in messages */
    unsigned by_output; /* with a forward, bit i: dimension 0 of parameter i is that of outputs */
    bool reads_matrix;  /* its forward reads W besides multiplying by it, as norms do */
    uint64_t seed;      /* of arrays that the kind draws */
};

/* True if backward must compute its gradient. */
static inline bool d9d_param_needs_grad(const d9d_param *p)
{
    return p->spec.trainable &&
           (p->grad_on_demand || p->local.grad.storage != NULL || p->shard.grad.storage != NULL);
}

/* What `data` of a part is, without storage: [shape] of dtype or, of a quantised matrix, rows of
 * bytes. */
D9D_API d9d_tensor d9d_param_stored(const d9d_param *p, const d9d_param_part *part);
D9D_API uint64_t d9d_param_stored_bytes(const d9d_param *p, const d9d_param_part *part);
/* Rows [first, first + n) of a quantised matrix, of local.data. */
D9D_API d9d_quant_matrix d9d_param_quant_rows(const d9d_param *p, int64_t first, int64_t n);

/* Memory for a gradient on demand that has none; nothing to do for others, and for those in shards,
 * whose memory FSDP brings. */
D9D_API D9D_MUST_USE d9d_status d9d_param_grad_alloc(d9d_param *p);
/* Forget what was accumulated; a gradient on demand gives its memory back. */
D9D_API void d9d_param_grad_clear(d9d_param *p);

/* The number i of a parameter's name with "layers.<i>."; -1: a parameter of no layer. */
D9D_API int64_t d9d_param_layer_of(const char *name);
/* A matrix of a bound model's layers, or a stack of experts' ones, that linear operations alone
 * read: what FP8 and quantised weights are of.  Embeddings, heads, routers, norms and biases, and
 * the factors of adapters, are not among them. */
D9D_API bool d9d_param_is_layer_matrix(const d9d_param *p);

/* Make the copies that are asked for and not there yet, of a parameter with a recipe. */
D9D_API D9D_MUST_USE d9d_status d9d_param_quantise(d9d_param *p, bool rows, bool cols);
/* Drop them: whoever changes or frees local.data does, or gathers them. */
D9D_API void d9d_param_forget_quantised(d9d_param *p);

/* Accumulation rule: the first contribution after a reset overwrites, later ones add, in the order
 * of the backward pass.  Returns `beta` 0 or 1 for the kernel, and sets has_grad. */
static inline float d9d_param_grad_beta(d9d_param_part *local)
{
    float beta = local->has_grad ? 1.0f : 0.0f;

    local->has_grad = true;
    return beta;
}

/* True if shard.grad has a gradient. */
static inline bool d9d_param_has_shard_grad(const d9d_param *p)
{
    return p->spec.trainable &&
           (p->placement.shard_group != NULL ? p->shard.has_grad : p->local.has_grad);
}

/* Stream s waits until the shard's gradient is reduced. */
static inline d9d_status d9d_param_wait_grad(const d9d_param_part *shard, d9d_stream s)
{
    const d9d_pending_reduce *pending = shard->pending_reduce;

    return pending == NULL ? D9D_OK : d9d_stream_wait_event(pending->comm, pending->event, s);
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

/* FSDP's part i of dimension `dim` of `shape`.  Rows of a matrix are divided in multiples of
 * D9D_PARAM_BLOCK elements, so that no block of one belongs to two ranks (d9d/optim/optim.h). */
enum { D9D_PARAM_BLOCK = 32 };
static inline void d9d_param_split(const d9d_shape *shape, int dim, int64_t parts, int64_t i,
                                   int64_t *first, int64_t *count)
{
    const int64_t n = shape->dim[dim],
                  unit = shape->ndim > 1 && dim == shape->ndim - 1 ? D9D_PARAM_BLOCK : 1;

    d9d_param_split_even((n + unit - 1) / unit, parts, i, first, count);
    *first = *first * unit < n ? *first * unit : n;
    *count = *count * unit < n - *first ? *count * unit : n - *first;
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
