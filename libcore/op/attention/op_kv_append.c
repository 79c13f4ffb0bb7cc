/* op_kv_append.c - append keys, values or both to a KV cache.  x [1, T, K, D], at [T], cache [Z, K,
 * D], y [1, Z, K, D], scale [Z, K].
 */
#include "op/norm/op_qk_heads.h"

static d9d_status append_check(d9d_var *x, const d9d_tensor *at, const d9d_tensor *cache,
                               d9d_dtype stored)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9d_shape *s = &tx->shape, *c = &cache->shape;

    D9D_TRY(d9di_op_check_real("kv_append", "x", tx));
    D9D_TRY(d9di_op_check("kv_append", "the cache", cache, stored));
    D9D_TRY(d9di_op_check("kv_append", "at", at, D9D_I32));
    if (s->ndim != 4 || c->ndim != 3 || s->dim[0] != 1 || s->dim[2] != c->dim[1] ||
        s->dim[3] != c->dim[2])
        return d9di_op_misfit("kv_append", "x", s, "the cache", c,
                              "x is [1, T, K, D], a cache [Z, K, D]");
    if (d9d_tensor_numel(at) != s->dim[1])
        return d9di_op_misfit("kv_append", "at", &at->shape, "x", s,
                              "one slot for each of T tokens");
    return D9D_OK;
}

static d9d_status check_forward_only(d9d_tape *t, d9d_var *x)
{
    return d9d_tape_should_record(t, &x, 1, NULL, 0)
               ? D9D_FAIL(D9D_EINVAL, "kv_append: has no backward")
               : D9D_OK;
}

d9d_status d9di_op_kv_append_check(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                   const d9d_tensor *cache)
{
    D9D_TRY(append_check(x, at, cache, d9d_var_tensor(x)->dtype));
    return check_forward_only(t, x);
}

d9d_status d9di_op_kv_cache_view(d9d_tape *t, const d9d_tensor *cache, d9d_var **y)
{
    const d9d_shape *c = &cache->shape;
    d9d_tensor all = d9d_tensor_reshape(cache, D9D_SHAPE(1, c->dim[0], c->dim[1], c->dim[2]));

    return d9d_tape_output_take(t, &all, y);
}

d9d_status d9d_op_kv_append(d9d_tape *t, d9d_var *x, const d9d_tensor *at, const d9d_tensor *cache,
                            d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9d_shape *c = &cache->shape;
    int64_t width;

    D9D_TRY(d9di_op_kv_append_check(t, x, at, cache));
    width = c->dim[1] * c->dim[2];
    D9D_TRY(D9DI_KERNEL(t, elementwise->scatter_rows, tx->dtype, d9d_tensor_data(cache), width, 0,
                        d9d_tensor_data(at), d9d_tensor_data(tx), tx->shape.dim[1], width));
    return d9di_op_kv_cache_view(t, cache, y);
}

d9d_attention_append_fp8 d9di_op_kv_append_fp8_array(d9d_var *x, const d9d_tensor *codes,
                                                     const d9d_tensor *scale)
{
    return (d9d_attention_append_fp8){d9d_tensor_data(d9d_var_tensor(x)), d9d_tensor_data(codes),
                                      d9d_tensor_data(scale)};
}

d9d_status d9di_op_kv_append_fp8_check(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                       const d9d_tensor *codes, const d9d_tensor *scale)
{
    const d9d_shape *c = &codes->shape;

    D9D_TRY(append_check(x, at, codes, D9D_F8_E4M3));
    D9D_TRY(d9di_op_check("kv_append", "scale", scale, D9D_F32));
    if (!d9d_shape_equal(&scale->shape, &D9D_SHAPE(c->dim[0], c->dim[1])))
        return d9di_op_misfit("kv_append", "scale", &scale->shape, "the cache", c,
                              "a cache is [Z, K, D], scales are [Z, K]");
    return check_forward_only(t, x);
}

d9d_status d9d_op_kv_append_fp8(d9d_tape *t, d9d_var *x, const d9d_tensor *at,
                                const d9d_tensor *codes, const d9d_tensor *scale, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    const d9d_shape *c = &codes->shape;
    d9d_attention_append_fp8 array;

    D9D_TRY(d9di_op_kv_append_fp8_check(t, x, at, codes, scale));
    array = d9di_op_kv_append_fp8_array(x, codes, scale);
    D9D_TRY(D9DI_KERNEL(t, attention->kv_append_fp8, tx->dtype, 1, &array, d9d_tensor_data(at),
                        tx->shape.dim[1], c->dim[1], c->dim[2]));
    return d9di_op_kv_cache_view(t, codes, y);
}

d9d_status d9d_op_kv_append_both(d9d_tape *t, const d9d_tensor *slots, const d9d_tensor *k_cache,
                                 const d9d_tensor *v_cache, d9d_var **k, d9d_var **v)
{
    const d9d_tensor *tk = d9d_var_tensor(*k), *tv = d9d_var_tensor(*v);
    const d9d_shape *s = &tk->shape;
    d9d_qk_norm_rope_heads list[2];
    d9d_qk_norm_rope_dims dims;

    D9D_TRY(d9di_op_kv_append_check(t, *k, slots, k_cache));
    D9D_TRY(d9di_op_kv_append_check(t, *v, slots, v_cache));
    D9D_TRY(d9di_op_check_same("kv_append", "keys", tk, "values", tv));
    dims = (d9d_qk_norm_rope_dims){.t = tk->dtype, .m = s->dim[1], .d = s->dim[3]};
    for (int i = 0; i < 2; i++)
        list[i] = (d9d_qk_norm_rope_heads){.x = d9d_tensor_data(i == 0 ? tk : tv),
                                           .y = d9d_tensor_data(i == 0 ? k_cache : v_cache),
                                           .heads = s->dim[2],
                                           .row_index = d9d_tensor_data(slots)};
    D9D_TRY(D9DI_KERNEL(t, norm->qk_norm_rope_append, &dims, 2, list));
    D9D_TRY(d9di_op_kv_cache_view(t, k_cache, k));
    return d9di_op_kv_cache_view(t, v_cache, v);
}
