/* op_latent_append.c - RoPE of the queries of MLA, norm of its latent features, and their append to
 * a KV cache.  q [1, T, n, D], query [1, T, n, C + R], latent [1, T, C], key [1, T, R], cache [Z,
 * 1, C + R].
 */
#include "op/norm/op_qk_heads.h"

/* EINVAL unless x is [1, T, wide]. */
static d9d_status rows_check(const char *name, const d9d_tensor *x, int64_t tokens, int64_t wide)
{
    D9D_TRY(d9di_op_check_real("latent_append", name, x));
    if (!d9d_shape_equal(&x->shape, &D9D_SHAPE(1, tokens, wide)))
        return d9di_op_misfit("latent_append", name, &x->shape, "the tokens",
                              &D9D_SHAPE(1, tokens, wide), "shapes must be equal");
    return D9D_OK;
}

static d9d_status append_check(d9d_tape *t, const d9d_op_latent_append_args *h, int64_t r)
{
    const d9d_tensor *q = d9d_var_tensor(h->q), *query = d9d_var_tensor(h->query);
    const d9d_shape *s = &q->shape, *c = &h->cache->shape;
    d9d_shape want = *s;
    d9d_var *in[] = {h->q, h->query, h->latent, h->key};

    D9D_TRY(d9di_op_check_real("latent_append", "q", q));
    D9D_TRY(d9di_op_check("latent_append", "the cache", h->cache, q->dtype));
    D9D_TRY(d9di_op_check("latent_append", "query", query, q->dtype));
    D9D_TRY(d9di_op_check("latent_append", "the slots", h->slots, D9D_I32));
    D9D_TRY(d9di_op_check("latent_append", "positions", h->positions, D9D_I32));
    D9D_TRY(d9di_op_check("latent_append", "inv_freq", h->inv_freq, D9D_F32));
    if (s->ndim != 4 || s->dim[0] != 1 || c->ndim != 3 || c->dim[1] != 1 || c->dim[2] <= r ||
        s->dim[3] < r)
        return d9di_op_misfit("latent_append", "q", s, "the cache", c,
                              "q is [1, T, n, D], a cache [Z, 1, C + R], D at least R");
    want.dim[3] = c->dim[2];
    if (!d9d_shape_equal(&query->shape, &want))
        return d9di_op_misfit("latent_append", "query", &query->shape, "q", &want,
                              "a query has the features of a cache's row");
    if (d9d_tensor_numel(h->slots) != s->dim[1] || d9d_tensor_numel(h->positions) != s->dim[1])
        return d9di_op_misfit("latent_append", "the slots", &h->slots->shape, "q", s,
                              "one slot and one position for each of T tokens");
    D9D_TRY(rows_check("latent", d9d_var_tensor(h->latent), s->dim[1], c->dim[2] - r));
    D9D_TRY(rows_check("key", d9d_var_tensor(h->key), s->dim[1], r));
    D9D_TRY(d9di_op_check_param("latent_append", h->norm, q->dtype));
    if (!d9d_shape_equal(&h->norm->local.data.shape, &D9D_SHAPE(c->dim[2] - r)))
        return d9di_op_misfit("latent_append", d9di_op_param_name(h->norm),
                              &h->norm->local.data.shape, "the cache", c,
                              "a weight for each latent feature");
    if (d9d_tape_should_record(t, in, 4, &h->norm, 1))
        return D9D_FAIL(D9D_EINVAL, "latent_append: has no backward");
    return D9D_OK;
}

d9d_status d9d_op_latent_append(d9d_tape *t, const d9d_op_latent_append_args *h, d9d_var **cached)
{
    const d9d_tensor *q = d9d_var_tensor(h->q);
    const int64_t r = 2 * d9d_tensor_numel(h->inv_freq);

    D9D_TRY(append_check(t, h, r));

    const d9d_latent_append_args a = {.t = q->dtype,
                                      .m = q->shape.dim[1],
                                      .heads = q->shape.dim[2],
                                      .q_cols = q->shape.dim[3],
                                      .c = h->cache->shape.dim[2] - r,
                                      .r = r,
                                      .eps = h->eps,
                                      .mscale = h->mscale,
                                      .interleaved = h->style == D9D_ROPE_INTERLEAVED,
                                      .positions = d9d_tensor_data(h->positions),
                                      .row_index = d9d_tensor_data(h->slots),
                                      .inv_freq = d9d_tensor_data(h->inv_freq),
                                      .q = d9d_tensor_data(q),
                                      .latent = d9d_tensor_data(d9d_var_tensor(h->latent)),
                                      .key = d9d_tensor_data(d9d_var_tensor(h->key)),
                                      .w = d9d_tensor_data(&h->norm->local.data),
                                      .query = d9d_tensor_data(d9d_var_tensor(h->query)),
                                      .cache = d9d_tensor_data(h->cache)};

    D9D_TRY(D9DI_KERNEL(t, norm->latent_append, &a));
    return d9di_op_kv_cache_view(t, h->cache, cached);
}
