/* op_unpermute.c - rows sorted by expert back to tokens, weighted.  x [R, H], prob [T, k],
 * y [T, H].
 *
 *     y[t] = plus[t] + sum over j of prob[t, j] x[row(t, j)]
 *     dx[row(t, j)] = prob[t, j] dy[t]        dprob[t, j] = dy[t] . x[row(t, j)]        dplus = dy
 */
#include "op/op_common.h"

enum { X, PROB, ROW, PLUS = ROW }; /* saved; X, PROB and perhaps PLUS are the inputs */

static d9d_status unpermute_bwd(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[X], *row = &n->saved[ROW];
    const d9d_moe_permute_dims dims = d9di_op_permute_dims(x, row);
    d9d_tensor dx = {0}, dprob = {0}, dplus;
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_grad_alloc(n, X, &dx), out);
    D9D_TRY_OR(st, d9di_op_grad_alloc(n, PROB, &dprob), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, moe->unpermute_bwd, &dims, d9d_tensor_data(&dx),
                           d9d_tensor_data(&dprob), d9d_tensor_data(&n->dout[0]),
                           d9d_tensor_data(x), d9d_tensor_data(&n->saved[PROB]),
                           d9d_tensor_data(row)),
               out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, X, &dx), out);
    D9D_TRY_OR(st, d9d_node_accumulate_grad(n, PROB, &dprob), out);
    if (n->n_in > PLUS) {
        dplus = d9d_tensor_ref(&n->dout[0]);
        st = d9d_node_accumulate_grad(n, PLUS, &dplus);
    }
out:
    d9d_tensor_release(&dx);
    d9d_tensor_release(&dprob);
    return st;
}

static const d9d_node_ops unpermute_node_ops = {.name = "unpermute", .dgrad = unpermute_bwd};

static d9d_status unpermute_check(const d9d_tensor *x, const d9d_tensor *prob, const d9d_routing *r,
                                  const d9d_tensor *plus)
{
    const d9d_shape y = D9D_SHAPE(prob->shape.dim[0], d9di_op_last_dim(&x->shape));

    D9D_TRY(d9di_op_check_real("unpermute", "x", x));
    D9D_TRY(d9di_op_check("unpermute", "prob", prob, D9D_F32));
    D9D_TRY(d9di_op_check_routing("unpermute", x, r, true));
    D9D_TRY(d9di_op_check_same("unpermute", "the expert ids", &r->expert, "prob", prob));
    if (plus == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check("unpermute", "plus", plus, x->dtype));
    if (!d9d_shape_equal(&plus->shape, &y))
        return d9di_op_misfit("unpermute", "plus", &plus->shape, "y", &y,
                              "a residual has the result's shape");
    return D9D_OK;
}

d9d_status d9d_op_unpermute(d9d_tape *t, d9d_var *x, d9d_var *prob, const d9d_routing *r,
                            d9d_var *plus, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x), *tp = d9d_var_tensor(prob),
                     *residual = plus != NULL ? d9d_var_tensor(plus) : NULL;
    d9d_moe_permute_dims dims;
    d9d_var *in[] = {x, prob, plus}, *out;
    const size_t n_in = plus != NULL ? 3 : 2;
    d9d_node *n;

    D9D_TRY(unpermute_check(tx, tp, r, residual));
    D9D_TRY(d9d_tape_output(t, tx->dtype, D9D_SHAPE(tp->shape.dim[0], tx->shape.dim[1]), &out));
    dims = d9di_op_permute_dims(tx, &r->row);
    D9D_TRY(D9DI_KERNEL(t, moe->unpermute, &dims, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(tp), d9d_tensor_data(&r->row),
                        residual != NULL ? d9d_tensor_data(residual) : NULL));
    if (d9d_tape_should_record(t, in, n_in, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &unpermute_node_ops, in, n_in, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, tx, D9D_NEED_DGRAD);
        (void)d9d_node_save(n, tp, D9D_NEED_DGRAD);
        (void)d9d_node_save(n, &r->row, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
