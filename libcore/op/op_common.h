/* op_common.h - checks and small helpers that every op uses. */
#ifndef D9D_OP_OP_COMMON_H
#define D9D_OP_OP_COMMON_H

#include "d9d/op/op.h"

/* Call an entry of the kernel table of a tape's device on its stream. */
#define D9DI_KERNEL(tape, entry, ...)                                                              \
    (d9d_tape_device(tape)->kernels->entry(d9d_tape_device(tape)->stream, __VA_ARGS__))

/* Define GRAD_dgrad, GRAD_wgrad and GRAD_full of node ops from one function GRAD of the node and
 * the wanted halves, d9d_node_need bits. */
#define D9DI_HALVES(grad)                                                                          \
    static d9d_status grad##_dgrad(d9d_node *n)                                                    \
    {                                                                                              \
        return grad(n, D9D_NEED_DGRAD);                                                            \
    }                                                                                              \
    static d9d_status grad##_wgrad(d9d_node *n)                                                    \
    {                                                                                              \
        return grad(n, D9D_NEED_WGRAD);                                                            \
    }                                                                                              \
    static d9d_status grad##_full(d9d_node *n)                                                     \
    {                                                                                              \
        return grad(n, n->halves);                                                                 \
    }

/* EINVAL unless x has data and is of type t. */
d9d_status d9di_op_check(const char *op, const char *name, const d9d_tensor *x, d9d_dtype t);
/* EINVAL unless x has data and is float32 or bfloat16. */
d9d_status d9di_op_check_real(const char *op, const char *name, const d9d_tensor *x);
/* EINVAL unless the parameter has data of type t; ENOTSUP if it is quantised. */
d9d_status d9di_op_check_param(const char *op, const d9d_param *p, d9d_dtype t);
/* The same of a matrix whose products may be in 8 bits: it may have copies alone. */
d9d_status d9di_op_check_matrix(const char *op, const d9d_param *p, d9d_dtype t);
/* The same of one that may be quantised: t is the type of its elements. */
d9d_status d9di_op_check_weight(const char *op, const d9d_param *w, d9d_dtype t);
/* [out, in] of such a matrix. */
static inline const d9d_shape *d9di_op_weight_shape(const d9d_param *w)
{
    return w->spec.stored == D9D_QUANT_NONE ? &w->local.data.shape : &w->local.shape;
}
/* EINVAL: "OP: A [4, 5] does not fit B [6]: RULE". */
d9d_status d9di_op_misfit(const char *op, const char *a_name, const d9d_shape *a,
                          const char *b_name, const d9d_shape *b, const char *rule);
/* EINVAL as above unless both shapes are equal. */
d9d_status d9di_op_check_same(const char *op, const char *a_name, const d9d_tensor *a,
                              const char *b_name, const d9d_tensor *b);

/* Check a vocabulary in tables [V_s, H], quantised or not: at least one and at most D9D_NODE_MAX
 * tables, all of type t, of one format and with H columns.  With the rows of other ranks' parts
 * they have at most INT32_MAX rows in total. */
d9d_status d9di_op_check_splits(const char *op, d9d_param *const *tables, size_t n, d9d_dtype t,
                                int64_t h);

/* Check a bias [V] of those tables, of the same type, or NULL. */
d9d_status d9di_op_check_vocab_bias(const char *op, d9d_param *const *tables, size_t n, d9d_dtype t,
                                    const d9d_param *bias);

/* Id of the first row of table i that this rank has, for vocabulary-parallel tables. */
static inline int64_t d9di_op_split_first_id(d9d_param *const *tables, size_t i)
{
    int64_t first = tables[i]->local.offset[0];

    for (size_t s = 0; s < i; s++)
        first += tables[s]->spec.shape.dim[0];
    return first;
}

/* The numbers of the tokens that are the rows of an array: all of the RNG's or its part of them;
 * else EINVAL.  The caller releases them. */
d9d_status d9di_op_dropout_tokens(const char *what, const d9d_dropout_rng *rng, int64_t rows,
                                  d9d_tensor *out);

/* Check all arrays of a routing against x [T, ...] or, permuted, [R, ...]. */
d9d_status d9di_op_check_routing(const char *op, const d9d_tensor *x, const d9d_routing *r,
                                 bool permuted);

/* Allocate the arrays of a routing of T tokens over E experts, T * k rows.  On failure r owns what
 * was allocated so far. */
d9d_status d9di_routing_alloc(d9d_device *dev, int64_t tokens, int64_t experts, int64_t k,
                              d9d_routing *r);
/* Counted references to the same arrays. */
d9d_routing d9di_routing_ref(const d9d_routing *r);
/* R, the rows in permuted order. */
static inline int64_t d9di_routing_rows(const d9d_routing *r)
{
    return r->source.shape.dim[0];
}
static inline d9d_expert_order d9di_routing_order(const d9d_routing *r)
{
    return (d9d_expert_order){d9d_tensor_data(&r->offset), d9d_tensor_data(&r->row),
                              d9d_tensor_data(&r->source)};
}
/* Dimensions from permuted rows [R, H] and the row of each choice [T, k]. */
static inline d9d_moe_permute_dims d9di_op_permute_dims(const d9d_tensor *permuted,
                                                        const d9d_tensor *row)
{
    return (d9d_moe_permute_dims){permuted->dtype, row->shape.dim[0], row->shape.dim[1],
                                  permuted->shape.dim[0], permuted->shape.dim[1]};
}

static inline const char *d9di_op_param_name(const d9d_param *p)
{
    return p->name != NULL ? p->name : "the parameter";
}

/* x [..., N]: N, and the product of the leading dimensions. */
static inline int64_t d9di_op_last_dim(const d9d_shape *s)
{
    return s->dim[s->ndim - 1];
}
static inline int64_t d9di_op_rows(const d9d_shape *s)
{
    const d9d_shape lead = {s->ndim - 1, {s->dim[0], s->dim[1], s->dim[2], s->dim[3], s->dim[4]}};

    return d9d_shape_numel(&lead);
}

/* Pointer to row `first` of x [..., N]. */
static inline void *d9di_op_row_ptr(const d9d_tensor *x, int64_t first)
{
    return (char *)d9d_tensor_data(x) +
           (uint64_t)(first * d9di_op_last_dim(&x->shape)) * d9d_dtype_size(x->dtype);
}

/* Pointer to element i of x [N]. */
static inline void *d9di_op_element_ptr(const d9d_tensor *x, int64_t i)
{
    return (char *)d9d_tensor_data(x) + (uint64_t)i * d9d_dtype_size(x->dtype);
}

/* d9d_comm_all_gather() or d9d_comm_reduce_scatter() with `each` elements on every rank. */
typedef __typeof__(d9d_comm_all_gather) d9di_op_collective_fn;
d9d_status d9di_op_collective_even(d9d_tape *t, d9di_op_collective_fn *by, d9d_comm *comm,
                                   const char *what, d9d_dtype type, void *dst, const void *src,
                                   int64_t each);

/* Input i of a node in forward; its data may have been freed. */
static inline const d9d_tensor *d9di_op_input(const d9d_node *n, int i)
{
    return d9d_var_tensor(n->in[i]);
}
/* Memory for the gradient of input i. */
static inline d9d_status d9di_op_grad_alloc(d9d_node *n, int i, d9d_tensor *out)
{
    return d9d_node_alloc(n, d9di_op_input(n, i)->dtype, d9di_op_input(n, i)->shape, out);
}
/* Add the gradient to the node's input if `st` is D9D_OK; release it in either case. */
d9d_status d9di_op_grad_finish(d9d_node *n, int i, d9d_tensor *grad, d9d_status st);

/* The same for an accumulated gradient, from d9d_node_accumulate_begin(). */
d9d_status d9di_op_grad_finish_sum(d9d_node *n, int i, d9d_tensor *sum, d9d_status st);

#endif /* D9D_OP_OP_COMMON_H */
