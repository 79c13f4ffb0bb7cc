/* op_matmul.c - y = op(a) op(b) of each pair of matrices.  op(a) [B, M, K], op(b) [B, K, N].
 *
 *     d op(a) = dy op(b)'        d op(b) = op(a)' dy
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

enum { A_SIDE, B_SIDE }; /* inputs and saved */

typedef struct matmul_attr {
    bool trans_a, trans_b;
    int64_t batch, m, n, k;
} matmul_attr;

/* A product of the batch: which arrays, how they are stored, and the sizes of the result. */
typedef struct product {
    const d9d_tensor *a, *b, *c;
    bool trans_a, trans_b;
    int64_t m, n, k;
} product;

static d9d_status product_run(d9d_tape *t, const product *p, int64_t batch)
{
    const d9d_gemm g = {.t = p->a->dtype,
                        .ct = p->a->dtype,
                        .trans_a = p->trans_a,
                        .trans_b = p->trans_b,
                        .m = p->m,
                        .n = p->n,
                        .k = p->k};

    if (batch == 1)
        return D9DI_KERNEL(t, gemm->dense, &g, d9d_tensor_data(p->a), d9d_tensor_data(p->b),
                           d9d_tensor_data(p->c));
    return D9DI_KERNEL(t, gemm->batched,
                       &(d9d_gemm_batched){.gemm = g, .count = batch, .alpha = 1.0f},
                       d9d_tensor_data(p->a), d9d_tensor_data(p->b), d9d_tensor_data(p->c));
}

/* The gradient of an input as it is stored, transposed or not. */
static product grad_product(const d9d_node *n, int side, const d9d_tensor *dx)
{
    const matmul_attr *a = n->attr;
    const d9d_tensor *dy = &n->dout[0], *other = &n->saved[1 - side];
    const bool own = side == A_SIDE ? a->trans_a : a->trans_b,
               others = side == A_SIDE ? a->trans_b : a->trans_a;

    if (side == A_SIDE)
        return own ? (product){other, dy, dx, others, true, a->k, a->m, a->n}
                   : (product){dy, other, dx, false, !others, a->m, a->k, a->n};
    return own ? (product){dy, other, dx, true, others, a->n, a->k, a->m}
               : (product){other, dy, dx, !others, false, a->k, a->n, a->m};
}

static d9d_status matmul_dgrad(d9d_node *n)
{
    for (int side = A_SIDE; side <= B_SIDE; side++) {
        d9d_tensor dx;
        product p;

        if (!d9d_node_input_needs_grad(n, side))
            continue;
        D9D_TRY(d9di_op_grad_alloc(n, side, &dx));
        p = grad_product(n, side, &dx);
        D9D_TRY(d9di_op_grad_finish(
            n, side, &dx, product_run(n->tape, &p, ((const matmul_attr *)n->attr)->batch)));
    }
    return D9D_OK;
}

static const d9d_node_ops matmul_node_ops = {.name = "matmul", .dgrad = matmul_dgrad};

static d9d_status matmul_check(const d9d_tensor *a, const d9d_tensor *b,
                               const d9d_op_matmul_opts *opts, matmul_attr *out, d9d_shape *y)
{
    const d9d_shape *sa = &a->shape, *sb = &b->shape;
    const int last = sa->ndim - 1;
    bool fit = sa->ndim >= 2 && sb->ndim >= 2 &&
               (sb->ndim == sa->ndim || (sb->ndim == 2 && !opts->trans_a));

    D9D_TRY(d9di_op_check_real("matmul", "a", a));
    D9D_TRY(d9di_op_check("matmul", "b", b, a->dtype));
    for (int i = 0; fit && sb->ndim == sa->ndim && i < last - 1; i++)
        fit = sa->dim[i] == sb->dim[i];
    if (fit) {
        *out = (matmul_attr){.trans_a = opts->trans_a, .trans_b = opts->trans_b, .batch = 1};
        out->m = sa->dim[opts->trans_a ? last : last - 1];
        out->k = sa->dim[opts->trans_a ? last - 1 : last];
        out->n = sb->dim[opts->trans_b ? sb->ndim - 2 : sb->ndim - 1];
        fit = out->k == sb->dim[opts->trans_b ? sb->ndim - 1 : sb->ndim - 2];
    }
    if (!fit)
        return d9di_op_misfit("matmul", "b", sb, "a", sa,
                              "a is [..., M, K], b [..., K, N] or [K, N], each or transposed");
    *y = *sa;
    y->dim[last - 1] = out->m;
    y->dim[last] = out->n;
    for (int i = 0; i < last - 1; i++)
        *(sb->ndim == sa->ndim ? &out->batch : &out->m) *= sa->dim[i];
    return D9D_OK;
}

d9d_status d9d_op_matmul(d9d_tape *t, d9d_var *a, d9d_var *b, const d9d_op_matmul_opts *opts,
                         d9d_var **y)
{
    const d9d_tensor *ta = d9d_var_tensor(a), *tb = d9d_var_tensor(b);
    d9d_var *in[] = {a, b}, *out;
    d9d_shape shape = D9D_SCALAR;
    matmul_attr attr = {0};
    product p;
    d9d_node *n;

    D9D_TRY(matmul_check(ta, tb, opts, &attr, &shape));
    D9D_TRY(d9d_tape_output(t, ta->dtype, shape, &out));
    p = (product){ta, tb, d9d_var_tensor(out), attr.trans_a, attr.trans_b, attr.m, attr.n, attr.k};
    D9D_TRY(product_run(t, &p, attr.batch));
    *y = out;
    if (!d9d_tape_should_record(t, in, 2, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &matmul_node_ops, in, 2, &out, 1, NULL, 0, sizeof(attr), &n));
    *(matmul_attr *)n->attr = attr;
    for (int side = A_SIDE; side <= B_SIDE; side++)
        (void)d9d_node_save(n,
                            d9d_node_input_needs_grad(n, 1 - side) ? d9d_var_tensor(in[side])
                                                                   : &(const d9d_tensor){0},
                            D9D_NEED_DGRAD);
    return D9D_OK;
}
