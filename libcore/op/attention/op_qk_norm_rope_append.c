/* op_qk_norm_rope_append.c - QK norm if any, RoPE and KV-cache append of new tokens, fused; see
 * op_norm_rope.c and op_kv_append.c.
 */
#include "op/norm/op_qk_heads.h"

static d9d_status heads_check(const d9d_op_norm_rope_opts *opts, const d9d_var *v, d9d_param *w,
                              bool all_heads)
{
    const d9d_tensor *x = d9d_var_tensor(v);

    D9D_TRY(d9di_op_norm_rope_check(x, all_heads ? NULL : w, opts));
    if (!all_heads || w == NULL)
        return D9D_OK;
    D9D_TRY(d9di_op_check_param("norm_rope", w, x->dtype));
    return d9d_shape_equal(&w->local.data.shape, &D9D_SHAPE(x->shape.dim[2] * x->shape.dim[3]))
               ? D9D_OK
               : d9di_op_misfit("norm_rope", "x", &x->shape, d9di_op_param_name(w),
                                &w->local.data.shape, "x is [B, S, heads, D], a weight [heads D]");
}

static d9d_status append_check(d9d_tape *t, const d9d_op_norm_rope_opts *opts,
                               const d9d_op_qk_norm_rope_append_args *h)
{
    D9D_TRY(heads_check(opts, h->q, h->q_norm, h->all_heads));
    D9D_TRY(heads_check(opts, h->k, h->k_norm, h->all_heads));
    if (h->k_scale != NULL) {
        D9D_TRY(d9di_op_kv_append_fp8_check(t, h->k, h->slots, h->k_cache, h->k_scale));
        D9D_TRY(d9di_op_kv_append_fp8_check(t, h->v, h->slots, h->v_cache, h->v_scale));
    } else {
        D9D_TRY(d9di_op_kv_append_check(t, h->k, h->slots, h->k_cache));
        D9D_TRY(d9di_op_kv_append_check(t, h->v, h->slots, h->v_cache));
    }
    if (d9d_tape_should_record(t, &h->q, 1, &h->q_norm, h->q_norm != NULL))
        return D9D_FAIL(D9D_EINVAL, "qk_norm_rope_append: has no backward");
    return D9D_OK;
}

static d9d_qk_norm_rope_heads qk_heads_of(const d9d_var *x, const d9d_param *w, bool rotates,
                                          bool all_heads, const d9d_tensor *y, const d9d_tensor *at)
{
    const d9d_tensor *tx = d9d_var_tensor(x);

    return (d9d_qk_norm_rope_heads){.x = d9d_tensor_data(tx),
                                    .w = w != NULL ? d9d_tensor_data(&w->local.data) : NULL,
                                    .y = d9d_tensor_data(y),
                                    .heads = tx->shape.dim[2],
                                    .rotates = rotates,
                                    .row_index = at != NULL ? d9d_tensor_data(at) : NULL,
                                    .all_heads = all_heads && w != NULL};
}

/* Queries and keys, then both appends. */
static d9d_status append_fp8(d9d_tape *t, const d9d_qk_norm_rope_dims *dims, d9d_var *q,
                             const d9d_op_qk_norm_rope_append_args *h)
{
    const d9d_tensor *tk = d9d_var_tensor(h->k);
    const d9d_shape *s = &tk->shape;
    d9d_var *k;

    D9D_TRY(d9d_tape_output(t, tk->dtype, *s, &k));

    const d9d_qk_norm_rope_heads heads[] = {
        qk_heads_of(h->q, h->q_norm, true, h->all_heads, d9d_var_tensor(q), NULL),
        qk_heads_of(h->k, h->k_norm, true, h->all_heads, d9d_var_tensor(k), NULL)};
    const d9d_attention_append_fp8 list[] = {
        d9di_op_kv_append_fp8_array(k, h->k_cache, h->k_scale),
        d9di_op_kv_append_fp8_array(h->v, h->v_cache, h->v_scale)};

    D9D_TRY(D9DI_KERNEL(t, norm->qk_norm_rope_append, dims, 2, heads));
    return D9DI_KERNEL(t, attention->kv_append_fp8, tk->dtype, 2, list, d9d_tensor_data(h->slots),
                       s->dim[1], s->dim[2], s->dim[3]);
}

static d9d_status append_plain(d9d_tape *t, const d9d_qk_norm_rope_dims *dims, d9d_var *q,
                               const d9d_op_qk_norm_rope_append_args *h)
{
    const d9d_qk_norm_rope_heads list[] = {
        qk_heads_of(h->q, h->q_norm, true, h->all_heads, d9d_var_tensor(q), NULL),
        qk_heads_of(h->k, h->k_norm, true, h->all_heads, h->k_cache, h->slots),
        qk_heads_of(h->v, NULL, false, false, h->v_cache, h->slots)};

    return D9DI_KERNEL(t, norm->qk_norm_rope_append, dims, 3, list);
}

d9d_status d9d_op_qk_norm_rope_append(d9d_tape *t, const d9d_op_norm_rope_opts *opts,
                                      d9d_op_qk_norm_rope_append_args *h)
{
    const d9d_tensor *tq = d9d_var_tensor(h->q);
    d9d_qk_norm_rope_dims dims;
    d9d_var *q;

    D9D_TRY(append_check(t, opts, h));
    dims = d9di_op_norm_rope_dims(tq, opts, opts->positions, opts->inv_freq);
    D9D_TRY(d9d_tape_output(t, tq->dtype, tq->shape, &q));
    D9D_TRY(h->k_scale != NULL ? append_fp8(t, &dims, q, h) : append_plain(t, &dims, q, h));
    h->q = q;
    D9D_TRY(d9di_op_kv_cache_view(t, h->k_cache, &h->k));
    return d9di_op_kv_cache_view(t, h->v_cache, &h->v);
}
