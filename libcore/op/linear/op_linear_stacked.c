/* op_linear_stacked.c - y_i = factor_i x W_i^T of several small matrices, such as lora_A of
 * adapters, by one product.  x [M, in], W_i [out_i, in], y_i [M, out_i].
 *
 *     [u_0 | u_1 | ...] = x [W_0; W_1; ...]^T       y_i = factor_i u_i
 *
 *     du = [factor_0 dy_0 | factor_1 dy_1 | ...]
 *     dx = du [W_0; W_1; ...]                       [dW_0; dW_1; ...] = du^T x
 *
 * x is read once in place of once a matrix, and dx is added to once.
 */
#include "op/linear/op_adapter.h"

enum { X };                  /* input */
enum { SAVED_X, SAVED_ALL }; /* ALL: the matrices, one below the other */

typedef struct stacked_attr {
    int64_t out; /* sum of all out_i */
    float factor[D9D_OP_LINEAR_MULTI_MAX];
} stacked_attr;

static int64_t rows_of(const d9d_param *w)
{
    return d9di_op_weight_shape(w)->dim[0];
}

/* Matrix i, from row `first` on, between its own array and that of all. */
static d9d_foreach_matrix stack_entry(const d9d_param *w, int64_t out, int64_t first)
{
    const int64_t in = d9di_op_weight_shape(w)->dim[1];

    return (d9d_foreach_matrix){.m = 1,
                                .n = rows_of(w) * in,
                                .x_ld = rows_of(w) * in,
                                .y_ld = out * in,
                                .y_first = first * in,
                                .alpha = 1.0f};
}

/* --- backward ----------------------------------------------------------------------------------
 */

/* du, with zeros for a y_i that has no gradient. */
static d9d_status du_make(d9d_node *n, d9d_tensor *du)
{
    const stacked_attr *a = n->attr;
    const d9d_tensor *x = d9di_op_input(n, X);
    const int64_t rows = d9di_op_rows(&x->shape);
    d9d_foreach_matrix list[D9D_OP_LINEAR_MULTI_MAX];
    int count = 0;
    int64_t first = 0;

    D9D_TRY(d9d_node_alloc(n, x->dtype, D9D_SHAPE(rows, a->out), du));
    for (int i = 0; i < n->n_param; first += rows_of(n->param[i++]))
        if (n->dout[i].storage != NULL)
            list[count++] = (d9d_foreach_matrix){.m = rows,
                                                 .n = rows_of(n->param[i]),
                                                 .x = d9d_tensor_data(&n->dout[i]),
                                                 .x_ld = rows_of(n->param[i]),
                                                 .y = d9d_tensor_data(du),
                                                 .y_ld = a->out,
                                                 .y_first = first,
                                                 .alpha = a->factor[i]};
    if (count < n->n_param)
        D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, du->dtype, d9d_tensor_data(du),
                            d9d_tensor_numel(du), 0.0f));
    return D9DI_KERNEL(n->tape, elementwise->foreach_axpby, du->dtype, du->dtype, list, count);
}

static d9d_status dgrad_of(d9d_node *n, const d9d_tensor *du)
{
    const stacked_attr *a = n->attr;
    d9d_gemm g = {
        .t = du->dtype,
        .ct = du->dtype,
        .m = du->shape.dim[0],
        .n = d9di_op_last_dim(&d9di_op_input(n, X)->shape),
        .k = a->out,
    };
    d9d_tensor dx;

    if (!d9d_node_input_needs_grad(n, X))
        return D9D_OK;
    D9D_TRY(d9d_node_accumulate_begin(n, X, &dx, &g.addend));
    g.beta = g.addend != NULL ? 1.0f : 0.0f;
    return d9di_op_grad_finish_sum(n, X, &dx,
                                   D9DI_KERNEL(n->tape, gemm->dense, &g, d9d_tensor_data(du),
                                               d9d_tensor_data(&n->saved[SAVED_ALL]),
                                               d9d_tensor_data(&dx)));
}

/* Adds its rows of all gradients, float32, to that of each matrix that has one. */
static d9d_status gradients_add(d9d_node *n, const d9d_tensor *all)
{
    const stacked_attr *a = n->attr;
    d9d_foreach_matrix list[D9D_OP_LINEAR_MULTI_MAX];
    d9d_dtype type = D9D_F32;
    int64_t first = 0;
    int count = 0;

    for (int i = 0; i < n->n_param; first += rows_of(n->param[i++])) {
        d9d_param *w = n->param[i];
        d9d_foreach_matrix e = stack_entry(w, a->out, 0);

        if (!d9d_param_needs_grad(w))
            continue;
        e.x = d9d_tensor_data(all);
        e.x_ld = e.y_ld;
        e.x_first = first * d9di_op_weight_shape(w)->dim[1];
        e.y = d9d_tensor_data(&w->local.grad);
        e.y_ld = e.n;
        e.beta = d9d_param_grad_beta(&w->local);
        type = w->local.grad.dtype;
        list[count++] = e;
    }
    return D9DI_KERNEL(n->tape, elementwise->foreach_axpby, type, D9D_F32, list, count);
}

static d9d_status wgrad_of(d9d_node *n, const d9d_tensor *du)
{
    const stacked_attr *a = n->attr;
    const d9d_tensor *x = &n->saved[SAVED_X];
    const int64_t in = d9di_op_last_dim(&x->shape);
    const d9d_gemm g = {.t = du->dtype,
                        .ct = D9D_F32,
                        .trans_a = true,
                        .m = a->out,
                        .n = in,
                        .k = du->shape.dim[0]};
    d9d_tensor all;
    d9d_status st;

    D9D_TRY(d9d_node_alloc(n, D9D_F32, D9D_SHAPE(a->out, in), &all));
    st = D9DI_KERNEL(n->tape, gemm->dense, &g, d9d_tensor_data(du), d9d_tensor_data(x),
                     d9d_tensor_data(&all));
    if (st == D9D_OK)
        st = gradients_add(n, &all);
    d9d_tensor_release(&all);
    return st;
}

static d9d_status run_halves(d9d_node *n, bool dgrad, bool wgrad)
{
    d9d_tensor du = {0};
    d9d_status st = du_make(n, &du);

    if (st == D9D_OK && dgrad)
        st = dgrad_of(n, &du);
    if (st == D9D_OK && wgrad)
        st = wgrad_of(n, &du);
    d9d_tensor_release(&du);
    return st;
}

static d9d_status stacked_dgrad(d9d_node *n)
{
    return run_halves(n, true, false);
}

static d9d_status stacked_wgrad(d9d_node *n)
{
    return run_halves(n, false, true);
}

static d9d_status stacked_bwd(d9d_node *n)
{
    return run_halves(n, (n->halves & D9D_NEED_DGRAD) != 0, (n->halves & D9D_NEED_WGRAD) != 0);
}

static const d9d_node_ops stacked_node_ops = {
    .name = "linear_stacked", .dgrad = stacked_dgrad, .wgrad = stacked_wgrad, .bwd = stacked_bwd};

/* --- forward -----------------------------------------------------------------------------------
 */

static d9d_status weights_stack(d9d_tape *t, d9d_param *const *w, size_t n, const d9d_tensor *all)
{
    d9d_foreach_matrix list[D9D_OP_LINEAR_MULTI_MAX];
    int64_t first = 0;

    for (size_t i = 0; i < n; first += rows_of(w[i++])) {
        list[i] = stack_entry(w[i], all->shape.dim[0], first);
        list[i].x = d9d_tensor_data(&w[i]->local.data);
        list[i].y = d9d_tensor_data(all);
    }
    return D9DI_KERNEL(t, elementwise->foreach_axpby, all->dtype, all->dtype, list, (int)n);
}

/* y_i = factor_i u_i */
static d9d_status outputs_split(d9d_tape *t, const d9d_tensor *u, d9d_param *const *w,
                                const float *factor, size_t n, d9d_shape shape, d9d_var **y)
{
    d9d_foreach_matrix list[D9D_OP_LINEAR_MULTI_MAX];
    int64_t first = 0;

    for (size_t i = 0; i < n; first += rows_of(w[i++])) {
        shape.dim[shape.ndim - 1] = rows_of(w[i]);
        D9D_TRY(d9d_tape_output(t, u->dtype, shape, &y[i]));
        list[i] = (d9d_foreach_matrix){.m = u->shape.dim[0],
                                       .n = rows_of(w[i]),
                                       .x = d9d_tensor_data(u),
                                       .x_ld = u->shape.dim[1],
                                       .x_first = first,
                                       .y = d9d_tensor_data(d9d_var_tensor(y[i])),
                                       .y_ld = rows_of(w[i]),
                                       .alpha = factor[i]};
    }
    return D9DI_KERNEL(t, elementwise->foreach_axpby, u->dtype, u->dtype, list, (int)n);
}

static d9d_status stacked_forward(d9d_tape *t, const d9d_tensor *x, d9d_param *const *w,
                                  const float *factor, size_t n, const d9d_tensor *all, d9d_var **y)
{
    const d9d_gemm g = {.t = x->dtype,
                        .ct = x->dtype,
                        .trans_b = true,
                        .m = d9di_op_rows(&x->shape),
                        .n = all->shape.dim[0],
                        .k = all->shape.dim[1]};
    d9d_tensor u;
    d9d_status st;

    D9D_TRY(weights_stack(t, w, n, all));
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, D9D_SHAPE(g.m, g.n), &u));
    st = D9DI_KERNEL(t, gemm->dense, &g, d9d_tensor_data(x), d9d_tensor_data(all),
                     d9d_tensor_data(&u));
    if (st == D9D_OK)
        st = outputs_split(t, &u, w, factor, n, x->shape, y);
    d9d_tensor_release(&u);
    return st;
}

static d9d_status stacked_record(d9d_tape *t, d9d_var *x, d9d_param *const *w, const float *factor,
                                 size_t n, const d9d_tensor *all, d9d_var *const *y)
{
    stacked_attr *a;
    d9d_node *node;

    if (!d9d_tape_should_record(t, &x, 1, w, n))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &stacked_node_ops, &x, 1, y, n, w, n, sizeof(*a), &node));
    a = node->attr;
    a->out = all->shape.dim[0];
    memcpy(a->factor, factor, n * sizeof(*factor));
    (void)d9d_node_save(node, d9d_var_tensor(x), D9D_NEED_WGRAD);
    (void)d9d_node_save(node, all, D9D_NEED_DGRAD);
    return D9D_OK;
}

d9d_status d9di_op_linear_stacked(d9d_tape *t, d9d_var *x, d9d_param *const *w, const float *factor,
                                  size_t n, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    int64_t out = 0;
    d9d_tensor all;
    d9d_status st;

    for (size_t i = 0; i < n; i++) {
        D9D_TRY(d9di_op_linear_check(tx, w[i]));
        out += rows_of(w[i]);
    }
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), tx->dtype,
                             D9D_SHAPE(out, d9di_op_last_dim(&tx->shape)), &all));
    st = stacked_forward(t, tx, w, factor, n, &all, y);
    if (st == D9D_OK)
        st = stacked_record(t, x, w, factor, n, &all, y);
    d9d_tensor_release(&all);
    return st;
}
