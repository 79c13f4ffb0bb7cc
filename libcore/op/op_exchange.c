/* op_exchange.c - see op/op_exchange.h.
 *
 * A routing over ranks is one of n choices a token, choice d of rank d: packing is its permute, and
 * the sum of what comes back is that one's backward.
 */
#include "op/op_exchange.h"

#include "d9d/device/trace.h"

/* n counts of rows as counts of elements. */
static const int64_t *elements(int64_t *out, const int64_t *rows, int n, const d9d_tensor *of)
{
    for (int i = 0; i < n; i++)
        out[i] = rows[i] * of->shape.dim[1];
    return out;
}

static d9d_status move(d9d_tape *t, d9d_exchange *e, const d9d_tensor *to, const int64_t *to_rows,
                       const d9d_tensor *from, const int64_t *from_rows)
{
    const int n = d9d_comm_size(e->ep);
    int64_t *scratch = e->rows + 2 * n;
    const int64_t *recv = elements(scratch, to_rows, n, to);
    const int64_t *send = elements(scratch + n, from_rows, n, from);

    return d9d_comm_all_to_all(e->ep, d9d_tape_device(t)->stream, e->what, to->dtype,
                               d9d_tensor_data(to), recv, d9d_tensor_data(from), send);
}

d9d_status d9di_exchange_send(d9d_tape *t, d9d_exchange *e, const d9d_tensor *packed,
                              const d9d_tensor *y)
{
    return move(t, e, y, e->rows + d9d_comm_size(e->ep), packed, e->rows);
}

static d9d_status send_back(d9d_tape *t, d9d_exchange *e, const d9d_tensor *x,
                            const d9d_tensor *packed)
{
    return move(t, e, packed, e->rows, x, e->rows + d9d_comm_size(e->ep));
}

d9d_status d9di_exchange_spread(d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                                const d9d_tensor *x, const d9d_tensor *y)
{
    const d9d_permute_dims dims = {x->dtype, x->shape.dim[0], d9d_comm_size(e->ep), e->sent,
                                   x->shape.dim[1]};
    d9d_tensor packed;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, D9D_SHAPE(dims.n, dims.h), &packed));
    st = D9DI_KERNEL(t, permute, &dims, d9d_tensor_data(&packed), d9d_tensor_data(x),
                     d9d_tensor_data(row));
    d9d_trace_lap(d9d_tape_device(t), "experts", "pack");
    if (st == D9D_OK)
        st = d9di_exchange_send(t, e, &packed, y);
    d9d_trace_lap(d9d_tape_device(t), "experts", "move");
    d9d_tensor_release(&packed);
    return st;
}

d9d_status d9di_exchange_collect(d9d_tape *t, d9d_exchange *e, const d9d_tensor *row,
                                 const d9d_tensor *x, const d9d_tensor *y)
{
    const d9d_permute_dims dims = {x->dtype, row->shape.dim[0], row->shape.dim[1], e->sent,
                                   x->shape.dim[1]};
    d9d_tensor packed;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), x->dtype, D9D_SHAPE(dims.n, dims.h), &packed));
    d9d_trace_lap(d9d_tape_device(t), "experts", "pack");
    st = send_back(t, e, x, &packed);
    d9d_trace_lap(d9d_tape_device(t), "experts", "move");
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, permute_din, &dims, d9d_tensor_data(y), d9d_tensor_data(&packed),
                         d9d_tensor_data(row));
    d9d_tensor_release(&packed);
    return st;
}
