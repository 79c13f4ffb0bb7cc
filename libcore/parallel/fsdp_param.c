/* fsdp_param.c - see parallel/fsdp_param.h. */
#include "parallel/fsdp_param.h"

#include "parallel/narrow_reduce.h"

/* The full parameter as it is stored; a gradient, of what is not quantised, has the same shape. */
static d9d_shape full_shape(const d9d_param *p)
{
    return d9d_param_stored(p, &p->local).shape;
}
static d9d_dtype data_dtype(const d9d_param *p)
{
    return d9d_param_stored(p, &p->local).dtype;
}

/* Product of the dimensions before the sharded one, and of those after it. */
static void dim_extents(const d9d_param *p, int64_t *outer, int64_t *inner)
{
    const d9d_shape shape = full_shape(p);

    *outer = *inner = 1;
    for (int d = 0; d < shape.ndim; d++)
        if (d != p->placement.shard_dim)
            *(d < p->placement.shard_dim ? outer : inner) *= shape.dim[d];
}

/* Pad counts to the largest; the first ranks have the larger shards. */
static void counts_pad(d9di_fsdp_param *t, const d9d_param *p, int64_t *alike)
{
    const int ranks = d9d_comm_size(p->placement.shard_group);
    const int64_t max_count = t->counts[0];

    if (max_count == t->counts[ranks - 1])
        return;
    t->padded_counts = alike;
    for (int r = 0; r < ranks; r++)
        alike[r] = max_count;
}

void d9di_fsdp_param_init(d9di_fsdp_param *t, const d9d_param *p, d9d_dtype reduce_dtype,
                          int64_t *counts)
{
    const int ranks = d9d_comm_size(p->placement.shard_group);
    int64_t outer, inner, first;

    *t = (d9di_fsdp_param){.counts = counts, .reduce_dtype = reduce_dtype};
    dim_extents(p, &outer, &inner);
    for (int r = 0; r < ranks; r++) {
        d9d_param_split(&p->local.shape, p->placement.shard_dim, ranks, r, &first, &counts[r]);
        counts[r] *= outer * inner;
    }
    counts_pad(t, p, counts + ranks);
    t->narrow_counts = counts + 2 * (int64_t)ranks;
    for (int r = 0; r < ranks; r++)
        t->narrow_counts[r] = d9di_narrow_reduce_each(counts[0]);
}

/* Number of ranks from `rank` on with as much of the sharded dimension, and where their shards
 * begin. */
static int64_t equal_ranks(const d9d_param *p, int64_t ranks, int64_t rank, int64_t *first,
                           int64_t *count)
{
    const int dim = p->placement.shard_dim;
    int64_t n = 1, begin, same;

    d9d_param_split(&p->local.shape, dim, ranks, rank, first, count);
    for (; rank + n < ranks; n++) {
        d9d_param_split(&p->local.shape, dim, ranks, rank + n, &begin, &same);
        if (same != *count)
            break;
    }
    return n;
}

/* The kernel copies floats; rows of bytes are multiples of D9D_QUANT_ROW_ALIGN or D9D_FP8_ALIGN. */
static d9d_copy_strided_dims copy_as_words(d9d_copy_strided_dims d)
{
    enum { WORD = sizeof(float) };

    if (d9d_dtype_size(d.t) != 1)
        return d;
    d.t = D9D_F32;
    d.n /= WORD;
    d.x_cols /= WORD;
    d.y_cols /= WORD;
    return d;
}

/* Copy between the staging buffer and the full parameter.  In staging the shards are in rank order,
 * `each` elements apart, or contiguous if that is 0.  Ranks with shards of equal size are the rows
 * of one strided copy, however many ranks there are. */
static d9d_status staging_copy(const d9d_param *p, d9d_device *dev, char *buffer, int64_t each,
                               char *whole, d9d_dtype t, bool to_whole)
{
    const int64_t extent = p->local.shape.dim[p->placement.shard_dim],
                  ranks = d9d_comm_size(p->placement.shard_group);
    const uint64_t size = d9d_dtype_size(t);
    int64_t outer, inner, first, count, n;

    dim_extents(p, &outer, &inner);
    for (int64_t r = 0; r < ranks; r += n) {
        n = equal_ranks(p, ranks, r, &first, &count);
        const int64_t row = count * inner, of_rank = each > 0 ? each : outer * row;
        const int64_t begin = each > 0 ? r * each : first * outer * inner;

        for (int64_t o = 0; o < outer; o++) {
            char *in_buffer = buffer + (uint64_t)(begin + o * row) * size;
            char *in_whole = whole + (uint64_t)((o * extent + first) * inner) * size;
            const d9d_copy_strided_dims dims =
                copy_as_words((d9d_copy_strided_dims){.t = t,
                                                      .m = n,
                                                      .heads = 1,
                                                      .n = row,
                                                      .x_cols = to_whole ? of_rank : row,
                                                      .y_cols = to_whole ? row : of_rank});

            D9D_TRY(dev->kernels->elementwise->copy_strided(dev->stream, &dims,
                                                            to_whole ? in_whole : in_buffer,
                                                            to_whole ? in_buffer : in_whole));
        }
    }
    return D9D_OK;
}

static bool is_contiguous(const d9d_param *p)
{
    int64_t outer, inner;

    dim_extents(p, &outer, &inner);
    return outer == 1;
}

/* Distance between shards in staging; 0: contiguous. */
static int64_t padded_count(const d9di_fsdp_param *t)
{
    return t->padded_counts == NULL ? 0 : t->padded_counts[0];
}

/* Allocate staging for all shards, `each` elements apart, or contiguous if that is 0. */
static d9d_status staging_alloc(const d9d_param *p, d9d_device *dev, d9d_dtype dtype, int64_t each,
                                d9d_tensor *out)
{
    const d9d_shape full = full_shape(p);
    const int64_t all =
        each == 0 ? d9d_shape_numel(&full) : each * d9d_comm_size(p->placement.shard_group);

    return d9d_tensor_alloc(dev, dtype, D9D_SHAPE(all), out);
}

/* Copy n elements on a stream of the device. */
static d9d_status copy_on_stream(d9d_device *dev, d9d_stream stream, d9d_dtype t, void *to,
                                 const void *from, int64_t n)
{
    const d9d_copy_strided_dims dims = copy_as_words(
        (d9d_copy_strided_dims){.t = t, .m = 1, .heads = 1, .n = n, .x_cols = n, .y_cols = n});

    return dev->kernels->elementwise->copy_strided(stream, &dims, to, from);
}

/* --- data ------------------------------------------------------------------------------------- */

d9d_status d9di_fsdp_param_gathered_alloc(const d9di_fsdp_param *t, const d9d_param *p,
                                          d9d_device *dev, d9d_dtype dtype, d9d_tensor *out)
{
    return staging_alloc(p, dev, dtype, padded_count(t), out);
}

int64_t d9di_fsdp_param_own_place(const d9di_fsdp_param *t, const d9d_param *p)
{
    const int me = d9d_comm_rank(p->placement.shard_group);
    int64_t before = 0;

    for (int r = 0; r < me; r++)
        before += t->padded_counts != NULL ? t->padded_counts[r] : t->counts[r];
    return before;
}

d9d_status d9di_fsdp_param_gathered_take(const d9di_fsdp_param *t, const d9d_param *p,
                                         d9d_device *dev, d9d_tensor *from, d9d_tensor *out)
{
    d9d_status st;

    if (t->padded_counts == NULL && is_contiguous(p)) {
        *out = *from;
        *from = (d9d_tensor){0};
        return D9D_OK;
    }
    D9D_TRY(d9d_tensor_alloc(dev, from->dtype, full_shape(p), out));
    st = staging_copy(p, dev, d9d_tensor_data(from), padded_count(t), d9d_tensor_data(out),
                      from->dtype, true);
    d9d_tensor_release(from);
    return st;
}

/* In-place all-gather: each rank sends from its own place. */
static d9d_status padded_all_gather(const d9di_fsdp_param *t, const d9d_param *p, d9d_device *dev)
{
    d9d_stream stream = d9d_comm_stream(p->placement.shard_group);
    char *buffer = d9d_tensor_data(&t->staging);
    char *local =
        buffer + (uint64_t)d9di_fsdp_param_own_place(t, p) * d9d_dtype_size(data_dtype(p));

    D9D_TRY(copy_on_stream(dev, stream, data_dtype(p), local, d9d_tensor_data(&p->shard.data),
                           t->counts[d9d_comm_rank(p->placement.shard_group)]));
    return d9d_comm_all_gather(p->placement.shard_group, stream, p->name, data_dtype(p), buffer,
                               local, t->padded_counts);
}

d9d_status d9di_fsdp_param_unshard_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    const d9d_tensor *to = &p->local.data;

    D9D_TRY(d9d_tensor_alloc(dev, data_dtype(p), full_shape(p), &p->local.data));
    if (t->padded_counts != NULL && t->shared == NULL) {
        D9D_TRY(staging_alloc(p, dev, data_dtype(p), padded_count(t), &t->staging));
        return padded_all_gather(t, p, dev);
    }
    if (!is_contiguous(p)) {
        D9D_TRY(d9d_tensor_alloc(dev, data_dtype(p), full_shape(p), &t->staging));
        to = &t->staging;
    }
    if (t->shared != NULL)
        return d9d_peer_gather(t->shared, d9d_comm_stream(p->placement.shard_group),
                               t->shared_index, data_dtype(p), d9d_tensor_data(to), t->counts);
    return d9d_comm_all_gather(p->placement.shard_group, d9d_comm_stream(p->placement.shard_group),
                               p->name, data_dtype(p), d9d_tensor_data(to),
                               d9d_tensor_data(&p->shard.data), t->counts);
}

d9d_status d9di_fsdp_param_unshard_finish(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    d9d_status st = D9D_OK;

    if (t->staging.storage != NULL)
        st = staging_copy(p, dev, d9d_tensor_data(&t->staging),
                          t->shared == NULL ? padded_count(t) : 0, d9d_tensor_data(&p->local.data),
                          data_dtype(p), true);
    d9d_tensor_release(&t->staging);
    return st;
}

/* --- gradients -------------------------------------------------------------------------------- */

static bool is_narrow(const d9di_fsdp_param *t, const d9d_param *p)
{
    return d9di_narrow_reduce_is_used(t->reduce_dtype, p->spec.grad_dtype);
}

/* The gradient in rank order, in its own type: itself, or a copy in `staging`, shards `each`
 * elements apart or contiguous. */
static d9d_status grad_in_rank_order(const d9d_param *p, d9d_device *dev, int64_t each,
                                     d9d_tensor *staging, const d9d_tensor **out)
{
    *out = &p->local.grad;
    if (is_contiguous(p) && each == 0)
        return D9D_OK;
    *out = staging;
    D9D_TRY(staging_alloc(p, dev, p->spec.grad_dtype, each, staging));
    return staging_copy(p, dev, d9d_tensor_data(staging), each, d9d_tensor_data(&p->local.grad),
                        p->spec.grad_dtype, false);
}

static d9d_status narrow_pack(d9di_fsdp_param *t, const d9d_param *p, d9d_device *dev)
{
    const bool dense = t->padded_counts == NULL && t->narrow_counts[0] == t->counts[0];
    const int64_t each = dense ? 0 : t->narrow_counts[0];
    d9d_tensor staging = {0};
    const d9d_tensor *from;
    d9d_status st;

    D9D_TRY_OR(st, grad_in_rank_order(p, dev, each, &staging, &from), out);
    D9D_TRY_OR(st, staging_alloc(p, dev, D9D_BF16, each, &t->packed), out);
    D9D_TRY_OR(st, staging_alloc(p, dev, D9D_BF16, each, &t->received), out);
    st = dev->kernels->elementwise->cast(dev->stream, D9D_BF16, d9d_tensor_data(&t->packed),
                                         p->spec.grad_dtype, d9d_tensor_data(from),
                                         d9d_tensor_numel(&t->packed));
out:
    d9d_tensor_release(&staging);
    return st;
}

d9d_status d9di_fsdp_param_reduce_pack(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    const d9d_tensor *from;

    if (is_narrow(t, p))
        return narrow_pack(t, p, dev);
    if (t->padded_counts != NULL)
        D9D_TRY(d9d_tensor_alloc(dev, p->spec.grad_dtype, D9D_SHAPE(padded_count(t)), &t->sum));
    else if (p->shard.has_grad)
        D9D_TRY(d9d_tensor_alloc(dev, p->spec.grad_dtype, p->shard.shape, &t->sum));
    return grad_in_rank_order(p, dev, padded_count(t), &t->packed, &from);
}

d9d_status d9di_fsdp_param_reduce_start(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    const d9d_tensor *from = t->packed.storage != NULL ? &t->packed : &p->local.grad;
    const d9d_tensor *to = t->sum.storage != NULL ? &t->sum : &p->shard.grad;

    (void)dev;
    if (is_narrow(t, p))
        return d9d_comm_all_to_all(p->placement.shard_group,
                                   d9d_comm_stream(p->placement.shard_group), p->name, D9D_BF16,
                                   d9d_tensor_data(&t->received), t->narrow_counts,
                                   d9d_tensor_data(&t->packed), t->narrow_counts);
    return d9d_comm_reduce_scatter(p->placement.shard_group,
                                   d9d_comm_stream(p->placement.shard_group), p->name,
                                   p->spec.grad_dtype, d9d_tensor_data(to), d9d_tensor_data(from),
                                   t->padded_counts != NULL ? t->padded_counts : t->counts);
}

/* Store or add the reduced shard in shard.grad; nothing to do if it was reduced in place. */
static d9d_status shard_grad_accumulate(const d9di_fsdp_param *t, const d9d_param *p,
                                        d9d_device *dev)
{
    d9d_stream stream = d9d_comm_stream(p->placement.shard_group);
    void *own = d9d_tensor_data(&p->shard.grad), *sum = d9d_tensor_data(&t->sum);
    const int64_t n = d9d_tensor_numel(&p->shard.grad);

    if (is_narrow(t, p))
        return d9di_narrow_reduce_add(dev, stream, own, p->shard.has_grad, &t->received,
                                      d9d_comm_size(p->placement.shard_group), t->narrow_counts[0],
                                      n);
    if (p->shard.has_grad)
        return dev->kernels->elementwise->accumulate(stream, p->spec.grad_dtype, own, 1.0f,
                                                     p->spec.grad_dtype, sum, n);
    return t->sum.storage == NULL ? D9D_OK
                                  : copy_on_stream(dev, stream, p->spec.grad_dtype, own, sum, n);
}

d9d_status d9di_fsdp_param_reduce_accumulate(d9di_fsdp_param *t, d9d_param *p, d9d_device *dev)
{
    D9D_TRY(shard_grad_accumulate(t, p, dev));
    t->grad = p->local.grad;
    p->local.grad = (d9d_tensor){.dtype = p->spec.grad_dtype, .shape = p->local.shape};
    p->shard.has_grad = true;
    p->local.has_grad = false;
    return D9D_OK;
}

void d9di_fsdp_param_reduce_finish(d9di_fsdp_param *t)
{
    d9d_tensor_release(&t->packed);
    d9d_tensor_release(&t->received);
    d9d_tensor_release(&t->sum);
    d9d_tensor_release(&t->grad);
}
