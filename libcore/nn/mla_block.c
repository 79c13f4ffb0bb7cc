/* mla_block.c - multi-head latent attention (MLA).  See d9d/nn/block.h.
 *
 * A head's features are stored as [rope, nope] here, because RoPE rotates the first features of a
 * head. Queries and keys agree in that order, so the scores are the same.
 */
#include <math.h>

#include "nn/block_init.h"

static d9d_status shape_check(const d9d_block_mla_shape *s)
{
    if (s->rope->features != s->rope_dim)
        return D9D_FAIL(D9D_ECONFIG,
                        "MLA: %lld features of a head are rotated, the RoPE rotates %lld",
                        (long long)s->rope_dim, (long long)s->rope->features);
    return D9D_OK;
}

static d9d_status queries_init(d9d_block_mla *b, const d9d_block_opts *opts)
{
    const d9d_block_mla_shape *s = &b->shape;
    const int64_t out = s->heads * (s->nope_dim + s->rope_dim);

    if (s->q_rank == 0) {
        D9D_BLOCK_ADD(&b->module, "q_proj", linear, &b->q_up, opts, s->hidden, out);
        return D9D_OK;
    }
    d9d_module_init(&b->q_proj);
    D9D_BLOCK_ADD(&b->q_proj, "down_proj", linear, &b->q_down, opts, s->hidden, s->q_rank);
    D9D_BLOCK_ADD(&b->q_proj, "norm", norm, &b->q_norm, opts, s->q_rank, s->norm_eps, false);
    D9D_BLOCK_ADD(&b->q_proj, "up_proj", linear, &b->q_up, opts, s->q_rank, out);
    return d9d_module_child(&b->module, "q_proj", &b->q_proj);
}

static d9d_status biases_init(d9d_block_mla *b, const d9d_block_opts *opts)
{
    const d9d_block_mla_shape *s = &b->shape;
    const struct {
        d9d_block_linear *of;
        d9d_param *bias;
        int64_t n;
    } all[] = {{&b->q_down, &b->q_bias, s->q_rank},
               {&b->kv_down, &b->kv_bias, s->kv_rank + s->rope_dim},
               {&b->o_proj, &b->o_bias, s->hidden}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && s->bias; i++)
        if (all[i].n > 0)
            D9D_TRY(d9d_module_param(&all[i].of->module, "bias", all[i].bias, opts->dtype,
                                     D9D_SHAPE(all[i].n), D9D_INIT_ZEROS, 0));
    return D9D_OK;
}

d9d_status d9d_block_mla_init(d9d_block_mla *b, const d9d_block_opts *opts,
                              const d9d_block_mla_shape *shape)
{
    const d9d_block_mla_shape *s = &b->shape;
    d9d_module *m = &b->module;

    D9D_TRY(shape_check(shape));
    b->shape = *shape;
    b->groups = opts->groups;
    if (opts->blocks != NULL) {
        opts->blocks->mla = b;
        opts->blocks->dropout |= shape->dropout > 0;
    }
    d9d_module_init(m);
    D9D_TRY(queries_init(b, opts));
    D9D_BLOCK_ADD(m, "kv_down_proj", linear, &b->kv_down, opts, s->hidden,
                  s->kv_rank + s->rope_dim);
    D9D_BLOCK_ADD(m, "kv_down_norm", norm, &b->kv_norm, opts, s->kv_rank, s->norm_eps, false);
    D9D_BLOCK_ADD(m, "kv_up_proj", linear, &b->kv_up, opts, s->kv_rank,
                  s->heads * (s->nope_dim + s->v));
    b->kv_up.weight.spec.reads_data = true; /* per head, for a cache of latent features */
    D9D_BLOCK_ADD(m, "o_proj", linear, &b->o_proj, opts, s->heads * s->v, s->hidden);
    D9D_TRY(biases_init(b, opts));
    d9di_block_divide(
        &b->q_up.weight, opts,
        (d9d_param_parallel){D9D_COLWISE, s->heads, false, "num_attention_heads", true});
    d9di_block_divide(
        &b->kv_up.weight, opts,
        (d9d_param_parallel){D9D_COLWISE, s->heads, false, "num_attention_heads", true});
    d9di_block_divide(
        &b->o_proj.weight, opts,
        (d9d_param_parallel){D9D_ROWWISE, s->heads, false, "num_attention_heads", true});
    return D9D_OK;
}

/* Number of heads, `width` features each, whose up-projection rows this rank has. */
static int64_t heads_here(const d9d_block_linear *up, int64_t width)
{
    return up->weight.local.shape.dim[0] / width;
}

static d9d_status apply_rope(const d9d_block_mla *b, d9d_tape *t, d9d_var *x,
                             const d9d_tensor *positions, d9d_var **y)
{
    const d9d_block_rope *r = b->shape.rope;

    return d9d_op_rope(t, x, positions, &r->inv_freq, r->style, d9d_rope_mscale(&r->scaling), y);
}

/* What x is projected to: queries, or what they are projected from; latent features; the key that
 * all heads share. */
enum { QUERIES, LATENT, KEY, PROJECTIONS };

/* Do the queries of all tokens need a gather of x first? */
static bool gathers_queries(const d9d_block_mla *b)
{
    return b->shape.q_rank == 0 && d9d_comm_size(d9d_groups_tp(b->groups)) > 1;
}

static d9d_status x_project(d9d_block_mla *b, d9d_tape *t, d9d_var *x, d9d_var *y[PROJECTIONS])
{
    d9d_param *const q = b->shape.q_rank > 0 ? &b->q_down.weight : &b->q_up.weight;
    d9d_param *const q_bias = b->shape.bias && b->shape.q_rank > 0 ? &b->q_bias : NULL;
    d9d_param *const kv_bias = b->shape.bias ? &b->kv_bias : NULL;
    const d9d_op_weight_slice of[PROJECTIONS] = {
        {q, 0, q->local.shape.dim[0], q_bias},
        {&b->kv_down.weight, 0, b->shape.kv_rank, kv_bias},
        {&b->kv_down.weight, b->shape.kv_rank, b->shape.rope_dim, kv_bias}};

    if (!gathers_queries(b))
        return d9d_op_linear_multi(t, x, NULL, of, PROJECTIONS, y);
    D9D_TRY(d9d_op_all_gather_rows(t, x, d9d_groups_tp(b->groups), q->name, &y[QUERIES]));
    D9D_TRY(d9d_op_linear(t, y[QUERIES], q, &y[QUERIES]));
    return d9d_op_linear_multi(t, x, NULL, of + LATENT, PROJECTIONS - LATENT, y + LATENT);
}

/* Queries of all tokens for this rank's heads, [B, S, n, nope_dim + rope_dim], as they are
 * projected.
 */
static d9d_status queries_up_project(d9d_block_mla *b, d9d_tape *t, d9d_var *h, const d9d_shape *p,
                                     d9d_var **q)
{
    const int64_t d = b->shape.nope_dim + b->shape.rope_dim;

    if (b->shape.q_rank > 0) {
        D9D_TRY(d9d_block_norm_forward(&b->q_norm, t, h, &h));
        D9D_TRY(d9d_op_all_gather_rows(t, h, d9d_groups_tp(b->groups), b->q_up.weight.name, &h));
        D9D_TRY(d9d_block_linear_forward(&b->q_up, t, h, &h));
    }
    return d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], heads_here(&b->q_up, d), d), q);
}

/* The same in the order [rope, nope], rotated. */
static d9d_status queries_rope(d9d_block_mla *b, d9d_tape *t, d9d_var *h,
                               const d9d_tensor *positions, d9d_var **q)
{
    const int64_t nope_dim = b->shape.nope_dim, rope_dim = b->shape.rope_dim;
    const d9d_shape heads = d9d_var_tensor(h)->shape;

    D9D_TRY(d9d_op_concat(t, (d9d_op_concat_input[]){{h, nope_dim, rope_dim}, {h, 0, nope_dim}}, 2,
                          heads, &h));
    return apply_rope(b, t, h, positions, q);
}

/* The rotated key that all heads share: [B, S, 1, rope_dim]. */
static d9d_status rope_key(d9d_block_mla *b, d9d_tape *t, d9d_var *h, const d9d_tensor *positions,
                           d9d_var **key)
{
    const d9d_shape *p = &positions->shape;

    D9D_TRY(d9d_op_all_gather_rows(t, h, d9d_groups_tp(b->groups), b->kv_down.weight.name, &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], 1, b->shape.rope_dim), &h));
    return apply_rope(b, t, h, positions, key);
}

/* The latent features, of all tokens: [.., kv_rank]. */
static d9d_status latent_norm(d9d_block_mla *b, d9d_tape *t, d9d_var *h, d9d_var **y)
{
    D9D_TRY(d9d_block_norm_forward(&b->kv_norm, t, h, y));
    return d9d_op_all_gather_rows(t, *y, d9d_groups_tp(b->groups), b->kv_up.weight.name, y);
}

/* This rank's heads from latent features [B, S, kv_rank] and rotated keys, which are the features
 * of `key` from `first` on: keys [B, S, n, nope_dim + rope_dim], values [B, S, n, v]. */
static d9d_status kv_up_project(d9d_block_mla *b, d9d_tape *t, d9d_var *latent, d9d_var *key,
                                int64_t first, d9d_var **k, d9d_var **v)
{
    const d9d_shape *p = &d9d_var_tensor(key)->shape;
    const d9d_block_mla_shape *s = &b->shape;
    const int64_t width = s->nope_dim + s->v, n = heads_here(&b->kv_up, width);
    d9d_shape heads = D9D_SHAPE(p->dim[0], p->dim[1], n, s->nope_dim + s->rope_dim);
    d9d_var *h;

    D9D_TRY(d9d_block_linear_forward(&b->kv_up, t, latent, &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], n, width), &h));
    D9D_TRY(d9d_op_concat(
        t, (d9d_op_concat_input[]){{key, first, s->rope_dim}, {h, 0, s->nope_dim}}, 2, heads, k));
    heads.dim[3] = s->v;
    return d9d_op_concat(t, &(d9d_op_concat_input){h, s->nope_dim, s->v}, 1, heads, v);
}

/* Keys and values of the tokens that were projected to `in`. */
static d9d_status kv_project(d9d_block_mla *b, d9d_tape *t, d9d_var *const in[PROJECTIONS],
                             const d9d_tensor *positions, d9d_var **k, d9d_var **v)
{
    d9d_var *latent, *key;

    D9D_TRY(latent_norm(b, t, in[LATENT], &latent));
    D9D_TRY(rope_key(b, t, in[KEY], positions, &key));
    return kv_up_project(b, t, latent, key, 0, k, v);
}

/* --- generation: weight absorption --- *
 *
 * With W_k and W_v the rows of kv_up_proj that project the latent features c to a head's key and
 * value, and p the probabilities:
 *
 *     q . (W_k c) = (q W_k) . c        sum_j p_j W_v c_j = W_v (sum_j p_j c_j)
 *
 * So all heads attend to one row [c, rotated key] for each token: 576 numbers in DeepSeek-V3, where
 * keys and values would be 40,960. */

void d9d_block_mla_cache_spec(const d9d_block_mla *b, d9d_block_cache_spec *out)
{
    const d9d_block_mla_shape *s = &b->shape;

    *out = (d9d_block_cache_spec){1,
                                  {{"latent", false, b->kv_down.weight.spec.dtype,
                                    D9D_SHAPE(1, s->kv_rank + s->rope_dim), false}}};
}

/* Append the latent features and rotated keys of the new tokens to the KV cache. */
static d9d_status latent_append(d9d_block_mla *b, d9d_tape *t, d9d_var *const in[PROJECTIONS],
                                const d9d_tensor *positions, const d9d_block_cache *cache)
{
    const d9d_shape *p = &positions->shape;
    const int64_t c = b->shape.kv_rank, rope_dim = b->shape.rope_dim;
    d9d_var *h, *key;

    D9D_TRY(latent_norm(b, t, in[LATENT], &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], 1, c), &h));
    D9D_TRY(rope_key(b, t, in[KEY], positions, &key));
    D9D_TRY(d9d_op_concat(t, (d9d_op_concat_input[]){{h, 0, c}, {key, 0, rope_dim}}, 2,
                          D9D_SHAPE(p->dim[0], p->dim[1], 1, c + rope_dim), &h));
    return d9d_op_kv_append(t, h, cache->token_slots, cache->entry[0], &h);
}

/* Rows of n features of all tokens, of which each rank has those of its own: [B, S, n]. */
static d9d_status all_rows(const d9d_block_mla *b, d9d_tape *t, d9d_var *x, const d9d_shape *p,
                           int64_t n, d9d_var **y)
{
    D9D_TRY(d9d_op_all_gather_rows(t, x, d9d_groups_tp(b->groups), b->kv_down.weight.name, y));
    return d9d_op_reshape(t, *y, D9D_SHAPE(p->dim[0], p->dim[1], n), y);
}

/* o [B, S, n, v] from queries as they are projected and what else x is projected to: rows for the
 * cache, and queries [q W_k, rotated] of the cache's width. */
static d9d_status attend_latent(d9d_block_mla *b, d9d_tape *t, d9d_var *const in[PROJECTIONS],
                                d9d_var *q, const d9d_tensor *positions,
                                const d9d_block_cache *cache, const d9d_op_attention_opts *opts,
                                d9d_var **o)
{
    const d9d_block_mla_shape *s = &b->shape;
    const d9d_block_rope *rope = s->rope;
    const int64_t width = s->nope_dim + s->v;
    const d9d_op_linear_per_head_opts
        down = {.step = width, .out = s->kv_rank, .in = s->nope_dim, .extra = s->rope_dim},
        up = {
            .step = width, .first = s->nope_dim, .out = s->v, .transposed = true, .in = s->kv_rank};
    d9d_op_latent_append_args new = {.q = q,
                                     .norm = &b->kv_norm.weight,
                                     .eps = b->kv_norm.eps,
                                     .mscale = d9d_rope_mscale(&rope->scaling),
                                     .positions = positions,
                                     .inv_freq = &rope->inv_freq,
                                     .style = rope->style,
                                     .slots = cache->token_slots,
                                     .cache = cache->entry[0]};
    d9d_var *cached, *h;

    D9D_TRY(all_rows(b, t, in[LATENT], &positions->shape, s->kv_rank, &new.latent));
    D9D_TRY(all_rows(b, t, in[KEY], &positions->shape, s->rope_dim, &new.key));
    D9D_TRY(d9d_op_linear_per_head(t, q, &b->kv_up.weight, &down, &new.query));
    D9D_TRY(d9d_op_latent_append(t, &new, &cached));
    D9D_TRY(d9d_op_attention(t, new.query, cached, cached, opts, &h));
    return d9d_op_linear_per_head(t, h, &b->kv_up.weight, &up, o);
}

/* Tokens of a prompt from which on keys and values are computed: many queries share them then, and
 * a score costs 192 products in place of 576. */
enum { MIN_PREFILL_TOKENS = 65 };

static bool computes_keys(const d9d_tape *t, const d9d_tensor *positions)
{
    return d9d_tape_get_prefill(t) != NULL && positions->shape.dim[1] >= MIN_PREFILL_TOKENS;
}

/* o of a prompt's tokens: keys and values of all tokens of its sequence come from the cache. */
static d9d_status attend_prefill(d9d_block_mla *b, d9d_tape *t, d9d_var *q,
                                 const d9d_block_cache *cache, d9d_op_attention_opts opts,
                                 d9d_var **o)
{
    const d9d_tape_prefill *p = d9d_tape_get_prefill(t);
    const int64_t c = b->shape.kv_rank, wide = c + b->shape.rope_dim;
    d9d_tensor flat = d9d_tensor_rows(cache->entry[0], p->first, p->n);
    d9d_tensor rows = d9d_tensor_reshape(&flat, D9D_SHAPE(1, p->n, 1, wide));
    d9d_var *keys, *latent, *k, *v;

    d9d_tensor_release(&flat);
    opts.segments = &p->segments;
    D9D_TRY(d9d_tape_output_take(t, &rows, &keys));
    D9D_TRY(
        d9d_op_concat(t, &(d9d_op_concat_input){keys, 0, c}, 1, D9D_SHAPE(1, p->n, 1, c), &latent));
    D9D_TRY(d9d_op_reshape(t, latent, D9D_SHAPE(1, p->n, c), &latent));
    D9D_TRY(kv_up_project(b, t, latent, keys, c, &k, &v));
    return d9d_op_attention(t, q, k, v, &opts, o);
}

/* o [B, S, n, v] as [B, S, n v]. */
static d9d_status heads_merge(d9d_tape *t, d9d_var *o, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(o)->shape;

    return d9d_op_reshape(t, o, D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2] * s->dim[3]), y);
}

d9d_status d9d_block_mla_forward(d9d_block_mla *b, d9d_tape *t, d9d_var *x,
                                 const d9d_tensor *positions, const d9d_tensor *segments,
                                 const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const d9d_block_mla_shape *s = &b->shape;
    const float usual = 1.0f / sqrtf((float)(s->nope_dim + s->rope_dim));
    const d9d_groups *cut = cache == NULL ? b->groups : NULL; /* a cached sequence is whole */
    const d9d_op_attention_opts opts = {
        .scale = s->scale != 0 ? s->scale : usual,
        .causal = true,
        .segments = segments,
        .prefix = d9d_tape_prefix(t),
        .cp = d9d_groups_cp_keys(cut),
        .cp_ring = d9d_groups_cp_ring(cut),
        .cp_heads = d9d_groups_cp_heads(cut),
        .label = b->kv_up.weight.name,
        .cached = cache != NULL,
        .dropout = {.p = s->dropout,
                    .site = &b->kv_up.weight,
                    .first = b->kv_up.weight.local.offset[0] / (s->nope_dim + s->v)}};
    d9d_var *in[PROJECTIONS], *q, *k, *v, *o;

    D9D_TRY(x_project(b, t, x, in));
    D9D_TRY(queries_up_project(b, t, in[QUERIES], &positions->shape, &q));
    if (cache != NULL && !computes_keys(t, positions)) {
        D9D_TRY(attend_latent(b, t, in, q, positions, cache, &opts, &o));
    } else if (cache != NULL) {
        D9D_TRY(latent_append(b, t, in, positions, cache));
        D9D_TRY(queries_rope(b, t, q, positions, &q));
        D9D_TRY(attend_prefill(b, t, q, cache, opts, &o));
    } else {
        D9D_TRY(queries_rope(b, t, q, positions, &q));
        D9D_TRY(kv_project(b, t, in, positions, &k, &v));
        D9D_TRY(d9d_op_attention(t, q, k, v, &opts, &o));
    }
    D9D_TRY(heads_merge(t, o, &o));
    return d9di_block_linear_reduce(&b->o_proj, s->bias ? &b->o_bias : NULL, t, o,
                                    d9d_groups_tp(b->groups), plus, y);
}
