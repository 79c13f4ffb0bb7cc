/* param.c - placement of a parameter on the ranks.  See d9d/tape/param.h. */
#include "d9d/tape/param.h"

#include <string.h>

d9d_status d9d_param_grad_alloc(d9d_param *p)
{
    if (!p->grad_on_demand || !p->spec.trainable || p->placement.shard_group != NULL ||
        p->shard.grad.storage != NULL)
        return D9D_OK;
    D9D_TRY((p->grad_loose ? d9d_tensor_alloc_loose : d9d_tensor_alloc)(
        d9d_tensor_device(&p->local.data), p->spec.grad_dtype, p->shard.shape, &p->shard.grad));
    p->local.grad = d9d_tensor_ref(&p->shard.grad);
    return D9D_OK;
}

/* Without memory, with its type and shape. */
static void grad_release(d9d_param_part *part, d9d_dtype t)
{
    d9d_tensor_release(&part->grad);
    part->grad = (d9d_tensor){.dtype = t, .shape = part->shape};
}

void d9d_param_grad_clear(d9d_param *p)
{
    p->local.has_grad = p->shard.has_grad = false;
    if (!p->grad_on_demand)
        return;
    grad_release(&p->local, p->spec.grad_dtype);
    grad_release(&p->shard, p->spec.grad_dtype);
}

d9d_status d9d_param_quantise(d9d_param *p, bool rows, bool cols)
{
    const bool want_rows = rows && d9d_quantised_is_empty(&p->fp8.rows),
               want_cols = cols && d9d_quantised_is_empty(&p->fp8.cols);

    if (!want_rows && !want_cols)
        return D9D_OK;
    if (p->fp8.gather != NULL)
        return p->fp8.gather(p->fp8.gather_arg, p, want_rows, want_cols);
    return d9d_quantise(&p->local.data, p->fp8.recipe, p->fp8.recipe->format,
                        want_rows ? &p->fp8.rows : NULL, want_cols ? &p->fp8.cols : NULL);
}

void d9d_param_forget_quantised(d9d_param *p)
{
    d9d_quantised_release(&p->fp8.rows);
    d9d_quantised_release(&p->fp8.cols);
}

d9d_tensor d9d_param_stored(const d9d_param *p, const d9d_param_part *part)
{
    const d9d_shape *s = &part->shape;

    if (p->spec.stored == D9D_QUANT_NONE)
        return (d9d_tensor){.dtype = p->spec.dtype, .shape = *s};
    return (d9d_tensor){.dtype = D9D_U8,
                        .shape =
                            D9D_SHAPE(s->dim[0], d9d_quant_row_bytes(p->spec.stored, s->dim[1]))};
}

uint64_t d9d_param_stored_bytes(const d9d_param *p, const d9d_param_part *part)
{
    const d9d_tensor t = d9d_param_stored(p, part);

    return (uint64_t)d9d_shape_numel(&t.shape) * d9d_dtype_size(t.dtype);
}

d9d_quant_matrix d9d_param_quant_rows(const d9d_param *p, int64_t first, int64_t n)
{
    const int64_t cols = p->local.shape.dim[1];

    return (d9d_quant_matrix){p->spec.stored, n, cols,
                              (const char *)d9d_tensor_data(&p->local.data) +
                                  first * d9d_quant_row_bytes(p->spec.stored, cols)};
}

int64_t d9d_param_layer_of(const char *name)
{
    static const char word[] = "layers.";

    for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word)) {
        const char *digit = at + sizeof(word) - 1;
        int64_t i = 0;

        if ((at > name && at[-1] != '.') || *digit < '0' || *digit > '9')
            continue;
        for (; *digit >= '0' && *digit <= '9' && i < INT32_MAX; digit++)
            i = 10 * i + (*digit - '0');
        if (*digit == '.')
            return i;
    }
    return -1;
}

bool d9d_param_is_layer_matrix(const d9d_param *p)
{
    return p->spec.adaptable && !p->spec.from_task && p->peft.adapts == NULL &&
           d9d_param_layer_of(p->name) >= 0 && strstr(p->name, ".router.") == NULL;
}

void d9d_param_partition(d9d_param *p, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_param_split_even(p->local.shape.dim[dim], parts, i, &first, &count);
    p->local.shape.dim[dim] = count;
    p->local.offset[dim] += first;
    p->shard.shape = p->local.shape;
    memcpy(p->shard.offset, p->local.offset, sizeof(p->shard.offset));
}

void d9d_param_shard(d9d_param *p, d9d_comm *shard, int dim, int64_t parts, int64_t i)
{
    int64_t first, count;

    d9d_param_split(&p->local.shape, dim, parts, i, &first, &count);
    p->placement.shard_group = shard;
    p->placement.shard_dim = dim;
    p->shard.shape = p->local.shape;
    p->shard.shape.dim[dim] = count;
    memcpy(p->shard.offset, p->local.offset, sizeof(p->shard.offset));
    p->shard.offset[dim] += first;
}
