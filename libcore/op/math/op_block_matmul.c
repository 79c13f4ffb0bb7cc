/* op_block_matmul.c - y = x diag(R_1, ..., R_B).  x y [M, B N], R [B, N, N].
 *
 *     dx_i = dy_i R_i'        dR_i = x_i' dy_i        i: N columns
 *
 * The gradient of R is a batch of products, for which x and dy are copied block by block.
 */
#include "op/op_common.h"

#include "d9d/op/math.h"

enum { X, R }; /* inputs and saved */

typedef struct block_attr {
    int64_t m, blocks, n;
} block_attr;

/* y = x diag(R), or x diag(R'). */
static d9d_status rows_run(d9d_tape *t, const block_attr *a, bool transposed, const d9d_tensor *x,
                           const d9d_tensor *r, const d9d_tensor *y)
{
    const d9d_gemm_per_head_dims n = {.t = x->dtype,
                                      .m = a->m,
                                      .heads = a->blocks,
                                      .in = a->n,
                                      .out = a->n,
                                      .w_head_rows = a->n,
                                      .trans_w = transposed,
                                      .x_cols = a->n,
                                      .y_cols = a->n};

    return D9DI_KERNEL(t, gemm->per_head, &n, d9d_tensor_data(y), d9d_tensor_data(x),
                       d9d_tensor_data(r));
}

/* [M, B, N] to [B, M, N]. */
static d9d_status blocks_first(d9d_tape *t, const block_attr *a, const d9d_tensor *x,
                               d9d_tensor *out)
{
    const d9d_pointwise_dims d = {
        .f = D9D_POINTWISE_AFFINE,
        .of = D9D_POINTWISE_VALUE,
        .k = {1, 0},
        .ndim = 3,
        .dim = {a->blocks, a->m, a->n},
        .yt = x->dtype,
        .x = {{.t = x->dtype, .stride = {a->n, a->blocks * a->n, 1}}},
    };
    const void *const in[D9D_POINTWISE_INPUTS] = {d9d_tensor_data(x)};
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, D9D_SHAPE(a->blocks, a->m, a->n), out));
    st = D9DI_KERNEL(t, math->pointwise, &d, d9d_tensor_data(out), in);
    if (st != D9D_OK)
        d9d_tensor_release(out);
    return st;
}

static d9d_status blocks_grad(d9d_tape *t, const block_attr *a, const d9d_tensor *x,
                              const d9d_tensor *dy, const d9d_tensor *dr)
{
    const d9d_gemm_batched g = {
        .gemm = {.t = x->dtype, .ct = x->dtype, .trans_a = true, .m = a->n, .n = a->n, .k = a->m},
        .count = a->blocks,
        .alpha = 1};
    d9d_tensor of_x, of_dy = {0};
    d9d_status st;

    if (a->m == 0)
        return D9DI_KERNEL(t, elementwise->fill, dr->dtype, d9d_tensor_data(dr),
                           d9d_tensor_numel(dr), 0);
    D9D_TRY(blocks_first(t, a, x, &of_x));
    st = blocks_first(t, a, dy, &of_dy);
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, gemm->batched, &g, d9d_tensor_data(&of_x), d9d_tensor_data(&of_dy),
                         d9d_tensor_data(dr));
    d9d_tensor_release(&of_x);
    d9d_tensor_release(&of_dy);
    return st;
}

static d9d_status block_matmul_dgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0];

    for (int i = X; i <= R; i++) {
        d9d_tensor d;

        if (!d9d_node_input_needs_grad(n, i))
            continue;
        D9D_TRY(d9di_op_grad_alloc(n, i, &d));
        D9D_TRY(d9di_op_grad_finish(n, i, &d,
                                    i == X ? rows_run(n->tape, n->attr, true, dy, &n->saved[R], &d)
                                           : blocks_grad(n->tape, n->attr, &n->saved[X], dy, &d)));
    }
    return D9D_OK;
}

static const d9d_node_ops block_matmul_node_ops = {.name = "block_matmul",
                                                   .dgrad = block_matmul_dgrad};

static d9d_status block_matmul_check(const d9d_tensor *x, const d9d_tensor *r, block_attr *out)
{
    const d9d_shape *s = &r->shape;

    D9D_TRY(d9di_op_check_real("block_matmul", "x", x));
    D9D_TRY(d9di_op_check("block_matmul", "the blocks", r, x->dtype));
    if (x->shape.ndim == 0 || s->ndim != 3 || s->dim[1] != s->dim[2] ||
        s->dim[0] * s->dim[1] != d9di_op_last_dim(&x->shape))
        return d9di_op_misfit("block_matmul", "the blocks", s, "x", &x->shape,
                              "x is [..., B N], blocks are [B, N, N]");
    *out = (block_attr){d9di_op_rows(&x->shape), s->dim[0], s->dim[1]};
    return D9D_OK;
}

d9d_status d9d_op_block_matmul(d9d_tape *t, d9d_var *x, d9d_var *block, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x), *tr = d9d_var_tensor(block);
    d9d_var *in[] = {x, block}, *out;
    block_attr attr = {0};
    d9d_node *n;

    D9D_TRY(block_matmul_check(tx, tr, &attr));
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    D9D_TRY(rows_run(t, &attr, false, tx, tr, d9d_var_tensor(out)));
    *y = out;
    if (!d9d_tape_should_record(t, in, 2, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &block_matmul_node_ops, in, 2, &out, 1, NULL, 0, sizeof(attr), &n));
    *(block_attr *)n->attr = attr;
    for (int i = X; i <= R; i++)
        (void)d9d_node_save(
            n, d9d_node_input_needs_grad(n, 1 - i) ? d9d_var_tensor(in[i]) : &(const d9d_tensor){0},
            D9D_NEED_DGRAD);
    return D9D_OK;
}
