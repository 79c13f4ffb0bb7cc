/* buckets.c - see parallel/buckets.h. */
#include "parallel/buckets.h"

#include "d9d/device/trace.h"
#include "parallel/narrow_reduce.h"

enum { ALIGN = 256 }; /* bytes: alignment of a separate array */

static uint64_t param_bytes(const d9d_param *p)
{
    const uint64_t n =
        (uint64_t)d9d_shape_numel(&p->shard.shape) * d9d_dtype_size(p->spec.grad_dtype);

    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static bool is_summed(const d9d_param *p)
{
    return p->spec.trainable && p->placement.grad_group != NULL;
}

/* The newest bucket of that kind, if the parameter fits in it. */
static d9di_bucket *bucket_for(d9di_buckets *b, const d9d_param *p)
{
    for (size_t i = b->list.len; i-- > 0;) {
        d9di_bucket *k = &b->list.data[i];

        if (k->sum == p->placement.grad_group && k->dtype == p->spec.grad_dtype)
            return k->bytes + param_bytes(p) <= b->max_bytes ? k : NULL;
    }
    return NULL;
}

d9d_status d9di_buckets_add(d9di_buckets *b, size_t unit, d9d_param *p)
{
    d9di_bucket *k;

    if (!is_summed(p))
        return D9D_OK;
    k = bucket_for(b, p);
    if (k == NULL) {
        D9D_TRY(D9D_VEC_PUSH(
            &b->list, (d9di_bucket){.sum = p->placement.grad_group, .dtype = p->spec.grad_dtype}));
        k = &b->list.data[b->list.len - 1];
    }
    D9D_TRY(D9D_VEC_PUSH(&k->params, p));
    k->bytes += param_bytes(p);
    if (k->units.len > 0 && k->units.data[k->units.len - 1] == unit)
        return D9D_OK;
    return D9D_VEC_PUSH(&k->units, unit);
}

/* shard.grad becomes the bucket's elements from `at` on; so does local.grad if that is the same. */
static void param_view(d9d_param *p, const d9d_tensor *all, int64_t at)
{
    d9d_tensor part = d9d_tensor_rows(all, at, d9d_shape_numel(&p->shard.shape));

    d9d_tensor_release(&p->shard.grad);
    p->shard.grad = d9d_tensor_reshape(&part, p->shard.shape);
    d9d_tensor_release(&part);
    if (p->placement.shard_group != NULL)
        return;
    d9d_tensor_release(&p->local.grad);
    p->local.grad = d9d_tensor_ref(&p->shard.grad);
}

/* Zeros in n elements of the bucket from `at` on. */
static d9d_status zeros_fill(const d9di_bucket *k, d9d_device *dev, int64_t at, int64_t n)
{
    char *all = d9d_tensor_data(&k->all);

    return n == 0 ? D9D_OK
                  : dev->kernels->elementwise->fill(
                        dev->stream, k->dtype, all + (uint64_t)at * d9d_dtype_size(k->dtype), n, 0);
}

/* The padding between gradients is zero and stays so. */
static d9d_status bucket_alloc(d9di_bucket *k, d9d_device *dev)
{
    const int64_t size = (int64_t)d9d_dtype_size(k->dtype);
    const bool is_new = k->all.storage == NULL;
    int64_t at = 0;

    if (is_new)
        D9D_TRY(d9d_tensor_alloc(dev, k->dtype, D9D_SHAPE((int64_t)k->bytes / size), &k->all));
    for (size_t i = 0; i < k->params.len; i++) {
        d9d_param *p = k->params.data[i];
        const int64_t n = d9d_shape_numel(&p->shard.shape), padded = (int64_t)param_bytes(p) / size;

        if (p->shard.grad.storage == NULL)
            param_view(p, &k->all, at);
        if (is_new)
            D9D_TRY(zeros_fill(k, dev, at + n, padded - n));
        at += padded;
    }
    return D9D_OK;
}

/* A gradient that there is not counts as zero. */
static d9d_status missing_fill(const d9di_bucket *k, d9d_device *dev)
{
    int64_t at = 0;

    for (size_t i = 0; i < k->params.len; i++) {
        const d9d_param *p = k->params.data[i];

        if (!d9d_param_has_shard_grad(p))
            D9D_TRY(zeros_fill(k, dev, at, d9d_shape_numel(&p->shard.shape)));
        at += (int64_t)(param_bytes(p) / d9d_dtype_size(k->dtype));
    }
    return D9D_OK;
}

static bool bucket_has_unit(const d9di_bucket *k, size_t unit)
{
    for (size_t i = 0; i < k->units.len; i++)
        if (k->units.data[i] == unit)
            return true;
    return false;
}

d9d_status d9di_buckets_alloc_unit(d9di_buckets *b, size_t unit, d9d_device *dev)
{
    for (size_t i = 0; i < b->list.len; i++)
        if (bucket_has_unit(&b->list.data[i], unit))
            D9D_TRY(bucket_alloc(&b->list.data[i], dev));
    return D9D_OK;
}

d9d_status d9di_buckets_alloc(d9di_buckets *b, d9d_device *dev)
{
    for (size_t i = 0; i < b->list.len; i++)
        D9D_TRY(bucket_alloc(&b->list.data[i], dev));
    return D9D_OK;
}

static void narrow_release(d9di_bucket *k)
{
    d9d_tensor_release(&k->packed);
    d9d_tensor_release(&k->received);
}

static void bucket_clear_pending(const d9di_bucket *k)
{
    for (size_t i = 0; i < k->params.len; i++)
        k->params.data[i]->shard.pending_reduce = NULL;
}

void d9di_buckets_release(d9di_buckets *b)
{
    for (size_t i = 0; i < b->list.len; i++) {
        d9di_bucket *k = &b->list.data[i];

        bucket_clear_pending(k);
        d9d_comm_event_free(k->sum, k->summed.event);
        d9d_tensor_release(&k->all);
        narrow_release(k);
        D9D_VEC_RELEASE(&k->counts);
        D9D_VEC_RELEASE(&k->params);
        D9D_VEC_RELEASE(&k->units);
    }
    D9D_VEC_RELEASE(&b->list);
}

void d9di_buckets_begin(d9di_buckets *b)
{
    for (size_t i = 0; i < b->list.len; i++)
        b->list.data[i].done = 0;
}

static d9d_status bucket_call_hook(const d9di_buckets *b, const d9di_bucket *k)
{
    for (size_t i = 0; b->hook != NULL && i < k->params.len; i++) {
        const d9d_param *p = k->params.data[i];

        if (p->placement.shard_group == NULL && d9d_param_has_shard_grad(p))
            D9D_TRY(b->hook(b->hook_arg, p, &p->shard.grad));
    }
    return D9D_OK;
}

static d9d_status narrow_alloc(d9di_bucket *k, d9d_device *dev)
{
    const int ranks = d9d_comm_size(k->sum);
    const int64_t each = d9di_narrow_reduce_each((d9d_tensor_numel(&k->all) + ranks - 1) / ranks);

    k->counts.len = 0;
    for (int r = 0; r < ranks; r++)
        D9D_TRY(D9D_VEC_PUSH(&k->counts, each));
    D9D_TRY(d9d_tensor_alloc(dev, D9D_BF16, D9D_SHAPE(ranks * each), &k->packed));
    return d9d_tensor_alloc(dev, D9D_BF16, D9D_SHAPE(ranks * each), &k->received);
}

static void *narrow_at(const d9d_tensor *x, int64_t i)
{
    return (char *)d9d_tensor_data(x) + (uint64_t)i * d9d_dtype_size(D9D_BF16);
}

/* A reduce-scatter and an all-gather of equal parts, the last of which zeros complete.  Every rank
 * gets the same bits: the sums as bfloat16. */
static d9d_status narrow_all_reduce(d9di_bucket *k, d9d_device *dev, d9d_stream stream,
                                    const char *label)
{
    const d9d_elementwise_kernels *kernels = dev->kernels->elementwise;
    const int64_t all = d9d_tensor_numel(&k->all), each = k->counts.data[0],
                  first = d9d_comm_rank(k->sum) * each, rest = all > first ? all - first : 0,
                  n = rest < each ? rest : each;
    float *whole = d9d_tensor_data(&k->all);
    void *own = narrow_at(&k->packed, first);

    D9D_TRY(kernels->fill(stream, D9D_BF16, narrow_at(&k->packed, all),
                          d9d_tensor_numel(&k->packed) - all, 0.0f));
    D9D_TRY(kernels->cast(stream, D9D_BF16, d9d_tensor_data(&k->packed), D9D_F32, whole, all));
    D9D_TRY(d9d_comm_all_to_all(k->sum, stream, label, D9D_BF16, d9d_tensor_data(&k->received),
                                k->counts.data, d9d_tensor_data(&k->packed), k->counts.data));
    D9D_TRY(d9di_narrow_reduce_add(dev, stream, whole + (n > 0 ? first : 0), false, &k->received,
                                   d9d_comm_size(k->sum), each, n));
    if (n > 0)
        D9D_TRY(kernels->cast(stream, D9D_BF16, own, D9D_F32, whole + first, n));
    D9D_TRY(d9d_comm_all_gather(k->sum, stream, label, D9D_BF16, d9d_tensor_data(&k->packed), own,
                                k->counts.data));
    return kernels->cast(stream, D9D_F32, whole, D9D_BF16, d9d_tensor_data(&k->packed), all);
}

/* All-reduce, after the device's work so far and after the reduce-scatters of shards. */
static d9d_status bucket_all_reduce(d9di_bucket *k, d9d_device *dev, bool narrow)
{
    const char *label = k->params.data[0]->name;
    d9d_stream stream = d9d_comm_stream(k->sum);
    const d9d_comm *parts = NULL;

    if (k->all.storage == NULL) /* released, and backward has come to none of its units */
        D9D_TRY(bucket_alloc(k, dev));
    D9D_TRY(missing_fill(k, dev));
    if (narrow)
        D9D_TRY(narrow_alloc(k, dev));
    for (size_t i = 0; i < k->params.len; i++) {
        const d9d_param *p = k->params.data[i];

        if (p->placement.shard_group != NULL && p->placement.shard_group != parts)
            D9D_TRY(d9d_comm_wait_stream(k->sum, d9d_comm_stream(p->placement.shard_group)));
        parts = p->placement.shard_group != NULL ? p->placement.shard_group : parts;
    }
    D9D_TRY(d9d_comm_wait_stream(k->sum, dev->stream));
    d9d_trace_stream_range_begin(dev, stream, "all_reduce", label);
    D9D_TRY(narrow ? narrow_all_reduce(k, dev, stream, label)
                   : d9d_comm_all_reduce(k->sum, stream, label, k->dtype, d9d_tensor_data(&k->all),
                                         d9d_tensor_numel(&k->all), D9D_COMM_SUM));
    d9d_trace_stream_range_end(dev, stream);
    k->summed.comm = k->sum;
    k->reducing = true;
    D9D_TRY(d9d_comm_event_record(k->sum, &k->summed.event));
    for (size_t i = 0; i < k->params.len; i++)
        k->params.data[i]->shard.pending_reduce = &k->summed;
    return D9D_OK;
}

d9d_status d9di_buckets_unit_done(d9di_buckets *b, size_t unit, d9d_device *dev)
{
    for (size_t i = 0; i < b->list.len; i++) {
        d9di_bucket *k = &b->list.data[i];

        if (!bucket_has_unit(k, unit) || ++k->done < k->units.len)
            continue;
        D9D_TRY(bucket_call_hook(b, k));
        D9D_TRY(bucket_all_reduce(k, dev, d9di_narrow_reduce_is_used(b->reduce_dtype, k->dtype)));
    }
    return D9D_OK;
}

static bool bucket_has_grads(const d9di_bucket *k)
{
    for (size_t i = 0; i < k->params.len; i++)
        if (k->params.data[i]->shard.grad.storage != NULL)
            return true;
    return false;
}

static d9d_status bucket_wait(const d9di_buckets *b, d9di_bucket *k, d9d_device *dev)
{
    D9D_TRY(d9d_stream_wait_event(k->sum, k->summed.event, dev->stream));
    bucket_clear_pending(k);
    narrow_release(k);
    k->reducing = false;
    if (b->reduced != NULL)
        D9D_TRY(b->reduced(b->reduced_arg, k->params.data, k->params.len));
    if (!bucket_has_grads(k))
        d9d_tensor_release(&k->all);
    return D9D_OK;
}

d9d_status d9di_buckets_wait(d9di_buckets *b, d9d_device *dev)
{
    for (size_t i = 0; i < b->list.len; i++)
        if (b->list.data[i].reducing)
            D9D_TRY(bucket_wait(b, &b->list.data[i], dev));
    return D9D_OK;
}
