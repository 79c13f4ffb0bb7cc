/* attention_block.c - grouped-query attention, rotary frequencies.  See d9d/nn/block.h. */
#include <math.h>
#include <stdlib.h>

#include "nn/block_init.h"

d9d_status d9d_block_rope_prepare(d9d_block_rope *b, d9d_device *dev)
{
    int64_t half = b->features / 2;
    float *host;
    d9d_status st;

    if (b->inv_freq.storage != NULL)
        return D9D_OK;
    host = calloc((size_t)half + 1, sizeof(*host));
    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "rotary embedding: %lld frequencies", (long long)half);
    d9d_rope_frequencies(&b->scaling, b->base, b->features, host);
    st = d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(half), host, &b->inv_freq);
    free(host);
    return st;
}

void d9d_block_rope_release(d9d_block_rope *b)
{
    d9d_tensor_release(&b->inv_freq);
}

d9d_status d9d_block_attention_init(d9d_block_attention *b, const d9d_block_how *how,
                                    int64_t hidden, int64_t heads, int64_t kv_heads,
                                    int64_t head_dim, float norm_eps, const d9d_block_rope *rope)
{
    const struct d9di_child children[] = {
        {"q_proj", &b->q_proj.module}, {"k_proj", &b->k_proj.module}, {"v_proj", &b->v_proj.module},
        {"o_proj", &b->o_proj.module}, {"q_norm", &b->q_norm.module}, {"k_norm", &b->k_norm.module},
    };

    b->heads = heads;
    b->kv_heads = kv_heads;
    b->head_dim = head_dim;
    b->rope = rope;
    b->cut = how->cut;
    d9d_module_init(&b->module);
    D9D_TRY(d9d_block_linear_init(&b->q_proj, how, hidden, heads * head_dim));
    D9D_TRY(d9d_block_linear_init(&b->k_proj, how, hidden, kv_heads * head_dim));
    D9D_TRY(d9d_block_linear_init(&b->v_proj, how, hidden, kv_heads * head_dim));
    D9D_TRY(d9d_block_linear_init(&b->o_proj, how, heads * head_dim, hidden));
    D9D_TRY(d9d_block_norm_init(&b->q_norm, how, head_dim, norm_eps, false));
    D9D_TRY(d9d_block_norm_init(&b->k_norm, how, head_dim, norm_eps, false));
    return d9di_block_children(&b->module, children, 6);
}

/* Some heads of a projection. */
typedef struct heads {
    d9d_block_linear *proj;
    d9d_block_norm *norm; /* NULL: neither norm nor rotation */
    int64_t first, n;     /* of those whose rows of the weight are here */
} heads;

/* The key-value heads that the query heads here read.  There may be more of them here: with more
 * ranks than key-value heads all ranks have all, and each needs one. */
static heads heads_read(const d9d_block_attention *b, d9d_block_linear *proj, d9d_block_norm *norm)
{
    const d9d_param *q = &b->q_proj.weight, *kv = &b->k_proj.weight;
    const int64_t group = b->heads / b->kv_heads * b->head_dim; /* rows that read one head */
    const int64_t first = q->work_start[0] / group;
    const int64_t end = (q->work_start[0] + q->work.dim[0] - 1) / group + 1;

    return (heads){proj, norm, first - kv->work_start[0] / b->head_dim, end - first};
}

/* x, all tokens, to heads [B, S, n, D]. */
static d9d_status heads_of(d9d_block_attention *b, d9d_tape *t, d9d_var *x, const heads *of,
                           const d9d_tensor *positions, d9d_var **y)
{
    const d9d_shape *s = &positions->shape;
    d9d_shape shape = D9D_SHAPE(s->dim[0], s->dim[1], of->n, b->head_dim);
    d9d_var *flat, *h;

    D9D_TRY(d9d_op_linear_rows(t, x, &of->proj->weight, of->first * b->head_dim,
                               of->n * b->head_dim, &flat));
    D9D_TRY(d9d_op_reshape(t, flat, shape, &h));
    if (of->norm == NULL) {
        *y = h;
        return D9D_OK;
    }
    return d9d_op_norm_rope(t, h, &of->norm->weight,
                            &(d9d_norm_rope){.eps = of->norm->eps,
                                             .zero_centred = of->norm->zero_centred,
                                             .positions = positions,
                                             .inv_freq = &b->rope->inv_freq,
                                             .style = b->rope->style,
                                             .mscale = d9d_rope_mscale(&b->rope->scaling)},
                            y);
}

int64_t d9d_block_attention_kv_heads(const d9d_block_attention *b)
{
    return heads_read(b, NULL, NULL).n;
}

d9d_status d9d_block_attention_forward(d9d_block_attention *b, d9d_tape *t, d9d_var *x,
                                       const d9d_tensor *positions, const d9d_tensor *segments,
                                       const d9d_block_cache *cache, d9d_var *plus, d9d_var **y)
{
    const d9d_shape *s = &positions->shape;
    const heads q_heads = {&b->q_proj, &b->q_norm, 0, b->q_proj.weight.work.dim[0] / b->head_dim};
    const heads k_heads = heads_read(b, &b->k_proj, &b->k_norm);
    const heads v_heads = heads_read(b, &b->v_proj, NULL);
    d9d_shape merged = D9D_SHAPE(s->dim[0], s->dim[1], q_heads.n * b->head_dim);
    const d9d_attention how = {.scale = 1.0f / sqrtf((float)b->head_dim),
                               .causal = true,
                               .segments = segments,
                               .cp = d9d_cut_cp(b->cut),
                               .what = b->k_proj.weight.name,
                               .cached = cache != NULL};
    d9d_comm *tp = d9d_cut_tp(b->cut);
    d9d_var *all, *q, *k, *v, *o;

    D9D_TRY(d9d_op_gather_rows(t, x, tp, b->q_proj.weight.name, &all));
    D9D_TRY(heads_of(b, t, all, &q_heads, positions, &q));
    D9D_TRY(heads_of(b, t, all, &k_heads, positions, &k));
    D9D_TRY(heads_of(b, t, all, &v_heads, positions, &v));
    if (cache != NULL) {
        D9D_TRY(d9d_op_cache(t, k, cache->at, cache->k, &k));
        D9D_TRY(d9d_op_cache(t, v, cache->at, cache->v, &v));
    }
    D9D_TRY(d9d_op_attention(t, q, k, v, &how, &o));
    D9D_TRY(d9d_op_reshape(t, o, merged, &o));
    return d9di_block_linear_end(&b->o_proj, t, o, tp, plus, y);
}
