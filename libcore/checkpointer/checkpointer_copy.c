/* checkpointer_copy.c - see checkpointer/checkpointer_copy.h. */
#include "checkpointer/checkpointer_copy.h"

d9d_status d9di_checkpointer_copy_open(d9di_checkpointer_copy *c, const d9d_checkpointer_set *set,
                                       d9d_device *dev, d9d_arena *a)
{
    *c = (d9di_checkpointer_copy){.set = set, .dev = dev};
    c->list = d9d_arena_alloc(a, (set->n + 1) * sizeof(*c->list));
    c->at = d9d_arena_alloc(a, (set->n + 1) * sizeof(*c->at));
    c->sums = d9d_arena_alloc(a, (set->n + 1) * sizeof(*c->sums));
    if (c->list == NULL || c->at == NULL || c->sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "checkpoint: no memory for the checksums of %zu tensors",
                        set->n);
    return d9d_tensor_alloc(dev, D9D_I64, D9D_SHAPE((int64_t)set->n + 1), &c->device);
}

void d9di_checkpointer_copy_release(d9di_checkpointer_copy *c)
{
    d9d_tensor_release(&c->device);
}

/* Returns how many are not empty. */
static int64_t list_set(d9di_checkpointer_copy *c)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->set->n; i++) {
        const d9d_tensor *t = c->set->items[i].tensor;

        c->at[i] = (size_t)n;
        if (d9d_tensor_numel(t) > 0)
            c->list[n++] = (d9d_checksum_array){d9d_tensor_data(t), (int64_t)d9d_tensor_bytes(t)};
    }
    return n;
}

d9d_status d9di_checkpointer_copy_begin(d9di_checkpointer_copy *c)
{
    const d9d_kernels *k = c->dev->kernels;
    const int64_t n = list_set(c);
    void *sums = d9d_tensor_data(&c->device);

    if (n == 0)
        return D9D_OK;
    D9D_TRY(k->elementwise->fill(c->dev->stream, D9D_I64, sums, n, 0.0f));
    D9D_TRY(k->reduce->checksum(c->dev->stream, sums, c->list, n));
    return d9d_device_download(c->dev, c->sums, sums, (uint64_t)n * sizeof(*c->sums));
}

d9d_status d9di_checkpointer_copy_tensor(const d9di_checkpointer_copy *c, size_t i, void *to)
{
    const d9d_checksum_array from = c->list[c->at[i]], copy = {to, from.bytes};
    uint64_t sum = 0;

    D9D_TRY(d9d_device_d2h(c->dev, to, from.x, (uint64_t)from.bytes));
    D9D_TRY(d9d_kernels_cpu()->reduce->checksum(NULL, &sum, &copy, 1));
    if (sum == c->sums[c->at[i]])
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECORRUPT,
        "%s changed while it was copied for a checkpoint, of which nothing is kept: a "
        "bit flipped in the memory of %s or of the host, or a plugin wrote to it before "
        "the update",
        c->set->items[i].name, c->dev->name);
}
