/* fsdp_bytes.c - memory of unsharded units, before anything is allocated.  See d9d/parallel/fsdp.h.
 */
#include "d9d/parallel/fsdp.h"
#include "parallel/fsdp_fp8.h"

static uint64_t grad_bytes(const d9d_param *p)
{
    return (uint64_t)d9d_shape_numel(&p->local.shape) * d9d_dtype_size(p->spec.grad_dtype);
}

/* Bytes of a unit's full parameters and gradients; of those that are gathered in 8 bits, the copies
 * that are in memory at once. */
typedef struct buffer_bytes {
    bool float8_all_gather;
    uint64_t copies[2]; /* by d9d_quantised_scaling */
    uint64_t data, grads, shard_grads;
} buffer_bytes;

/* Gradients that persist unless they are released. */
static uint64_t shard_grad_bytes(const d9d_param *p)
{
    return (uint64_t)d9d_shape_numel(&p->shard.shape) * d9d_dtype_size(p->spec.grad_dtype);
}

static d9d_status buffer_bytes_add(void *arg, d9d_param *p)
{
    buffer_bytes *b = arg;

    b->shard_grads += p->spec.trainable ? shard_grad_bytes(p) : 0;
    if (p->placement.shard_group == NULL)
        return D9D_OK;
    b->data += d9di_fsdp_fp8_is_used(p, b->float8_all_gather)
                   ? b->copies[p->fp8.recipe->scaling] * (uint64_t)d9d_shape_numel(&p->local.shape)
                   : d9d_param_stored_bytes(p, &p->local);
    b->grads += p->spec.trainable ? grad_bytes(p) : 0;
    return D9D_OK;
}

d9d_status d9d_fsdp_bytes(const d9d_model *m, const d9d_fsdp_opts *opts, uint64_t *out)
{
    const bool keep = opts->reshard != D9D_RESHARD_AFTER_FORWARD && opts->with_grads,
               once = opts->reduce_once && opts->with_grads && !opts->release_grads;
    /* With one scale, what backward reads is made of what forward reads, which stays. */
    const buffer_bytes none = {
        .float8_all_gather = opts->float8_all_gather,
        .copies = {
            [D9D_SCALE_TENSORWISE] = opts->with_grads ? 2 : 1, [D9D_SCALE_ROWWISE] = keep ? 2 : 1}};
    buffer_bytes all = none;
    uint64_t max_bytes = 0;

    D9D_TRY(d9d_module_each(m->module, buffer_bytes_add, &all));
    for (size_t i = 0; i < m->n_units; i++) {
        buffer_bytes b = none;
        uint64_t n;

        D9D_TRY(d9d_module_each(m->units[i], buffer_bytes_add, &b));
        n = (keep ? 0 : b.data) + (opts->with_grads && !once ? b.grads : 0) +
            (opts->release_grads ? b.shard_grads : 0);
        max_bytes = n > max_bytes ? n : max_bytes;
    }
    *out = max_bytes + (keep ? all.data : 0) + (once ? all.grads : 0);
    return D9D_OK;
}
