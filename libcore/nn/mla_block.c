/* mla_block.c - multi-head latent attention.  See d9d/nn/block.h.
 *
 * A head's features lie as [turned, plain] here, because the first of them turn: queries and keys
 * agree, so the scores are the same.
 */
#include <math.h>

#include "nn/block_init.h"

static d9d_status check(const d9d_latent_shape *s)
{
    if (s->v > s->plain + s->turned)
        return D9D_FAIL(D9D_ECONFIG,
                        "latent attention: values of %lld features are wider than keys of %lld",
                        (long long)s->v, (long long)(s->plain + s->turned));
    if (s->rope->features != s->turned)
        return D9D_FAIL(D9D_ECONFIG,
                        "latent attention: %lld features of a head turn, a rope turns %lld",
                        (long long)s->turned, (long long)s->rope->features);
    return D9D_OK;
}

static d9d_status queries_init(d9d_block_latent *b, const d9d_block_how *how)
{
    const d9d_latent_shape *s = &b->shape;
    const int64_t out = s->heads * (s->plain + s->turned);

    if (s->q_rank == 0) {
        D9D_BLOCK_ADD(&b->module, "q_proj", linear, &b->q_up, how, s->hidden, out);
        return D9D_OK;
    }
    d9d_module_init(&b->q_proj);
    D9D_BLOCK_ADD(&b->q_proj, "down_proj", linear, &b->q_down, how, s->hidden, s->q_rank);
    D9D_BLOCK_ADD(&b->q_proj, "norm", norm, &b->q_norm, how, s->q_rank, s->norm_eps, false);
    D9D_BLOCK_ADD(&b->q_proj, "up_proj", linear, &b->q_up, how, s->q_rank, out);
    return d9d_module_child(&b->module, "q_proj", &b->q_proj);
}

d9d_status d9d_block_latent_init(d9d_block_latent *b, const d9d_block_how *how,
                                 const d9d_latent_shape *shape)
{
    const d9d_latent_shape *s = &b->shape;
    d9d_module *m = &b->module;

    D9D_TRY(check(shape));
    b->shape = *shape;
    b->cut = how->cut;
    d9d_module_init(m);
    D9D_TRY(queries_init(b, how));
    D9D_BLOCK_ADD(m, "kv_down_proj", linear, &b->kv_down, how, s->hidden, s->kv_rank + s->turned);
    D9D_BLOCK_ADD(m, "kv_down_norm", norm, &b->kv_norm, how, s->kv_rank, s->norm_eps, false);
    D9D_BLOCK_ADD(m, "kv_up_proj", linear, &b->kv_up, how, s->kv_rank,
                  s->heads * (s->plain + s->v));
    D9D_BLOCK_ADD(m, "o_proj", linear, &b->o_proj, how, s->heads * s->v, s->hidden);
    return D9D_OK;
}

/* Heads of `width` features whose rows of an up-projection are here. */
static int64_t heads_here(const d9d_block_linear *up, int64_t width)
{
    return up->weight.work.dim[0] / width;
}

static d9d_status turn(const d9d_block_latent *b, d9d_tape *t, d9d_var *x,
                       const d9d_tensor *positions, d9d_var **y)
{
    const d9d_block_rope *r = b->shape.rope;

    return d9d_op_rope(t, x, positions, &r->inv_freq, r->style, d9d_rope_mscale(&r->scaling), y);
}

/* Of all tokens, the heads here [B, S, n, turned + plain]. */
static d9d_status queries(d9d_block_latent *b, d9d_tape *t, d9d_var *x, const d9d_tensor *positions,
                          d9d_var **q)
{
    const d9d_shape *p = &positions->shape;
    const int64_t plain = b->shape.plain, turned = b->shape.turned, d = plain + turned;
    const d9d_shape heads = D9D_SHAPE(p->dim[0], p->dim[1], heads_here(&b->q_up, d), d);
    d9d_var *h = x;

    if (b->shape.q_rank > 0) {
        D9D_TRY(d9d_block_linear_forward(&b->q_down, t, h, &h));
        D9D_TRY(d9d_block_norm_forward(&b->q_norm, t, h, &h));
    }
    D9D_TRY(d9d_op_gather_rows(t, h, d9d_cut_tp(b->cut), b->q_up.weight.name, &h));
    D9D_TRY(d9d_block_linear_forward(&b->q_up, t, h, &h));
    D9D_TRY(d9d_op_reshape(t, h, heads, &h));
    D9D_TRY(d9d_op_join(t, (d9d_piece[]){{h, plain, turned}, {h, 0, plain}}, 2, heads, &h));
    return turn(b, t, h, positions, q);
}

/* The one key of positions, turned: [B, S, 1, turned]. */
static d9d_status turned_key(d9d_block_latent *b, d9d_tape *t, d9d_var *x,
                             const d9d_tensor *positions, d9d_var **key)
{
    const d9d_shape *p = &positions->shape;
    const int64_t turned = b->shape.turned;
    d9d_var *h;

    D9D_TRY(d9d_op_linear_rows(t, x, &b->kv_down.weight, b->shape.kv_rank, turned, &h));
    D9D_TRY(d9d_op_gather_rows(t, h, d9d_cut_tp(b->cut), b->kv_down.weight.name, &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], 1, turned), &h));
    return turn(b, t, h, positions, key);
}

/* The features that heads share, of all tokens: [.., kv_rank]. */
static d9d_status shared(d9d_block_latent *b, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    D9D_TRY(d9d_op_linear_rows(t, x, &b->kv_down.weight, 0, b->shape.kv_rank, y));
    D9D_TRY(d9d_block_norm_forward(&b->kv_norm, t, *y, y));
    return d9d_op_gather_rows(t, *y, d9d_cut_tp(b->cut), b->kv_up.weight.name, y);
}

/* Both of the heads here; values with zeros up to the width of keys. */
static d9d_status keys_values(d9d_block_latent *b, d9d_tape *t, d9d_var *x,
                              const d9d_tensor *positions, d9d_var **k, d9d_var **v)
{
    const d9d_shape *p = &positions->shape;
    const d9d_latent_shape *s = &b->shape;
    const int64_t width = s->plain + s->v, n = heads_here(&b->kv_up, width);
    const d9d_shape heads = D9D_SHAPE(p->dim[0], p->dim[1], n, s->plain + s->turned);
    d9d_var *h, *key;

    D9D_TRY(shared(b, t, x, &h));
    D9D_TRY(d9d_block_linear_forward(&b->kv_up, t, h, &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], n, width), &h));
    D9D_TRY(turned_key(b, t, x, positions, &key));
    D9D_TRY(d9d_op_join(t, (d9d_piece[]){{key, 0, s->turned}, {h, 0, s->plain}}, 2, heads, k));
    return d9d_op_join(t, &(d9d_piece){h, s->plain, s->v}, 1, heads, v);
}

/* --- generation --- *
 *
 * With W_k and W_v the rows of kv_up_proj that make a head's key and value of the shared features
 * c, and p the probabilities:
 *
 *     q . (W_k c) = (q W_k) . c        sum_j p_j W_v c_j = W_v (sum_j p_j c_j)
 *
 * so that all heads attend to one row [c, turned key] a token, of 576 numbers in DeepSeek-V3 where
 * keys and values are 40,960. */

void d9d_block_latent_cells(const d9d_block_latent *b, d9d_cells *out)
{
    const d9d_latent_shape *s = &b->shape;

    *out = (d9d_cells){
        1, {{"latent", false, b->kv_down.weight.dtype, D9D_SHAPE(1, s->kv_rank + s->turned)}}};
}

/* What is kept of the tokens here, beside that of those before. */
static d9d_status keep(d9d_block_latent *b, d9d_tape *t, d9d_var *x, const d9d_tensor *positions,
                       const d9d_block_cache *cache, d9d_var **all)
{
    const d9d_shape *p = &positions->shape;
    const int64_t c = b->shape.kv_rank, turned = b->shape.turned;
    d9d_var *h, *key;

    D9D_TRY(shared(b, t, x, &h));
    D9D_TRY(d9d_op_reshape(t, h, D9D_SHAPE(p->dim[0], p->dim[1], 1, c), &h));
    D9D_TRY(turned_key(b, t, x, positions, &key));
    D9D_TRY(d9d_op_join(t, (d9d_piece[]){{h, 0, c}, {key, 0, turned}}, 2,
                        D9D_SHAPE(p->dim[0], p->dim[1], 1, c + turned), &h));
    return d9d_op_cache(t, h, cache->at, cache->cell[0], all);
}

/* o [B, S, n, v] of queries [B, S, n, turned + plain]. */
static d9d_status attend_kept(d9d_block_latent *b, d9d_tape *t, d9d_var *q, d9d_var *kept,
                              const d9d_attention *how, d9d_var **o)
{
    const d9d_latent_shape *s = &b->shape;
    const int64_t c = s->kv_rank, width = s->plain + s->v;
    const d9d_heads_how down = {width, 0, c, false}, up = {width, s->plain, s->v, true};
    d9d_shape shape = d9d_var_tensor(q)->shape;
    d9d_var *h;

    shape.dim[3] = s->plain;
    D9D_TRY(d9d_op_join(t, &(d9d_piece){q, s->turned, s->plain}, 1, shape, &h));
    D9D_TRY(d9d_op_heads(t, h, &b->kv_up.weight, &down, &h));
    shape.dim[3] = c + s->turned;
    D9D_TRY(d9d_op_join(t, (d9d_piece[]){{h, 0, c}, {q, 0, s->turned}}, 2, shape, &h));
    D9D_TRY(d9d_op_attention(t, h, kept, kept, how, &h));
    shape.dim[3] = c;
    D9D_TRY(d9d_op_join(t, &(d9d_piece){h, 0, c}, 1, shape, &h));
    return d9d_op_heads(t, h, &b->kv_up.weight, &up, o);
}

/* o [B, S, n, D] without the zeros: [B, S, n v]. */
static d9d_status merged(const d9d_block_latent *b, d9d_tape *t, d9d_var *o, d9d_var **y)
{
    const d9d_shape *s = &d9d_var_tensor(o)->shape;
    const int64_t v = b->shape.v;

    if (v < s->dim[3])
        D9D_TRY(d9d_op_join(t, &(d9d_piece){o, 0, v}, 1,
                            D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2], v), &o));
    return d9d_op_reshape(t, o, D9D_SHAPE(s->dim[0], s->dim[1], s->dim[2] * v), y);
}

d9d_status d9d_block_latent_forward(d9d_block_latent *b, d9d_tape *t, d9d_var *x,
                                    const d9d_tensor *positions, const d9d_tensor *segments,
                                    const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const d9d_latent_shape *s = &b->shape;
    const float usual = 1.0f / sqrtf((float)(s->plain + s->turned));
    const d9d_attention how = {.scale = s->scale != 0 ? s->scale : usual,
                               .causal = true,
                               .segments = segments,
                               .cp = d9d_cut_cp(b->cut),
                               .what = b->kv_up.weight.name,
                               .cached = cache != NULL};
    d9d_var *q, *k, *v, *o;

    D9D_TRY(queries(b, t, x, positions, &q));
    if (cache != NULL) {
        D9D_TRY(keep(b, t, x, positions, cache, &k));
        D9D_TRY(attend_kept(b, t, q, k, &how, &o));
    } else {
        D9D_TRY(keys_values(b, t, x, positions, &k, &v));
        D9D_TRY(d9d_op_attention(t, q, k, v, &how, &o));
    }
    D9D_TRY(merged(b, t, o, &o));
    return d9di_block_linear_end(&b->o_proj, t, o, d9d_cut_tp(b->cut), plus, y);
}
