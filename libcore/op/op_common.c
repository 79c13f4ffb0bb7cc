/* op_common.c - see op/op_common.h. */
#include "op/op_common.h"

#include <stdlib.h>

static d9d_status dtype_check(const char *op, const char *name, const d9d_tensor *x, d9d_dtype t)
{
    return x->dtype == t ? D9D_OK
                         : D9D_FAIL(D9D_EINVAL, "%s: %s is %s, expected %s", op, name,
                                    d9d_dtype_name(x->dtype), d9d_dtype_name(t));
}

d9d_status d9di_op_check(const char *op, const char *name, const d9d_tensor *x, d9d_dtype t)
{
    if (x->storage == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: %s has no data: it was released or never filled", op,
                        name);
    return dtype_check(op, name, x, t);
}

d9d_status d9di_op_check_real(const char *op, const char *name, const d9d_tensor *x)
{
    if (x->storage != NULL && x->dtype != D9D_F32 && x->dtype != D9D_BF16)
        return D9D_FAIL(D9D_EINVAL, "%s: %s is %s, expected float32 or bfloat16", op, name,
                        d9d_dtype_name(x->dtype));
    return d9di_op_check(op, name, x, x->dtype);
}

d9d_status d9di_op_check_param(const char *op, const d9d_param *p, d9d_dtype t)
{
    if (p->spec.stored != D9D_QUANT_NONE)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: %s is quantised to %s, which this operation does not read", op,
                        d9di_op_param_name(p), d9d_quant_name(p->spec.stored));
    return d9di_op_check(op, d9di_op_param_name(p), &p->local.data, t);
}

d9d_status d9di_op_check_matrix(const char *op, const d9d_param *p, d9d_dtype t)
{
    return p->fp8.gather != NULL ? dtype_check(op, d9di_op_param_name(p), &p->local.data, t)
                                 : d9di_op_check_param(op, p, t);
}

d9d_status d9di_op_check_weight(const char *op, const d9d_param *w, d9d_dtype t)
{
    if (w->spec.stored == D9D_QUANT_NONE)
        return d9di_op_check_matrix(op, w, t);
    if (w->spec.dtype != t)
        return D9D_FAIL(D9D_EINVAL, "%s: %s is %s, expected %s", op, d9di_op_param_name(w),
                        d9d_dtype_name(w->spec.dtype), d9d_dtype_name(t));
    return d9di_op_check(op, d9di_op_param_name(w), &w->local.data, D9D_U8);
}

d9d_status d9di_op_misfit(const char *op, const char *a_name, const d9d_shape *a,
                          const char *b_name, const d9d_shape *b, const char *rule)
{
    char ta[128], tb[128];

    return D9D_FAIL(D9D_EINVAL, "%s: %s %s does not fit %s %s: %s", op, a_name,
                    d9d_shape_text(a, ta, sizeof(ta)), b_name, d9d_shape_text(b, tb, sizeof(tb)),
                    rule);
}

d9d_status d9di_op_check_same(const char *op, const char *a_name, const d9d_tensor *a,
                              const char *b_name, const d9d_tensor *b)
{
    if (!d9d_shape_equal(&a->shape, &b->shape))
        return d9di_op_misfit(op, b_name, &b->shape, a_name, &a->shape, "shapes must be equal");
    return D9D_OK;
}

d9d_status d9di_op_check_splits(const char *op, d9d_param *const *tables, size_t n, d9d_dtype t,
                                int64_t h)
{
    int64_t limit = INT32_MAX;

    if (n < 1 || n > D9D_NODE_MAX)
        return D9D_FAIL(D9D_EINVAL, "%s: a vocabulary of %zu splits, from 1 to %d are possible", op,
                        n, D9D_NODE_MAX);
    for (size_t i = 0; i < n; i++) {
        const d9d_shape *s = d9di_op_weight_shape(tables[i]);

        D9D_TRY(d9di_op_check_weight(op, tables[i], t));
        if (tables[i]->spec.stored != tables[0]->spec.stored)
            return D9D_FAIL(D9D_EINVAL, "%s: %s and %s are quantised differently", op,
                            d9di_op_param_name(tables[0]), d9di_op_param_name(tables[i]));
        if (s->ndim != 2 || s->dim[1] != h)
            return d9di_op_misfit(op, d9di_op_param_name(tables[i]), s, "rows", &D9D_SHAPE(h),
                                  "a split is [V, H]");
        if (tables[i]->spec.shape.dim[0] > limit)
            return D9D_FAIL(D9D_EINVAL, "%s: %s has %lld rows, at most %lld more ids are possible",
                            op, d9di_op_param_name(tables[i]),
                            (long long)tables[i]->spec.shape.dim[0], (long long)limit);
        limit -= tables[i]->spec.shape.dim[0];
    }
    return D9D_OK;
}

d9d_status d9di_op_check_vocab_bias(const char *op, d9d_param *const *tables, size_t n, d9d_dtype t,
                                    const d9d_param *bias)
{
    int64_t all = 0;

    if (bias == NULL)
        return D9D_OK;
    if (n >= D9D_NODE_MAX)
        return D9D_FAIL(D9D_EINVAL,
                        "%s: a vocabulary of %zu splits has a bias, at most %d are possible", op, n,
                        D9D_NODE_MAX - 1);
    for (size_t i = 0; i < n; i++)
        all += tables[i]->spec.shape.dim[0];
    D9D_TRY(d9di_op_check_param(op, bias, t));
    return d9d_shape_equal(&bias->local.data.shape, &D9D_SHAPE(all))
               ? D9D_OK
               : d9di_op_misfit(op, d9di_op_param_name(bias), &bias->local.data.shape, "ids",
                                &D9D_SHAPE(all), "a bias has an element for each id");
}

d9d_status d9di_op_check_routing(const char *op, const d9d_tensor *x, const d9d_routing *r,
                                 bool permuted)
{
    const d9d_shape *rows = permuted ? &r->source.shape : &r->expert.shape;

    D9D_TRY(d9di_op_check(op, "the routing", &r->expert, D9D_I32));
    if (x->shape.ndim != 2 || x->shape.dim[0] != rows->dim[0])
        return d9di_op_misfit(op, "x", &x->shape,
                              permuted ? "the rows of the routing" : "the expert ids", rows,
                              permuted ? "x is [R, ...], the routing has R rows"
                                       : "x is [T, ...], expert ids are [T, k]");
    return D9D_OK;
}

d9d_status d9di_op_collective_even(d9d_tape *t, d9di_op_collective_fn *by, d9d_comm *comm,
                                   const char *what, d9d_dtype type, void *dst, const void *src,
                                   int64_t each)
{
    const int ranks = d9d_comm_size(comm);
    int64_t *counts = calloc((size_t)ranks, sizeof(*counts));
    d9d_status st;

    if (counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the counts of %d ranks", what, ranks);
    for (int i = 0; i < ranks; i++)
        counts[i] = each;
    st = by(comm, d9d_tape_device(t)->stream, what, type, dst, src, counts);
    free(counts);
    return st;
}

d9d_status d9di_op_grad_finish(d9d_node *n, int i, d9d_tensor *grad, d9d_status st)
{
    if (st == D9D_OK)
        return d9d_node_accumulate_grad(n, i, grad);
    d9d_tensor_release(grad);
    return st;
}

d9d_status d9di_op_grad_finish_sum(d9d_node *n, int i, d9d_tensor *sum, d9d_status st)
{
    if (st == D9D_OK)
        d9d_node_accumulate_end(n, i, sum);
    d9d_tensor_release(sum);
    return st;
}
