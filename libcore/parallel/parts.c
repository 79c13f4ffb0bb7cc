/* parts.c - see parallel/parts.h. */
#include "parallel/parts.h"

/* Indices before, and elements behind, the dimension that is cut. */
static void extents(const d9d_param *p, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < p->work.ndim; d++)
        if (d != p->shard_dim)
            *(d < p->shard_dim ? outer : inner) *= p->work.dim[d];
}

void d9di_parts_init(d9di_parts *t, const d9d_param *p, int64_t *counts)
{
    const int ranks = d9d_comm_size(p->shard);
    int64_t outer, inner, first;

    *t = (d9di_parts){.counts = counts};
    extents(p, &outer, &inner);
    for (int r = 0; r < ranks; r++) {
        d9d_part_of(p->work.dim[p->shard_dim], ranks, r, &first, &counts[r]);
        counts[r] *= outer * inner;
    }
}

/* How many ranks from this one on have as much of the cut dimension, and where theirs begins. */
static int64_t alike(int64_t extent, int64_t ranks, int64_t rank, int64_t *first, int64_t *count)
{
    int64_t n = 1, begin, same;

    d9d_part_of(extent, ranks, rank, first, count);
    for (; rank + n < ranks; n++) {
        d9d_part_of(extent, ranks, rank + n, &begin, &same);
        if (same != *count)
            break;
    }
    return n;
}

/* Between the room, where parts lie rank by rank, and the whole: for each index before the cut the
 * parts of ranks that have as much are rows of one copy, however many ranks there are. */
static d9d_status rearrange(const d9d_param *p, d9d_device *dev, char *room, char *whole,
                            d9d_dtype t, bool to_whole)
{
    const int64_t extent = p->work.dim[p->shard_dim], ranks = d9d_comm_size(p->shard);
    const uint64_t size = d9d_dtype_size(t);
    int64_t outer, inner, first, count, n;

    extents(p, &outer, &inner);
    for (int64_t r = 0; r < ranks; r += n) {
        n = alike(extent, ranks, r, &first, &count);
        for (int64_t o = 0; o < outer; o++) {
            char *in_room = room + (uint64_t)((first * outer + o * count) * inner) * size;
            char *in_whole = whole + (uint64_t)((o * extent + first) * inner) * size;
            const int64_t row = count * inner, of_rank = outer * row;
            const d9d_columns_dims dims = {.t = t,
                                           .m = n,
                                           .heads = 1,
                                           .n = row,
                                           .x = to_whole ? of_rank : row,
                                           .y = to_whole ? row : of_rank};

            D9D_TRY(dev->kernels->columns(dev->stream, &dims, to_whole ? in_whole : in_room,
                                          to_whole ? in_room : in_whole));
        }
    }
    return D9D_OK;
}

static bool in_order(const d9d_param *p)
{
    int64_t outer, inner;

    extents(p, &outer, &inner);
    return outer == 1;
}

/* --- data ------------------------------------------------------------------------------- */

d9d_status d9di_gather_start(d9di_parts *t, d9d_param *p, d9d_device *dev)
{
    const d9d_tensor *to = &p->data;

    D9D_TRY(d9d_tensor_alloc(dev, p->dtype, p->work, &p->data));
    if (!in_order(p)) {
        D9D_TRY(d9d_tensor_alloc(dev, p->dtype, p->work, &t->room));
        to = &t->room;
    }
    if (t->shared != NULL)
        return d9d_comm_shared_gather(t->shared, d9d_comm_queue(p->shard), t->place, p->dtype,
                                      d9d_tensor_data(to), t->counts);
    return d9d_comm_all_gather(p->shard, d9d_comm_queue(p->shard), p->name, p->dtype,
                               d9d_tensor_data(to), d9d_tensor_data(&p->own), t->counts);
}

d9d_status d9di_gather_finish(d9di_parts *t, d9d_param *p, d9d_device *dev)
{
    d9d_status st = D9D_OK;

    if (t->room.storage != NULL)
        st =
            rearrange(p, dev, d9d_tensor_data(&t->room), d9d_tensor_data(&p->data), p->dtype, true);
    d9d_tensor_release(&t->room);
    return st;
}

/* --- gradients ---------------------------------------------------------------------------- */

d9d_status d9di_reduce_pack(d9di_parts *t, d9d_param *p, d9d_device *dev)
{
    if (p->has_own_grad)
        D9D_TRY(d9d_tensor_alloc(dev, p->grad_dtype, p->box, &t->sum));
    if (in_order(p))
        return D9D_OK;
    D9D_TRY(d9d_tensor_alloc(dev, p->grad_dtype, p->work, &t->packed));
    return rearrange(p, dev, d9d_tensor_data(&t->packed), d9d_tensor_data(&p->grad), p->grad_dtype,
                     false);
}

d9d_status d9di_reduce_start(d9di_parts *t, d9d_param *p, d9d_device *dev)
{
    const d9d_tensor *from = t->packed.storage != NULL ? &t->packed : &p->grad;
    const d9d_tensor *to = p->has_own_grad ? &t->sum : &p->own_grad;

    (void)dev;
    return d9d_comm_reduce_scatter(p->shard, d9d_comm_queue(p->shard), p->name, p->grad_dtype,
                                   d9d_tensor_data(to), d9d_tensor_data(from), t->counts);
}

d9d_status d9di_reduce_add(d9di_parts *t, d9d_param *p, d9d_device *dev)
{
    d9d_stream queue = d9d_comm_queue(p->shard);

    if (p->has_own_grad)
        D9D_TRY(dev->kernels->accumulate(queue, p->grad_dtype, d9d_tensor_data(&p->own_grad), 1.0f,
                                         p->grad_dtype, d9d_tensor_data(&t->sum),
                                         d9d_tensor_numel(&t->sum)));
    t->grad = p->grad;
    p->grad = (d9d_tensor){.dtype = p->grad_dtype, .shape = p->work};
    p->has_own_grad = true;
    p->has_grad = false;
    return D9D_OK;
}

void d9di_reduce_finish(d9di_parts *t)
{
    d9d_tensor_release(&t->packed);
    d9d_tensor_release(&t->sum);
    d9d_tensor_release(&t->grad);
}
