/* op_pieces.c - rows of all ranks in order.  x [B, S, ...] of each of n ranks, y [B, n S, ...].
 *
 *     forward     all-gather to [n, B, S, ...], pieces into order
 *     backward    pieces to their ranks, reduce-scatter
 */
#include "op/op_common.h"

typedef struct pieces_attr {
    d9d_comm *comm;
    const char *what;
} pieces_attr;

/* Put pieces in order, or back; `part` has the shape of one rank's. */
static d9d_status deal(d9d_tape *t, const pieces_attr *a, const d9d_tensor *part, void *y,
                       const void *x, bool in_order)
{
    const int64_t b = part->shape.dim[0], p = part->shape.dim[1] / 2;
    const int64_t cells = b * 2 * p, w = cells > 0 ? d9d_tensor_numel(part) / cells : 0;

    return D9DI_KERNEL(t, pieces, part->dtype, y, x, d9d_comm_size(a->comm), b, p, w, in_order);
}

/* Room for what all ranks have, one behind the other. */
static d9d_status dealt_alloc(d9d_tape *t, const pieces_attr *a, const d9d_tensor *part,
                              d9d_tensor *out)
{
    const d9d_shape shape = D9D_SHAPE(d9d_comm_size(a->comm), d9d_tensor_numel(part));

    return d9d_tensor_alloc(d9d_tape_device(t), part->dtype, shape, out);
}

static d9d_status pieces_input(d9d_node *n)
{
    const pieces_attr *a = n->attr;
    d9d_tensor dx = {0}, dealt = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_node_grad(n, 0, &dx), out);
    D9D_TRY_OR(st, dealt_alloc(n->tape, a, &dx, &dealt), out);
    D9D_TRY_OR(st,
               deal(n->tape, a, &dx, d9d_tensor_data(&dealt), d9d_tensor_data(&n->dout[0]), false),
               out);
    st = d9di_transfer_even(n->tape, d9d_comm_reduce_scatter, a->comm, a->what, dx.dtype,
                            d9d_tensor_data(&dx), d9d_tensor_data(&dealt), d9d_tensor_numel(&dx));
out:
    d9d_tensor_release(&dealt);
    return d9di_node_finish(n, 0, &dx, st);
}

static const d9d_node_ops pieces_ops = {.name = "gather_pieces", .input = pieces_input};

static d9d_status forward(d9d_tape *t, const pieces_attr *a, const d9d_tensor *x,
                          const d9d_tensor *y)
{
    d9d_tensor dealt;
    d9d_status st;

    D9D_TRY(dealt_alloc(t, a, x, &dealt));
    st = d9di_transfer_even(t, d9d_comm_all_gather, a->comm, a->what, x->dtype,
                            d9d_tensor_data(&dealt), d9d_tensor_data(x), d9d_tensor_numel(x));
    if (st == D9D_OK)
        st = deal(t, a, x, d9d_tensor_data(y), d9d_tensor_data(&dealt), true);
    d9d_tensor_release(&dealt);
    return st;
}

d9d_status d9d_op_gather_pieces(d9d_tape *t, d9d_var *x, d9d_comm *comm, const char *what,
                                d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const pieces_attr a = {comm, what};
    d9d_shape shape = tx->shape;
    char text[128];
    d9d_var *out;
    d9d_node *n;

    if (d9d_comm_size(comm) == 1) {
        *y = x;
        return D9D_OK;
    }
    D9D_TRY(d9di_op_check_real("gather_pieces", "x", tx));
    if (shape.ndim < 2 || shape.dim[1] % 2 != 0)
        return D9D_FAIL(D9D_EINVAL, "gather_pieces: x %s is not [B, S, ...] with two pieces in S",
                        d9d_shape_text(&shape, text, sizeof(text)));
    shape.dim[1] *= d9d_comm_size(comm);
    D9D_TRY(d9d_tape_output(t, tx->dtype, shape, &out));
    D9D_TRY(forward(t, &a, tx, d9d_var_tensor(out)));
    if (d9d_tape_wants(t, &x, 1, NULL, 0)) {
        D9D_TRY(d9d_tape_record(t, &pieces_ops, &x, 1, &out, 1, NULL, 0, sizeof(a), &n));
        *(pieces_attr *)n->attr = a;
    }
    *y = out;
    return D9D_OK;
}
