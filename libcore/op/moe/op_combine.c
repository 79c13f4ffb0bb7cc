/* op_combine.c - expert-parallel combine: an all-to-all of expert outputs back to their tokens'
 * ranks. part [N, H], y [T, H].
 *
 *     y[t] = sum over ranks d of the part of t on d        dpart = dy[t] on each of them
 */
#include <string.h>

#include "op/moe/op_moe_all_to_all.h"

static d9d_status combine_dgrad(d9d_node *n)
{
    d9d_tensor dpart;

    D9D_TRY(d9di_op_grad_alloc(n, 0, &dpart));
    return d9di_op_grad_finish(
        n, 0, &dpart,
        d9di_op_moe_dispatch_rows(n->tape, n->attr, &n->saved[0], &n->dout[0], &dpart));
}

static const d9d_node_ops combine_node_ops = {.name = "combine", .dgrad = combine_dgrad};

static d9d_status combine_check(const d9d_tensor *part, const d9d_op_moe_dispatch *d)
{
    D9D_TRY(d9di_op_check_real("combine", "part", part));
    D9D_TRY(d9di_op_check("combine", "the dispatch", &d->routing.expert, D9D_I32));
    if (part->shape.ndim != 2 || part->shape.dim[0] != d->routing.expert.shape.dim[0])
        return d9di_op_misfit("combine", "part", &part->shape, "the received expert ids",
                              &d->routing.expert.shape, "a part is [N, H], expert ids are [N, k]");
    return D9D_OK;
}

static d9d_status combine_run(d9d_tape *t, d9d_op_moe_exchange *e, const d9d_tensor *row,
                              const d9d_tensor *x, const d9d_tensor *y)
{
    d9di_op_moe_transfer l = {0};
    d9d_status st = d9di_op_moe_combine_start(&l, t, e, &x, 1);

    if (st == D9D_OK)
        st = d9di_op_moe_transfer_wait(&l, t);
    if (st == D9D_OK)
        st = d9di_op_moe_combine_sum(&l, t, e, row, 0, y);
    d9di_op_moe_transfer_release(&l);
    return st;
}

d9d_status d9d_op_combine(d9d_tape *t, d9d_var *part, const d9d_op_moe_dispatch *d, d9d_var **y)
{
    const d9d_tensor *x = d9d_var_tensor(part), *row = &d->sent.row;
    d9d_op_moe_exchange *e = d->exchange;
    d9d_var *out;
    d9d_node *n;

    D9D_TRY(combine_check(x, d));
    if (e == NULL) {
        *y = part;
        return D9D_OK;
    }
    D9D_TRY(d9d_tape_output(t, x->dtype, D9D_SHAPE(row->shape.dim[0], x->shape.dim[1]), &out));
    D9D_TRY(combine_run(t, e, row, x, d9d_var_tensor(out)));
    if (d9d_tape_should_record(t, &part, 1, NULL, 0)) {
        const size_t size = d9di_op_moe_exchange_size(d9d_comm_size(e->ep));

        D9D_TRY(d9d_tape_record(t, &combine_node_ops, &part, 1, &out, 1, NULL, 0, size, &n));
        memcpy(n->attr, e, size);
        d9d_tape_defer_wgrad(t);
        (void)d9d_node_save(n, row, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}
