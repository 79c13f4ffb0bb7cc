/* op_pool.c - pooling: weighted rows of tokens to one row for each document.  x [T, H], y [N, H].
 *
 *     y[n] = sum over j of share[n, j] x[token(n, j)]        dx[t] = part[t] dy[owner(t)]
 *
 * Both use the kernel of op_unpermute.c, a weighted sum of chosen rows; in backward with one choice
 * for each token.
 */
#include "op/op_common.h"

void d9d_op_pool_index_release(d9d_op_pool_index *p)
{
    d9d_tensor_release(&p->token);
    d9d_tensor_release(&p->share);
    d9d_tensor_release(&p->owner);
    d9d_tensor_release(&p->owner_share);
    d9d_tensor_release(&p->labels);
    d9d_tensor_release(&p->number);
}

enum { OWNER, OWNER_SHARE }; /* saved */

static d9d_status pool_dgrad(d9d_node *n)
{
    const d9d_tensor *dy = &n->dout[0], *owner = &n->saved[OWNER];
    const d9d_moe_permute_dims dims = d9di_op_permute_dims(dy, owner);
    d9d_tensor dx;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dx));
    return d9di_op_grad_finish(
        n, 0, &dx,
        D9DI_KERNEL(n->tape, moe->unpermute, &dims, d9d_tensor_data(&dx), d9d_tensor_data(dy),
                    d9d_tensor_data(&n->saved[OWNER_SHARE]), d9d_tensor_data(owner), NULL));
}

static const d9d_node_ops pool_node_ops = {.name = "pool", .dgrad = pool_dgrad};

static d9d_status pool_check(const d9d_tensor *x, const d9d_op_pool_index *p)
{
    D9D_TRY(d9di_op_check_real("pool", "x", x));
    D9D_TRY(d9di_op_check("pool", "tokens", &p->token, D9D_I32));
    D9D_TRY(d9di_op_check("pool", "shares", &p->share, D9D_F32));
    D9D_TRY(d9di_op_check("pool", "owners", &p->owner, D9D_I32));
    D9D_TRY(d9di_op_check("pool", "parts", &p->owner_share, D9D_F32));
    D9D_TRY(d9di_op_check_same("pool", "tokens", &p->token, "shares", &p->share));
    D9D_TRY(d9di_op_check_same("pool", "owners", &p->owner, "parts", &p->owner_share));
    if (x->shape.ndim != 2 || p->owner.shape.ndim != 2 || p->token.shape.ndim != 2 ||
        x->shape.dim[0] != p->owner.shape.dim[0] || p->owner.shape.dim[1] != 1)
        return d9di_op_misfit("pool", "x", &x->shape, "owners", &p->owner.shape,
                              "x is [T, H], owners are [T, 1]");
    return D9D_OK;
}

d9d_status d9d_op_pool(d9d_tape *t, d9d_var *x, const d9d_op_pool_index *pool, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_moe_permute_dims dims;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(pool_check(tx, pool));
    D9D_TRY(
        d9d_tape_output(t, tx->dtype, D9D_SHAPE(pool->token.shape.dim[0], tx->shape.dim[1]), &out));
    dims = d9di_op_permute_dims(tx, &pool->token);
    D9D_TRY(D9DI_KERNEL(t, moe->unpermute, &dims, d9d_tensor_data(d9d_var_tensor(out)),
                        d9d_tensor_data(tx), d9d_tensor_data(&pool->share),
                        d9d_tensor_data(&pool->token), NULL));
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &pool_node_ops, &x, 1, &out, 1, NULL, 0, 0, &n));
        (void)d9d_node_save(n, &pool->owner, D9D_NEED_DGRAD);
        (void)d9d_node_save(n, &pool->owner_share, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
